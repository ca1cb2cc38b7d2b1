//! Frames leave in XDP only by interfaces whose driver reports that it takes them, which it can since Linux 6.3.

use longsplice_dataplane::{Side, XdpMode};

use crate::support::flow::{Flow, Plan};

/// Returns true if this kernel's drivers report their XDP features.
fn drivers_can_say() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it has a name");
    let mut numbers = release
        .split(['.', '-'])
        .map(|n| n.parse::<u32>().expect("a number"));
    (numbers.next(), numbers.next()) >= (Some(6), Some(3))
}

#[test]
fn without_its_drivers_word_an_interface_is_left_to_tc() {
    let flow = Flow::detached(Plan::default());
    for side in Side::BOTH {
        flow.net.take_frames(side, true);
        let opened = flow.plane.open_exit(flow.ifindex(side), XdpMode::Native);
        assert_eq!(opened.expect("the map is there"), drivers_can_say());
        // In generic mode the kernel itself sends.
        let opened = flow.plane.open_exit(flow.ifindex(side), XdpMode::Generic);
        assert!(opened.expect("the map is there"));
    }
}
