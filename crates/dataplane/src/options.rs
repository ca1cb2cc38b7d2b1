//! Configures the kernel half, and derives the sizes of its maps.

/// Configures the kernel half.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the pins.
    pub instance: String,
    /// Maximum number of flows. Ignored if pins of a predecessor have a size already.
    pub max_flows: u32,
    /// Maximum number of flows that have sockets. Ignored if pins of a predecessor have a size already.
    pub max_slots: u32,
}

impl Options {
    /// Returns the number of elements of the table. It exceeds the number of flows: freed elements rest for a moment, as
    /// slots do, and legs that have come back may stand alone in some.
    pub(crate) fn elements(&self) -> u32 {
        self.max_flows + self.max_slots
    }

    /// Returns the number of elements of the map `buckets`: each has two buckets.
    pub(crate) fn buckets(&self) -> u32 {
        self.max_flows.max(self.max_slots).next_power_of_two()
    }
}
