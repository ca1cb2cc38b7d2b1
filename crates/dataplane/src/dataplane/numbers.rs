//! Gives out serial numbers.

use libbpf_rs::{MapCore, MapFlags};

use super::Dataplane;
use crate::{
    abi::Pod,
    load::{META_KEY, read_meta},
    serials::Due,
    time,
};

impl Dataplane {
    /// Returns a serial number that no flow of this instance has, or has had lately. The caller must skip numbers of its
    /// own pairs, which have no records.
    pub fn next_serial(&self) -> u32 {
        let serial = loop {
            let mut serials = self.serials.lock();
            match serials.next() {
                Ok(serial) => break serial,
                Err(Due::Reserve(to)) => {
                    // Write under the lock, so that the number never goes back.
                    if let Ok(mut meta) = read_meta(&self.maps.meta) {
                        meta.next_serial = to;
                        let _ = self.maps.meta.update(&META_KEY, meta.bytes(), MapFlags::ANY);
                    }
                }
                // Seldom: the reaper's walks have looked before.
                Err(Due::Look) => {
                    drop(serials);
                    if let Err(error) = self.scan_flows(drop) {
                        tracing::error!(%error, "cannot look which serial numbers are in use: the next ones may be");
                        let mut serials = self.serials.lock();
                        let to = serials.begin_look();
                        serials.end_look(to);
                    }
                }
            }
        };
        self.start_times.lock().note(serial, time::now());
        serial
    }

    /// Returns true if a serial number was given out so lately that it cannot have been given out again.
    pub fn is_recent(&self, serial: u32) -> bool {
        self.serials.lock().is_recent(serial)
    }
}
