//! Changes the table of flows from user space, while programs walk it (bpf/flow.h, docs/decisions/0017).

use std::{
    collections::VecDeque,
    io, mem,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use crate::{
    abi::{Leg, PerSide, Pod, Side, ls_entry, ls_flow, ls_record},
    flows::{is_alone, is_left, is_present, to_io},
    grace::{Grace, Moment},
    run,
    skel::types::ls_placement,
    view::View,
};

/// Number of elements that one system call returns during a scan.
const BATCH: u32 = 1024;

/// Time between two collections for an addition, in times that the first one takes: they take a twentieth of a processor at
/// most.
const COLLECTION_REST: u32 = 20;

/// Limits the replaced flows whose last state is kept: 4 MiB. There are that many only at thousands of replacements a second.
const MOST_REPLACED: usize = 16_384;

/// Holds the bytes of an element that was never used.
const UNUSED: [u8; size_of::<ls_flow>()] = [0; size_of::<ls_flow>()];

/// Describes a direction to add.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) leg: Leg,
    pub(crate) rec: ls_record,
    /// True to replace a present one; without it, a present one is an error.
    pub(crate) replace: bool,
}

/// Tracks the elements in use.
#[derive(Debug)]
struct Elements {
    taken: Vec<bool>,
    /// First element that was never used, like all behind it.
    fresh: u32,
    /// Freed elements, each until its moment: a program that found it just before it was removed may still write to it,
    /// and must not write into another flow.
    resting: VecDeque<(u32, Moment)>,
    grace: Arc<Grace>,
}

impl Elements {
    fn take(&mut self) -> Option<u32> {
        let grace = &self.grace;
        let rested = self.resting.pop_front_if(|(_, at)| grace.has_passed(*at));
        let index = match rested {
            Some((index, _)) => index,
            None if self.fresh as usize >= self.taken.len() => return None,
            None => {
                self.fresh += 1;
                self.fresh - 1
            }
        };
        self.taken[index as usize] = true;
        Some(index)
    }

    fn give_back(&mut self, index: u32) {
        if std::mem::take(&mut self.taken[index as usize]) {
            self.resting.push_back((index, self.grace.next()));
        }
    }
}

/// Holds the table. Each change of its chains takes the lock.
#[derive(Debug)]
pub(crate) struct Table {
    view: View,
    /// Map of the buckets, which only programs use; held so that all of the table is counted as this process's.
    _buckets: MapHandle,
    insert: OwnedFd,
    remove: OwnedFd,
    elements: Mutex<Elements>,
    /// Time from which on an addition may collect what replaced flows have left.
    next_collection: Mutex<Instant>,
    /// Last state of such flows, at most [`MOST_REPLACED`].
    replaced: Mutex<Vec<ls_flow>>,
}

/// Returns the number by which chains name a direction.
pub(crate) fn number(index: u32, side: Side) -> u32 {
    2 * index + side.index() as u32 + 1
}

impl Table {
    /// Wraps the maps. `adopted` is true for a predecessor's table, whose elements are searched.
    pub(crate) fn new(
        [map, buckets]: [MapHandle; 2],
        [insert, remove, lookup]: [OwnedFd; 3],
        adopted: bool,
        grace: Arc<Grace>,
    ) -> io::Result<Table> {
        let len = map.max_entries();
        let table = Table {
            view: View::new(map, lookup),
            _buckets: buckets,
            insert,
            remove,
            elements: Mutex::new(Elements {
                taken: vec![false; len as usize],
                fresh: if adopted { len } else { 0 },
                resting: VecDeque::new(),
                grace,
            }),
            next_collection: Mutex::new(Instant::now()),
            replaced: Mutex::default(),
        };
        if adopted {
            table.find_elements()?;
        }
        Ok(table)
    }

