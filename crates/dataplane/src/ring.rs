//! Reads a ring in which the kernel half leaves samples for user space.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use libbpf_rs::{MapCore, MapHandle, RingBuffer, RingBufferBuilder};
use parking_lot::Mutex;

use crate::flows::to_io;

/// Reads a ring. Its descriptor is readable when there is a sample.
pub struct Ring<T> {
    ring: RingBuffer<'static>,
    read: Arc<Mutex<Vec<T>>>,
    _map: MapHandle,
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Ring<T> {
    /// Opens a ring. `parse` turns a sample into a value; a sample for which it returns `None` is skipped.
    pub(crate) fn open(map: &MapHandle, parse: fn(&[u8]) -> Option<T>) -> io::Result<Ring<T>> {
        let map = MapHandle::try_from(map).map_err(to_io)?;
        let read = Arc::new(Mutex::new(Vec::new()));
        let into = read.clone();
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&map as &dyn MapCore, move |sample| {
                if let Some(one) = parse(sample) {
                    into.lock().push(one);
                }
                0
            })
            .map_err(to_io)?;
        Ok(Ring {
            ring: builder.build().map_err(to_io)?,
            read,
            _map: map,
        })
    }

    /// Returns the values since the last call.
    ///
    /// # Errors
    /// Returns an error if the ring cannot be read.
    pub fn take(&mut self) -> io::Result<Vec<T>> {
        self.ring.poll(Duration::ZERO).map_err(to_io)?;
        Ok(std::mem::take(&mut *self.read.lock()))
    }
}

impl<T> AsFd for Ring<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's epoll descriptor lives as long as the ring, which self owns.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}
