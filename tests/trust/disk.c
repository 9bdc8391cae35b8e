/* Preloaded into a server, it notes what a power cut would leave of each file: after every fsync and fdatasync three native
 * 64-bit numbers are appended to the file that $TB_DISK names: the file's inode, how many bytes of it are on the disk for
 * certain, and when the last of them was written (microseconds, wall clock). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int sync_and_note(long call, int fd) {
    struct stat before;
    int known = fstat(fd, &before) == 0;
    int result = (int)syscall(call, fd);
    const char *path = getenv("TB_DISK");
    if (result != 0 || !known || !path) return result;
    int64_t note[3] = {(int64_t)before.st_ino, before.st_size, before.st_mtim.tv_sec * INT64_C(1000000) + before.st_mtim.tv_nsec / 1000};
    int notes = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (notes < 0) abort();
    if (write(notes, note, sizeof note) != sizeof note) abort();
    close(notes);
    return result;
}

int fsync(int fd) {
    return sync_and_note(SYS_fsync, fd);
}

int fdatasync(int fd) {
    return sync_and_note(SYS_fdatasync, fd);
}
