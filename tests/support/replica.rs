//! Replication as a test sees it: a second server that follows a first, and the raw stream that a primary sends.

use super::{Client, Reply, Server, eventually};

impl Server {
    /// Makes this server a replica of `primary` and waits until it holds what the primary holds.
    pub(crate) fn follow(&self, primary: &Server) {
        self.client().ok(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
        self.catch_up(primary);
    }

    /// Waits until this replica has applied everything that `primary` has sent so far.
    pub(crate) fn catch_up(&self, primary: &Server) {
        let (mut ours, mut theirs) = (self.client(), primary.client());
        eventually("the replica is in sync", || {
            let up = ours.info("master_link_status") == "up";
            // Read in this order, equality means that nothing sent before the call is missing.
            let sent = theirs.info_int("master_repl_offset");
            (up && ours.info_int("slave_repl_offset") == sent).then_some(())
        });
    }
}

/// The commands a primary sends to its replicas, read from a connection that poses as one.
pub(crate) struct ReplicationStream {
    link: Client,
    primary: Client,
}

impl ReplicationStream {
    /// Attaches to `primary`; what it holds already is skipped, what it writes from now on is seen.
    pub(crate) fn of(primary: &Server) -> ReplicationStream {
        let mut link = primary.client();
        // Without the capability `eof` the snapshot comes with its length, and the stream follows without an ACK.
        link.ok("REPLCONF listening-port 1");
        link.ok("REPLCONF capa psync2");
        link.send(&["PSYNC", "?", "-1"]);
        let answer = next_line(&mut link);
        assert!(answer.starts_with(b"+FULLRESYNC"), "to PSYNC the server said {}", answer.escape_ascii());
        let header = next_line(&mut link);
        let len = header.strip_prefix(b"$").and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
        link.exactly(len.unwrap_or_else(|| panic!("not the length of a snapshot: {}", header.escape_ascii())));
        let primary = primary.client();
        let mut stream = ReplicationStream { link, primary };
        stream.drain();
        stream
    }

    /// Everything that was sent since the last call, without the server's own `SELECT` and `PING`.
    pub(crate) fn drain(&mut self) -> Vec<Vec<Vec<u8>>> {
        self.primary.int("PUBLISH end-of-drain .");
        let mut commands = Vec::new();
        loop {
            let Reply::Array(args) = self.link.read() else { panic!("a stream of commands") };
            let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.bytes().to_vec()).collect();
            let housekeeping = [b"SELECT".as_slice(), b"PING", b"REPLCONF"];
            match args.as_slice() {
                [command, channel, _] if command == b"PUBLISH" && channel == b"end-of-drain" => return commands,
                [command, ..] if housekeeping.iter().any(|own| command.eq_ignore_ascii_case(own)) => {}
                _ => commands.push(args),
            }
        }
    }
}

/// A primary sends bare line feeds while its snapshot is not ready.
fn next_line(link: &mut Client) -> Vec<u8> {
    loop {
        let line = link.line();
        if !line.is_empty() {
            return line;
        }
    }
}
