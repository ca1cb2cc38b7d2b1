//! The slots of flows that have sockets: an array that the kernel half and this process both have mapped.

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    abi::ls_slot,
    slot::{Mode, Slot},
};

/// How long a slot rests before it is used again: a packet that found it just before it was freed is done by then
/// (softirqs end within milliseconds), and cannot write into another flow.
const REST: Duration = Duration::from_millis(500);

/// The mapped array and which of its slots are free.
pub(crate) struct SlotTable {
    base: NonNull<ls_slot>,
    len: u32,
    mapped: usize,
    free: Mutex<VecDeque<(u32, Option<Instant>)>>,
}

// SAFETY: the mapping is shared memory that lives as long as the table; every access is volatile or atomic.
unsafe impl Send for SlotTable {}
// SAFETY: as above; the free list has a lock of its own.
unsafe impl Sync for SlotTable {}

impl fmt::Debug for SlotTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotTable")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl SlotTable {
    /// Maps the array behind `map`, which has `len` elements. All are taken until [`SlotTable::take_over`].
    pub(crate) fn map(map: BorrowedFd<'_>, len: u32) -> io::Result<Arc<SlotTable>> {
        let mapped = size_of::<ls_slot>() * len as usize;
        // SAFETY: a new mapping of a file that we hold; the kernel checks its length.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave a null pointer"))?;
        Ok(Arc::new(SlotTable {
            base,
            len,
            mapped,
            free: Mutex::default(),
        }))
    }

    /// Hands out every slot that is free in the mapping, and takes over the others as they are (adoption).
    pub(crate) fn take_over(self: &Arc<Self>) -> Vec<Slot> {
        let all = (0..self.len).map(|index| Slot::new(self.clone(), index));
        let (used, unused): (Vec<_>, Vec<_>) = all.partition(|s| s.mode() != Mode::Free);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in unused {
            free.push_back((slot.leave(), None));
        }
        used
    }

    /// A free slot, or `None` if all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Slot> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let &(index, freed) = free.front()?;
        if freed.is_some_and(|at| at.elapsed() < REST) {
            return None;
        }
        free.pop_front();
        Some(Slot::new(self.clone(), index))
    }

    /// Takes a slot back.
    pub(crate) fn put_back(&self, index: u32) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push_back((index, Some(Instant::now())));
    }

    pub(crate) fn at(&self, index: u32) -> NonNull<ls_slot> {
        debug_assert!(index < self.len);
        // SAFETY: an index within the mapping.
        unsafe { self.base.add(index as usize) }
    }
}

impl Drop for SlotTable {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, of that length; no slot is left (each holds the table).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}
