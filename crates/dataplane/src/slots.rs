//! Maps the slots of flows that have sockets: an array that the kernel half and this process share.

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    abi::ls_slot,
    grace::{Grace, Moment},
    mode::Mode,
};

/// Divisor of the share of slots that is kept for flows that come back: their packets wait for sockets, while a pair that
/// is not spliced is relayed.
const RESERVED: u32 = 8;

/// Holds the mapped array and its free slots.
pub(crate) struct SlotTable {
    base: NonNull<ls_slot>,
    len: u32,
    mapped: usize,
    /// Free slots, in the order in which they were freed. Each rests until its moment: a program that found it just
    /// before may still write to it, and must not write into another flow.
    free: Mutex<VecDeque<(u32, Option<Moment>)>>,
    grace: Arc<Grace>,
}

// SAFETY: the mapping is shared memory that lives as long as the table. Every access is atomic, except those of a slot's
// owner to what only it writes (`Slot::fill`, and the keys).
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
    pub(crate) fn map(map: BorrowedFd<'_>, len: u32, grace: Arc<Grace>) -> io::Result<Arc<SlotTable>> {
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
            grace,
        }))
    }

    /// Adds every slot that is free in the mapping, and returns the indices of the others. `adopted` is true for a
    /// predecessor's slots, of which one may have been freed a moment ago.
    pub(crate) fn take_over(&self, adopted: bool) -> Vec<u32> {
        let rested = adopted.then(|| self.grace.next());
        let (unused, used): (Vec<_>, Vec<_>) =
            (0..self.len).partition(|&index| self.mode(index) == Mode::Free);
        let mut free = self.free.lock();
        free.extend(unused.into_iter().map(|index| (index, rested)));
        used
    }

    /// Takes the index of a free slot; `None` if all but `spared` ones are in use.
    pub(crate) fn take(&self, spared: u32) -> Option<u32> {
        let mut free = self.free.lock();
        let &(index, rested) = free.front().filter(|_| free.len() > spared as usize)?;
        if rested.is_some_and(|at| !self.grace.has_passed(at)) {
            return None;
        }
        free.pop_front();
        Some(index)
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of slots that are kept for flows that come back.
    pub(crate) fn reserve(&self) -> u32 {
        (self.len / RESERVED).max(u32::from(self.len > 1))
    }

    /// Returns the number of free slots, including those that rest.
    pub(crate) fn free(&self) -> u32 {
        self.free.lock().len() as u32
    }

    /// Takes a slot back.
    pub(crate) fn put_back(&self, index: u32) {
        let mut free = self.free.lock();
        free.push_back((index, Some(self.grace.next())));
    }

    /// Returns the present mode of a slot. Waits while another processor wakes a pair: that takes less than a microsecond,
    /// unless the processor is stopped meanwhile.
    pub(crate) fn mode(&self, index: u32) -> Mode {
        let element = self.at(index).as_ptr();
        // SAFETY: an aligned u32 within the mapping. No reference is made to the slot, and this process accesses the field as
        // this atomic only, once `Slot::fill` is done; no other user asks for the mode of a slot before that.
        let raw = unsafe { AtomicU32::from_ptr(&raw mut (*element).mode) };
        loop {
            match Mode::from_raw(raw.load(Ordering::SeqCst)) {
                Some(mode) => return mode,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Returns the address of a slot.
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{
        abi::{PerSide, Pod, Side, ls_leg},
        grace::tests::Kernel,
        slot::Slot,
    };

    /// Returns a table that is mapped from an empty file.
    fn table(len: u32, adopted: bool) -> (Arc<SlotTable>, Arc<Grace>, Kernel) {
        let file = tempfile::tempfile().expect("a file");
        let bytes = size_of::<ls_slot>() * len as usize;
        file.set_len(bytes as u64).expect("room for it");
        let (grace, kernel) = Kernel::new();
        let grace = Arc::new(grace);
        let table = SlotTable::map(file.as_fd(), len, grace.clone()).expect("a mapping");
        assert!(Slot::take_over(&table, adopted).is_empty());
        (table, grace, kernel)
    }

    #[test]
    fn the_last_slots_are_for_flows_that_come_back() {
        for (len, reserve) in [(1, 0), (2, 1), (8, 1), (64, 8), (4096, 512)] {
            let (table, _grace, _kernel) = table(len, false);
            assert_eq!(table.reserve(), reserve);
            let spare: Vec<Slot> = std::iter::from_fn(|| Slot::take(&table, reserve)).collect();
            assert_eq!((spare.len() as u32, table.free()), (len - reserve, reserve));
            let rest: Vec<Slot> = std::iter::from_fn(|| Slot::take(&table, 0)).collect();
            assert_eq!((rest.len() as u32, table.free()), (reserve, 0));
            drop(rest);
            assert_eq!(table.free(), reserve);
            assert!(Slot::take(&table, 0).is_none(), "they rest");
        }
    }

    #[test]
    fn what_is_freed_rests_for_a_grace_period_that_begins_then() {
        let (table, grace, kernel) = table(3, false);
        let [a, b, c] = [(); 3].map(|()| Slot::take(&table, 0).expect("a free one"));
        let (first, second) = (a.index(), b.index());
        drop(a);
        kernel.begins.recv().expect("a period begins");
        drop(b);
        assert!(Slot::take(&table, 0).is_none(), "no time is enough");
        kernel.ends.send(()).expect("it is waited for");
        let a = std::iter::from_fn(|| Some(Slot::take(&table, 0)))
            .flatten()
            .next();
        assert_eq!(a.as_ref().map(Slot::index), Some(first));
        assert!(
            Slot::take(&table, 0).is_none(),
            "it was freed after the period had begun"
        );
        kernel.pass(&grace);
        let b = Slot::take(&table, 0).expect("it has rested");
        assert_eq!(b.index(), second);
        drop(c);
    }

    #[test]
    fn a_leg_is_copied_whole() {
        let (table, _grace, _kernel) = table(1, false);
        let slot = Slot::take(&table, 0).expect("a free one");
        let legs = PerSide::from_fn(|side| {
            let bytes: Vec<u8> = (0..size_of::<ls_leg>())
                .map(|i| (i + 1 + side as usize) as u8)
                .collect();
            ls_leg::from_bytes(&bytes).expect("enough bytes")
        });
        slot.fill(1, legs, Mode::Track);
        for side in Side::BOTH {
            // A copy lacks the fields that only the other layout has.
            if cfg!(not(feature = "other-layout")) {
                assert_eq!(slot.leg(side).bytes(), legs[side].bytes(), "{side:?}");
            }
        }
    }

    #[test]
    fn what_a_predecessor_freed_rests_too() {
        let (table, grace, kernel) = table(5, true);
        assert!(Slot::take(&table, 0).is_none());
        kernel.pass(&grace);
        assert!(Slot::take(&table, 0).is_some());
    }
}