    fn find_elements(&self) -> io::Result<()> {
        let mut elements = self.elements.lock();
        let mut left = Vec::new();
        elements.fresh = 0;
        for (index, flow) in self.all(u32::MAX)? {
            if *flow.bytes() != UNUSED {
                elements.fresh = index + 1;
            }
            elements.taken[index as usize] = !is_left(&flow);
            left.extend(is_left(&flow).then_some(index));
        }
        let fresh = elements.fresh;
        for index in left.into_iter().filter(|&index| index < fresh) {
            // It may still be in a chain, if its process died on the way.
            elements.taken[index as usize] = true;
            self.clear(index, &mut elements);
        }
        Ok(())
    }

    /// Calls `work` while no element is removed or given to another flow. Grace periods do not wait for programs that
    /// run as system calls, because such a thread may be preempted in one.
    pub(crate) fn at_rest<T>(&self, work: impl FnOnce() -> T) -> T {
        let _elements = self.elements.lock();
        work()
    }

    /// Adds both directions, or none: `AlreadyExists` if a tuple has one, `Other` if there is no room.
    pub(crate) fn add(&self, entries: PerSide<Entry>) -> io::Result<()> {
        match self.try_add(&entries) {
            // A client that reuses its port fills one chain with what its replaced flows have left.
            Err(error) if error.kind() == io::ErrorKind::Other && self.collect()? => self.try_add(&entries),
            added => added,
        }
    }

    /// Collects what replaced flows have left. Returns false if that was done a moment ago: a large table takes its time.
    fn collect(&self) -> io::Result<bool> {
        let mut next = self.next_collection.lock();
        let started = Instant::now();
        if started < *next {
            return Ok(false);
        }
        self.scan(|_| {})?;
        *next = Instant::now() + COLLECTION_REST * started.elapsed();
        Ok(true)
    }

    fn try_add(&self, entries: &PerSide<Entry>) -> io::Result<()> {
        let mut elements = self.elements.lock();
        let index = elements
            .take()
            .ok_or_else(|| io::Error::other("the table is full"))?;
        let added = self.fill(index, entries);
        match &added {
            Ok(replaced) => replaced
                .iter()
                .flatten()
                .for_each(|&old| self.take_away(old, &mut elements)),
            Err(_) => self.clear(index, &mut elements),
        }
        added.map(drop)
    }

    /// Writes and inserts the directions. Returns the numbers of those that they replaced.
    fn fill(&self, index: u32, entries: &PerSide<Entry>) -> io::Result<PerSide<Option<u32>>> {
        let mut flow = ls_flow::default();
        for (direction, entry) in flow.from.iter_mut().zip(entries) {
            direction.key = entry.leg.tuple();
            direction.rec = entry.rec;
            direction.rec.placement = ls_placement::LS_NONE.0 as u8;
        }
        self.write(index, &flow)?;
        let mut replaced = PerSide::both(None);
        for side in Side::BOTH {
            let entry = &entries[side];
            replaced[side] = if entry.replace {
                self.view.lookup(entry.leg)
            } else {
                None
            };
            self.insert(index, side, entry.rec.placement, entry.replace)?;
        }
        Ok(replaced)
    }

    /// Inserts a direction that was written into an element: `AlreadyExists` if its tuple has one, unless `replace`.
    fn insert(&self, index: u32, side: Side, placement: u8, replace: bool) -> io::Result<()> {
        let argument = ls_entry {
            number: number(index, side),
            placement: placement.into(),
            replace: replace.into(),
        };
        match run::with_argument(self.insert.as_fd(), argument.bytes())? {
            0 => Ok(()),
            1 => Err(io::ErrorKind::AlreadyExists.into()),
            _ => Err(io::Error::other("too many flows fall on one place of the table")),
        }
    }

