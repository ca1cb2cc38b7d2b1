//! The slots of flows that have sockets: an array that the kernel half and this process both have mapped.

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
    time::{Duration, Instant},
};

use crate::{
    abi::{Leg, Side, ls_leg, ls_slot, socket_addr},
    peek::Peek,
    skel::types::{ls_mode, ls_slot_flag},
};

/// How long a slot rests before it is used again: a packet that found it just before it was freed is done by then
/// (softirqs end within milliseconds), and cannot write into another flow.
const REST: Duration = Duration::from_millis(500);

/// What a slot does with packets. The transitions Track to Drain to Final are made here; the last two by the kernel half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Packets pass untouched.
    Free,
    /// Packets go to the sockets; sequence numbers are noted.
    Track,
    /// New payload is forwarded while the sockets deliver the old.
    Drain,
    /// Constant translation.
    Final,
    /// A new connection took the place of the closing flow.
    Replaced,
    /// A socket was reset while it held bytes.
    Aborted,
}

impl Mode {
    fn from_raw(raw: u32) -> Mode {
        match ls_mode(raw) {
            ls_mode::LS_TRACK => Mode::Track,
            ls_mode::LS_DRAIN => Mode::Drain,
            ls_mode::LS_FINAL => Mode::Final,
            ls_mode::LS_REPLACED => Mode::Replaced,
            ls_mode::LS_ABORTED => Mode::Aborted,
            _ => Mode::Free,
        }
    }

