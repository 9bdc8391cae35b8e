//! The allocator: the server's own, so that what the module allocates counts as used memory; the system's where no server
//! is around, in tests and benches.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use redis_module::raw;

/// What the server's allocator aligns to.
const ALIGNMENT: usize = 16;

struct ModuleAllocator;

#[global_allocator]
static ALLOCATOR: ModuleAllocator = ModuleAllocator;

// SAFETY: a process never mixes the two allocators. In a server the pointers are filled before the module's first
// allocation (`load.rs`) and stay; elsewhere they are never filled. Over-aligned layouts, which nothing here asks for, fail
// instead of being served misaligned. The server's allocator never returns null: it aborts when memory is out.
unsafe impl GlobalAlloc for ModuleAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the pointer is read by value; the layout is passed on as it came.
        unsafe {
            match raw::RedisModule_Alloc {
                Some(alloc) if layout.align() <= ALIGNMENT => alloc(layout.size()).cast(),
                Some(_) => ptr::null_mut(),
                None => System.alloc(layout),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from the same allocator, see above.
        unsafe {
            match raw::RedisModule_Free {
                Some(free) => free(block.cast()),
                None => System.dealloc(block, layout),
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the block came from the same allocator with this layout.
        unsafe {
            match raw::RedisModule_Realloc {
                Some(realloc) if layout.align() <= ALIGNMENT => realloc(block.cast(), size).cast(),
                Some(_) => ptr::null_mut(),
                None => System.realloc(block, layout, size),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        unsafe {
            match raw::RedisModule_Calloc {
                Some(calloc) if layout.align() <= ALIGNMENT => calloc(1, layout.size()).cast(),
                Some(_) => ptr::null_mut(),
                None => System.alloc_zeroed(layout),
            }
        }
    }
}
