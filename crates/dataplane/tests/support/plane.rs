//! Opens a data plane for a test.

use std::{
    cell::Cell,
    ops::{Deref, Range},
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use longsplice_dataplane::{Dataplane, Leg, Options, PerSide};

/// Range of the network namespace in `ls_meta` of bpf/abi.h.
const NAMESPACE: Range<usize> = 8..16;

/// Returns a name for pins that no other test has.
pub fn unique_instance() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "packets-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Holds a data plane whose pins go with it.
pub struct Plane {
    pub plane: Dataplane,
    pub instance: String,
    /// True if another flow may use it.
    reusable: Cell<bool>,
}

impl Plane {
    pub fn open() -> Plane {
        let instance = unique_instance();
        let (plane, orphans) = Dataplane::open(&options(&instance)).expect("these tests need root");
        let plane = Plane {
            plane,
            instance,
            reusable: Cell::new(true),
        };
        assert!(orphans.is_empty());
        plane
    }

    /// Wraps a data plane that was opened over an instance's pins.
    pub fn adopted(plane: Dataplane, instance: &str) -> Rc<Plane> {
        Rc::new(Plane {
            plane,
            instance: instance.to_owned(),
            reusable: Cell::new(false),
        })
    }

    /// Moves it to this thread's namespace: the pins name it, and a daemon of another one would not adopt them.
    pub fn move_here(&self, namespace: u64) {
        let path = format!("/sys/fs/bpf/longsplice-{}/meta", self.instance);
        let meta = MapHandle::from_pinned_path(path).expect("a pinned map");
        let found = meta.lookup(&[0; 4], MapFlags::ANY).expect("the map");
        let mut value = found.expect("the element");
        value[NAMESPACE].copy_from_slice(&namespace.to_ne_bytes());
        meta.update(&[0; 4], &value, MapFlags::ANY).expect("written");
        self.keep_lo_forwarding().expect("a sysctl");
    }

    /// Removes the records of these legs, whatever flow they belong to.
    pub fn end(&self, legs: PerSide<Leg>) {
        for leg in legs {
            if let Some(d) = self.direction(leg) {
                self.unregister(d.serial, PerSide::new(leg, d.far));
            }
            self.remove_alone(leg);
        }
    }

    /// Marks it as unusable for another flow.
    pub fn spoil(&self) {
        self.reusable.set(false);
    }

    /// Removes what flows have left, and detaches the programs. Returns true if it is as good as new then.
    pub fn is_clean(&self) -> bool {
        if !self.reusable.get() {
            return false;
        }
        for ifindex in self.linked_interfaces() {
            self.detach(ifindex);
        }
        let alone = self.legs_alone().expect("a scan");
        alone.into_iter().for_each(|leg| self.remove_alone(leg));
        let mut flows = Vec::new();
        self.scan(|d| flows.push((d.serial, PerSide::new(d.leg, d.far))))
            .expect("a scan");
        for (serial, legs) in flows {
            self.unregister(serial, legs);
        }
        self.events().and_then(|mut events| events.take()).is_ok()
    }
}

pub fn options(instance: &str) -> Options {
    Options {
        instance: instance.to_owned(),
        max_flows: 16,
        max_slots: 512,
    }
}

impl Deref for Plane {
    type Target = Dataplane;

    fn deref(&self) -> &Dataplane {
        &self.plane
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.plane.remove();
    }
}
