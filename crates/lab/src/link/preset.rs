//! Named links.

/// Link that tests and users refer to by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Name in a description.
    pub name: &'static str,
    /// Description that it stands for: one direction, for both ways.
    pub text: &'static str,
    /// Purpose.
    pub about: &'static str,
}

/// All presets. The legs have a rate that the emulator carries in time, and a queue of the product of rate and
/// round trip, 256 KiB at least.
pub const PRESETS: [Preset; 7] = [
    Preset {
        name: "wire",
        text: "delay=0ms",
        about: "no delay, no loss, no limit",
    },
    Preset {
        name: "rtt1",
        text: "rtt=1ms,100Mbit,queue=256KiB",
        about: "a leg of 1 ms round trip: the same building",
    },
    Preset {
        name: "rtt20",
        text: "rtt=20ms,100Mbit,queue=256KiB",
        about: "a leg of 20 ms round trip: the same country",
    },
    Preset {
        name: "rtt100",
        text: "rtt=100ms,100Mbit,queue=1280KiB",
        about: "a leg of 100 ms round trip: another continent",
    },
    Preset {
        name: "rtt300",
        text: "rtt=300ms,100Mbit,queue=3750KiB",
        about: "a leg of 300 ms round trip: the other side of the globe",
    },
    Preset {
        name: "bad",
        text: "10ms,100Mbit,queue=256KiB,jitter=2ms,loss=0.5%,reorder=1%,reorder-delay=5ms,dup=0.5%",
        about: "20 ms round trip with losses, jitter, reordering and duplicates",
    },
    Preset {
        name: "bursty",
        text: "10ms,100Mbit,queue=256KiB,burst=0.1%:25%",
        about: "20 ms round trip with losses of four packets in a row, 0.4 % of all",
    },
];

/// Returns the description that the preset `name` stands for.
pub(super) fn text(name: &str) -> Option<&'static str> {
    PRESETS
        .iter()
        .find(|preset| preset.name == name)
        .map(|preset| preset.text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::LinkSpec;
    use super::*;

    #[test]
    fn every_preset_is_a_link_and_no_preset_uses_another() {
        for preset in PRESETS {
            let link: LinkSpec = preset.name.parse().unwrap();
            assert_eq!(link, preset.text.parse().unwrap(), "{preset:?}");
            link.check().unwrap();
        }
    }

    #[test]
    fn the_legs_have_their_round_trips() {
        for (name, ms) in [("rtt1", 1), ("rtt20", 20), ("rtt100", 100), ("rtt300", 300)] {
            let link: LinkSpec = name.parse().unwrap();
            assert_eq!(
                link.to_server.delay + link.to_client.delay,
                Duration::from_millis(ms)
            );
        }
    }
}
