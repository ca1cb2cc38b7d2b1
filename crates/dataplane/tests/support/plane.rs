//! A data plane of a test's own.

use std::{
    cell::Cell,
    ops::Deref,
    rc::Rc,
    sync::atomic::{AtomicU32, Ordering},
};

use longsplice_dataplane::{Dataplane, Leg, Options};

/// A name for pins that no other test has.
pub fn unique_instance() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "packets-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A data plane whose pins go with it.
pub struct Plane {
    pub plane: Dataplane,
    pub instance: String,
    /// Another flow may use it.
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

    /// A data plane that was opened over an instance's pins.
    pub fn adopted(plane: Dataplane, instance: &str) -> Rc<Plane> {
        Rc::new(Plane {
            plane,
            instance: instance.to_owned(),
            reusable: Cell::new(false),
        })
    }

    /// Removes what these legs have, whatever flow it is.
    pub fn end(&self, legs: [Leg; 2]) {
        for leg in legs {
            if let Some(d) = self.direction(leg) {
                self.unregister(d.serial, [leg, d.far]);
            }
            self.remove_alone(leg);
        }
    }

    /// No other flow is to use it.
    pub fn spoil(&self) {
        self.reusable.set(false);
    }

    /// Removes whatever flows have left, and takes the programs off; whether it is as good as new then.
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
        self.scan(|d| flows.push((d.serial, [d.leg, d.far])))
            .expect("a scan");
        for (serial, legs) in flows {
            self.unregister(serial, legs);
        }
        self.set_record_count(0);
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