    fn raw(self) -> u32 {
        match self {
            Mode::Free => ls_mode::LS_FREE,
            Mode::Track => ls_mode::LS_TRACK,
            Mode::Drain => ls_mode::LS_DRAIN,
            Mode::Final => ls_mode::LS_FINAL,
            Mode::Replaced => ls_mode::LS_REPLACED,
            Mode::Aborted => ls_mode::LS_ABORTED,
        }
        .0
    }
}

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
    /// Maps the array behind `map`, which has `len` elements. All are taken until [`SlotTable::release_unused`].
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
        let all = (0..self.len).map(|index| Slot {
            table: self.clone(),
            index,
        });
        let (used, unused): (Vec<_>, Vec<_>) = all.partition(|s| s.mode() != Mode::Free);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in unused {
            free.push_back((slot.index, None));
            std::mem::forget(slot);
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
        Some(Slot {
            table: self.clone(),
            index,
        })
    }

    fn at(&self, index: u32) -> NonNull<ls_slot> {
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

/// A slot that belongs to one flow; dropping it frees it.
#[derive(Debug)]
pub struct Slot {
    table: Arc<SlotTable>,
    index: u32,
}

impl Slot {
    /// Its number in the array.
    pub fn index(&self) -> u32 {
        self.index
    }

    fn field(&self, of: impl FnOnce(*mut ls_slot) -> *mut u32) -> &AtomicU32 {
        // SAFETY: a u32 within the mapping, aligned, that the table keeps alive; only atomic accesses are made.
        unsafe { AtomicU32::from_ptr(of(self.table.at(self.index).as_ptr())) }
    }

    fn mode_word(&self) -> &AtomicU32 {
        // SAFETY: the field of a valid element; no reference is made.
        self.field(|s| unsafe { &raw mut (*s).mode })
    }

    /// What it does with packets now.
    pub fn mode(&self) -> Mode {
        Mode::from_raw(self.mode_word().load(Ordering::SeqCst))
    }

    /// Changes the mode if it is `from`; whether it was. A full barrier: what is read of the legs afterwards is
    /// what the kernel half wrote before it saw the new mode, or it saw the new mode (bpf/track.h, `raise_cut`).
    pub fn switch(&self, from: Mode, to: Mode) -> bool {
        let done = self
            .mode_word()
            .compare_exchange(from.raw(), to.raw(), Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        fence(Ordering::SeqCst);
        done
    }

    /// Whether the windows are to be coupled (papers' section III-E).
    pub fn set_coupling(&self, on: bool) {
        let flags = if on { ls_slot_flag::LS_COUPLE.0 } else { 0 };
        // SAFETY: the field of a valid element; no reference is made.
        self.field(|s| unsafe { &raw mut (*s).flags })
            .store(flags, Ordering::SeqCst);
    }

    /// The flow's serial number.
    pub fn serial(&self) -> u32 {
        // SAFETY: the field of a valid element; no reference is made.
        self.field(|s| unsafe { &raw mut (*s).serial })
            .load(Ordering::Relaxed)
    }

    /// Bytes that the peer of this side may have in flight beyond what the far end acknowledged; 0: no limit.
    pub fn set_room(&self, side: Side, room: u32) {
        // SAFETY: the field of a valid element; no reference is made.
        self.field(|s| unsafe { &raw mut (*s).leg[side.index()].room })
            .store(room, Ordering::Relaxed);
    }

    /// Sets the timestamp offsets of both directions; `tsval[side]` is of the direction from that side's peer.
    pub fn set_timestamp_offsets(&self, tsval: [u32; 2]) {
        for side in Side::BOTH {
            let (x, o) = (side.index(), side.other().index());
            // SAFETY: fields of a valid element; no reference is made.
            self.field(|s| unsafe { &raw mut (*s).leg[x].rec.tsval_off })
                .store(tsval[x], Ordering::Relaxed);
            // SAFETY: as above.
            self.field(|s| unsafe { &raw mut (*s).leg[x].rec.tsecr_off })
                .store(tsval[o].wrapping_neg(), Ordering::Relaxed);
        }
    }

    /// The addresses of both legs, from the headers that their flow writes.
    pub(crate) fn legs(&self) -> [Leg; 2] {
        Side::BOTH.map(|side| {
            let rec = self.leg(side.other()).rec;
            Leg {
                peer: socket_addr(rec.daddr, rec.dport),
                local: socket_addr(rec.saddr, rec.sport),
            }
        })
    }

    /// A copy of a leg, while packets pass: each field is whole, the fields may be of different moments.
    pub(crate) fn leg(&self, side: Side) -> ls_leg {
        // SAFETY: a valid element; a volatile read of shared memory.
        unsafe { (&raw const (*self.table.at(self.index).as_ptr()).leg[side.index()]).read_volatile() }
    }

    /// Notes what a socket sent and received while nobody watched, just before its flow was registered.
    pub fn note_socket(&self, side: Side, peek: &Peek) {
        let i = side.index();
        // SAFETY: fields of a valid element; no reference is made (here and below).
        raise(self.field(|s| unsafe { &raw mut (*s).leg[i].cut }), peek.rcv_nxt);
        // SAFETY: as above.
        raise(
            self.field(|s| unsafe { &raw mut (*s).leg[i].loc_end }),
            peek.snd_nxt,
        );
        // SAFETY: as above.
        raise(
            self.field(|s| unsafe { &raw mut (*s).leg[i].loc_edge }),
            peek.offered_edge,
        );
    }

    /// Adds to the payload bytes of the direction from a side.
    pub fn add_bytes(&self, side: Side, bytes: u64) {
        // SAFETY: an aligned u64 within the mapping, which the table keeps alive; only an atomic access is made.
        let total = unsafe {
            AtomicU64::from_ptr(&raw mut (*self.table.at(self.index).as_ptr()).leg[side.index()].rec.bytes)
        };
        total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Fills the slot, mode last.
    pub(crate) fn fill(&self, serial: u32, legs: [ls_leg; 2], mode: Mode) {
        let slot = ls_slot {
            serial,
            leg: legs,
            ..Default::default()
        };
        // SAFETY: a valid element that is free: no packet finds it, and nobody else in this process has it.
        unsafe { self.table.at(self.index).as_ptr().write_volatile(slot) };
        self.mode_word().store(mode.raw(), Ordering::SeqCst);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.mode_word().store(Mode::Free.raw(), Ordering::SeqCst);
        let mut free = self.table.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push_back((self.index, Some(Instant::now())));
    }
}

/// Raises a sequence number unless it is there already.
fn raise(field: &AtomicU32, to: u32) {
    let mut now = field.load(Ordering::SeqCst);
    while (to.wrapping_sub(now) as i32) > 0 {
        match field.compare_exchange_weak(now, to, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return,
            Err(seen) => now = seen,
        }
    }
}
