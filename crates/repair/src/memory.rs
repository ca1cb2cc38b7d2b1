//! The process's memory.

/// Gives the pages that the allocator keeps for later back to the system: after a burst of connections, glibc would keep
/// what their tasks and buffers needed. Takes a few milliseconds for tens of megabytes. Does nothing with other C
/// libraries.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim(3)` may be called at any time from any thread; only pages that nobody has allocated go.
    unsafe {
        libc::malloc_trim(0)
    };
}
