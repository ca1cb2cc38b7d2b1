//! Reads a ring of the kernel half in a task.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Holds a reader whose descriptor is readable when there is data.
#[derive(Debug)]
pub(crate) struct Ring<R, T> {
    reader: R,
    take: fn(&mut R) -> io::Result<Vec<T>>,
    ready: AsyncFd<OwnedFd>,
}

impl<R: AsFd, T> Ring<R, T> {
    pub(crate) fn new(reader: R, take: fn(&mut R) -> io::Result<Vec<T>>) -> io::Result<Self> {
        // The deprecation is about closed descriptors; this duplicate is ours alone. (Its successor is `unsafe`.)
        #[allow(deprecated)]
        let ready = AsyncFd::with_interest(reader.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Ring { reader, take, ready })
    }

    /// Returns the entries that have come, at least one.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<T>> {
        loop {
            let mut ready = self.ready.readable().await?;
            let batch = (self.take)(&mut self.reader)?;
            if !batch.is_empty() {
                return Ok(batch);
            }
            ready.clear_ready();
        }
    }
}
