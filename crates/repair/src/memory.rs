//! Returns memory of the process to the system.

/// Returns the pages that the allocator keeps for later to the system: after a burst of connections, glibc would keep
/// the memory of their tasks and buffers. Takes a few milliseconds for tens of megabytes. Does nothing with other C
/// libraries.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim(3)` may be called at any time from any thread; it releases only pages that are not
    // allocated.
    unsafe {
        libc::malloc_trim(0)
    };
}