    /// Adds the present directions of another table's flow as they are, or none. Returns its element. Fails with
    /// `AlreadyExists` if a tuple has a direction, `Other` if there is no room.
    pub(crate) fn take_in(&self, flow: &ls_flow) -> io::Result<u32> {
        let mut elements = self.elements.lock();
        let index = elements
            .take()
            .ok_or_else(|| io::Error::other("the table is full"))?;
        let mut hidden = *flow;
        (hidden.from.iter_mut()).for_each(|d| d.rec.placement = ls_placement::LS_NONE.0 as u8);
        let added = self.write(index, &hidden).and_then(|()| {
            let there = |side: &Side| is_present(&flow.from[*side].rec);
            Side::BOTH
                .into_iter()
                .filter(there)
                .try_for_each(|side| self.insert(index, side, flow.from[side].rec.placement, false))
        });
        if added.is_err() {
            self.clear(index, &mut elements);
        }
        added.map(|()| index)
    }

    /// Returns the number of a leg's direction, if `is_meant` accepts its record.
    pub(crate) fn number_of(&self, leg: Leg, is_meant: impl Fn(&ls_record) -> bool) -> Option<u32> {
        let (number, flow, side) = self.at_rest(|| self.view.read_flow(leg))?;
        is_meant(&flow.from[side].rec).then_some(number)
    }

    /// Waits until programs that run now are done, or the kernel has refused for so long.
    pub(crate) fn wait_for_grace(&self, longest: Duration) -> io::Result<()> {
        let grace = Arc::clone(&self.elements.lock().grace);
        grace.wait(longest)
    }

    /// Returns the elements.
    pub(crate) fn map(&self) -> &MapHandle {
        self.view.map()
    }

    /// Removes a direction if `is_meant` accepts its record. Returns true if it was there. Under the lock no other can
    /// take its place.
    pub(crate) fn remove(&self, leg: Leg, is_meant: impl Fn(&ls_record) -> bool) -> bool {
        let mut elements = self.elements.lock();
        let Some((number, flow, side)) = self.view.read_flow(leg) else {
            return false;
        };
        let there = is_meant(&flow.from[side].rec);
        if there {
            self.take_away(number, &mut elements);
        }
        there
    }

    /// Removes what an element has.
    fn clear(&self, index: u32, elements: &mut Elements) {
        for side in Side::BOTH {
            if elements.taken[index as usize] {
                self.take_away(number(index, side), elements);
            }
        }
    }

    fn take_away(&self, number: u32, elements: &mut Elements) {
        if self.remove_direction(number) {
            // A SYN may have just taken both directions: the other one must not be left in its chain.
            let other = ((number - 1) ^ 1) + 1;
            self.remove_direction(other);
            elements.give_back((number - 1) / 2);
        }
    }

    /// Removes a direction, if it is in its chain. Returns true if nothing is left of its flow.
    fn remove_direction(&self, number: u32) -> bool {
        let argument = ls_entry {
            number,
            ..Default::default()
        };
        run::with_argument(self.remove.as_fd(), argument.bytes())
            .inspect_err(|error| tracing::error!(%error, number, "cannot remove a direction"))
            .is_ok_and(|left| left != 0)
    }

    /// Gives the directions of a flow that has a slot records of their own, or removes them. Returns true if it was
    /// there, with this serial number.
    pub(crate) fn part(
        &self,
        serial: u32,
        legs: PerSide<Leg>,
        records: PerSide<Option<ls_record>>,
    ) -> io::Result<bool> {
        let mut elements = self.elements.lock();
        let numbers = legs.map(|leg| self.view.lookup(leg));
        let (Some(client), Some(server)) = (numbers.client, numbers.server) else {
            return Ok(false);
        };
        let index = (client - 1) / 2;
        let mut flow = self.view.read(index)?;
        if server != client + 1 || flow.from.iter().any(|d| d.rec.serial != serial) {
            return Ok(false);
        }
        for (direction, rec) in flow.from.iter_mut().zip(&records) {
            let old = direction.rec;
            if let Some(rec) = rec {
                direction.rec = ls_record {
                    placement: old.placement,
                    r#where: old.r#where,
                    serial: old.serial,
                    ..*rec
                };
            }
        }
        // Write all other fields first: a packet must not find half of it.
        self.write(index, &flow)?;
        for (direction, rec) in flow.from.iter_mut().zip(&records) {
            if let Some(rec) = rec {
                direction.rec.placement = rec.placement;
            }
        }
        self.write(index, &flow)?;
        for (number, rec) in [client, server].into_iter().zip(&records) {
            if rec.is_none() {
                self.take_away(number, &mut elements);
            }
        }
        Ok(true)
    }

    /// Returns the flow that has a direction with this leg, and the side of it.
    pub(crate) fn find(&self, leg: Leg) -> Option<(ls_flow, Side)> {
        self.at_rest(|| self.view.find(leg))
    }

    /// Calls `each` for every flow, in no order; one that is added or removed meanwhile may be missed. Frees elements
    /// that the kernel half has left of replaced flows, and those whose process died between the two directions of a flow.
    pub(crate) fn scan(&self, mut each: impl FnMut(&ls_flow)) -> io::Result<()> {
        let mut left = Vec::new();
        let used = self.elements.lock().fresh;
        for (index, flow) in self.all(used)? {
            match is_left(&flow) {
                true => left.push(index),
                false => each(&flow),
            }
        }
        let mut elements = self.elements.lock();
        for index in left {
            if !elements.taken[index as usize] {
                continue;
            }
            // No flow is half inserted under the lock.
            let flow = self.view.read(index)?;
            if is_left(&flow) {
                self.clear(index, &mut elements);
                let mut replaced = self.replaced.lock();
                if replaced.len() < MOST_REPLACED {
                    replaced.push(flow);
                }
            }
        }
        Ok(())
    }

    /// Returns the last state of the flows that scans have found replaced since the last call.
    pub(crate) fn take_replaced(&self) -> Vec<ls_flow> {
        mem::take(&mut self.replaced.lock())
    }

    /// Returns the flow with this serial number; legs that stand alone are none.
    pub(crate) fn find_serial(&self, serial: u32) -> io::Result<Option<ls_flow>> {
        let used = self.elements.lock().fresh;
        let is_its = |rec: &ls_record| rec.serial == serial && is_present(rec) && !is_alone(rec);
        let found = self
            .all(used)?
            .find(|(_, flow)| flow.from.iter().any(|d| is_its(&d.rec)));
        Ok(found.map(|(_, flow)| flow))
    }

    /// Returns every element below `end`.
    fn all(&self, end: u32) -> io::Result<impl Iterator<Item = (u32, ls_flow)>> {
        let batches = self.view.map().lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        Ok(batches
            .map_err(to_io)?
            .map_while(|(key, value)| {
                let index = u32::from_ne_bytes(*key.first_chunk()?);
                Some((index, ls_flow::from_bytes(&value)?))
            })
            .take_while(move |&(index, _)| index < end))
    }

    fn write(&self, index: u32, flow: &ls_flow) -> io::Result<()> {
        let key = index.to_ne_bytes();
        self.view
            .map()
            .update(&key, flow.bytes(), MapFlags::ANY)
            .map_err(to_io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grace::tests::Kernel;

    #[test]
    fn what_was_given_back_rests_before_it_is_used_again() {
        let (grace, kernel) = Kernel::new();
        let grace = Arc::new(grace);
        let mut elements = Elements {
            taken: vec![false; 3],
            fresh: 0,
            resting: VecDeque::new(),
            grace: grace.clone(),
        };
        assert_eq!((elements.take(), elements.take()), (Some(0), Some(1)));
        elements.give_back(1);
        kernel.begins.recv().expect("a grace period begins");
        elements.give_back(0);
        elements.give_back(0);
        assert_eq!((elements.take(), elements.take()), (Some(2), None));
        kernel.ends.send(()).expect("it is waited for");
        let rested = std::iter::from_fn(|| Some(elements.take())).flatten().next();
        assert_eq!(rested, Some(1));
        assert_eq!(elements.take(), None, "the period had begun before");
        kernel.pass(&grace);
        assert_eq!((elements.take(), elements.take()), (Some(0), None));
    }
}
