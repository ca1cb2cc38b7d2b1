//! Tests which pairs an accelerator keeps, and which it releases.

use super::*;

#[test]
fn an_accelerator_keeps_what_gains_and_what_may_gain() {
    let judged = |gain, a: LegSample, b: LegSample| {
        let thresholds = Thresholds::for_gain(ms(10), gain);
        reason(advise(&thresholds, &a, &b, ms(30_000), 100 << 20))
    };
    for (name, a, b, expected) in [
        ("a short path", sending(ms(4), 95), leg(ms(5)), None),
        ("a leg beside the node", sending(ms(1), 95), leg(ms(80)), None),
        (
            "two long legs, and a stream",
            sending(ms(20), 95),
            leg(ms(20)),
            Some(RelayReason::AdvisedThroughput),
        ),
        (
            "two long legs, and nothing to carry yet",
            leg(ms(20)),
            leg(ms(20)),
            Some(RelayReason::AdvisedQuiet),
        ),
    ] {
        assert_eq!(judged(115, a, b), expected, "{name}");
    }
    let beside = sending(Duration::from_micros(100), 95);
    for (gain, expected) in [(101, None), (100, Some(RelayReason::AdvisedThroughput))] {
        assert_eq!(judged(gain, beside, leg(ms(80))), expected, "a gain of {gain} %");
    }
    let queued = LegSample {
        rtt: ms(60),
        ..sending(ms(20), 95)
    };
    assert_eq!(
        judged(115, queued, leg(ms(20))),
        Some(RelayReason::AdvisedThroughput),
        "its queue stays"
    );
    // So few segments hide a loss of 10 %.
    let thresholds = Thresholds::for_gain(ms(10), 115);
    let few = LegSample {
        segments_received: 190,
        out_of_order: 50,
        ..sending(ms(25), 3)
    };
    let young = advise(&thresholds, &few, &leg(ms(25)), ms(2_000), 282_360);
    assert_eq!(reason(young), Some(RelayReason::AdvisedWait));
    // 20 ms beside 80 can gain a quarter at most.
    assert_eq!(judged(130, leg(ms(20)), leg(ms(80))), None);
    assert!(judged(120, leg(ms(20)), leg(ms(80))).is_some());
}

#[test]
fn a_leg_with_a_congestion_control_of_its_own_gains_whatever_its_distance() {
    let common = Thresholds::for_gain(ms(10), 115);
    let own = Thresholds {
        has_own_congestion: true,
        ..common
    };
    let judged = |thresholds, a, b| reason(advise(thresholds, &a, &b, ms(30_000), 100 << 20));
    for (near, far) in [
        (sending(ms(1), 50), leg(ms(92))),
        (leg(ms(1)), sending(ms(92), 50)),
    ] {
        assert_eq!(judged(&common, near, far), None);
        assert_eq!(judged(&own, near, far), Some(RelayReason::AdvisedCongestion));
    }
    assert_eq!(judged(&own, sending(ms(4), 50), leg(ms(5))), None, "a short path");
}

/// Returns the reason for which an accelerator releases a pair of this age.
fn released(thresholds: &Thresholds, a: LegSample, b: LegSample) -> Option<SpliceReason> {
    let one = advise(thresholds, &a, &b, ms(5_000), 10 << 20);
    assert_eq!(
        advise(thresholds, &b, &a, ms(5_000), 10 << 20),
        one,
        "the legs are alike"
    );
    match one {
        Advice::Splice(reason) => Some(reason),
        Advice::Wait { .. } => None,
    }
}

/// The sender reached 95 Mbit/s over 20 ms, and would reach half of that over 40.
#[test]
fn a_stream_that_begins_or_ends_shows_no_rate() {
    let thresholds = Thresholds::for_gain(ms(10), 115);
    let lately = |mbit: [u64; 1 + EARLIER_SPANS]| {
        let [last, earlier @ ..] = mbit.map(|mbit| mbit * MBIT);
        let near = LegSample {
            received_rate: last,
            received_earlier: earlier,
            ..sending(ms(20), 95)
        };
        released(&thresholds, near, leg(ms(20)))
    };
    for partly in [
        [40, 95, 95],
        [40, 40, 95],
        [40, 0, 0],
        [40, 40, 0],
        [40, 0, 40],
        [95, 95, 95],
    ] {
        assert_eq!(lately(partly), None, "{partly:?}");
    }
    assert_eq!(lately([40, 40, 40]), Some(SpliceReason::KeepsItsRate));
}

#[test]
fn a_node_whose_buffers_are_the_limit_is_no_help() {
    let thresholds = Thresholds::for_gain(ms(10), 115);
    let near = |bytes: u64, rtt: Duration| LegSample {
        received_rate: bytes * 1_000 / rtt.as_millis() as u64,
        received_peak: bytes * 1_000 / rtt.as_millis() as u64,
        receive_window: 64 << 10,
        receive_buffer: 128 << 10,
        ..leg(rtt)
    };
    let far = |limited| LegSample {
        send_buffer_limited: limited,
        peer_window: 64 << 10,
        waiting: 20_000,
        ..leg(ms(50))
    };
    // 16 KB in 50 ms are half of 64 KB in 100 ms; 48 KB are one and a half times as much.
    let own = Some(SpliceReason::OwnBuffers);
    assert_eq!(released(&thresholds, near(16 << 10, ms(50)), far(90)), own);
    assert_eq!(released(&thresholds, near(48 << 10, ms(50)), far(90)), None);
    assert_eq!(
        released(&thresholds, near(16 << 10, ms(50)), far(10)),
        None,
        "another limit"
    );
    let small = LegSample {
        peer_window: 16 << 10,
        ..far(90)
    };
    assert_eq!(
        released(&thresholds, near(16 << 10, ms(50)), small),
        None,
        "the end has no more"
    );
    // The window that we offer is used up, beside an end that offers four times as much.
    let offered = LegSample {
        receive_window: 16 << 10,
        receive_buffer: 32 << 10,
        ..near(16 << 10, ms(50))
    };
    let free = LegSample { waiting: 0, ..far(0) };
    assert_eq!(released(&thresholds, offered, free), own);
    let closed = LegSample {
        receive_window: 3 << 10,
        receive_buffer: 64 << 10,
        ..offered
    };
    assert_eq!(
        released(&thresholds, closed, free),
        None,
        "the kernel has closed it for a moment"
    );
    assert_eq!(
        reason(warm(offered, free)),
        Some(RelayReason::AdvisedThroughput),
        "auto asks others"
    );
    let young = advise(&thresholds, &near(16 << 10, ms(50)), &far(90), ms(300), 1 << 20);
    assert_eq!(reason(young), Some(RelayReason::AdvisedWait));
}

#[test]
fn a_full_bottleneck_is_left_to_the_ends() {
    let thresholds = Thresholds::for_gain(ms(10), 115);
    let standing = |highest, time| {
        Some(StandingQueue {
            highest: ms(highest),
            time: ms(time),
        })
    };
    let lossy = |leg: LegSample| LegSample {
        bytes_retransmitted: leg.bytes_sent / 100,
        ..leg
    };
    let full = lossy(LegSample {
        rtt: ms(180),
        waiting: 100_000,
        standing_queue: standing(100, 600),
        ..leg(ms(80))
    });
    let sender = sending(ms(60), 20);
    let queue = Some(SpliceReason::StandingQueue);
    assert_eq!(released(&thresholds, sender, full), queue);
    let loss = lossy(LegSample {
        standing_queue: None,
        ..full
    });
    let others = [
        ("losses without a queue", loss),
        (
            "a queue of a moment",
            LegSample {
                standing_queue: standing(100, 500),
                ..full
            },
        ),
        (
            "a sender that is not guided by losses",
            LegSample {
                congestion_control: CongestionControl::Bbr,
                ..full
            },
        ),
        (
            "a window is the limit",
            LegSample {
                peer_window: 128 << 10,
                ..full
            },
        ),
        (
            "nothing was lost, and slow start has no end yet",
            LegSample {
                bytes_retransmitted: 0,
                ssthresh: None,
                ..full
            },
        ),
    ];
    for (name, leg) in others {
        assert_eq!(released(&thresholds, sender, leg), None, "{name}");
    }
    let keeps = Thresholds {
        yields_at_queue: false,
        ..thresholds
    };
    assert_eq!(released(&keeps, sender, full), None);
    assert_eq!(reason(warm(sender, full)), Some(RelayReason::AdvisedLoss), "auto");
    // The node behind the bottleneck sees the queue in what it receives.
    let behind = LegSample {
        rtt: ms(180),
        out_of_order: 2_000,
        standing_queue: standing(100, 600),
        ..sending(ms(80), 20)
    };
    assert_eq!(released(&thresholds, behind, leg(ms(60))), queue);
    for (time, expected) in [(1_119, None), (1_120, queue)] {
        let behind = LegSample {
            receives: true,
            standing_queue: standing(100, time),
            ..behind
        };
        assert_eq!(
            released(&thresholds, behind, leg(ms(60))),
            expected,
            "a node before it yields first"
        );
    }
}

#[test]
fn a_queue_that_may_stand_is_looked_at_each_round_trip() {
    let thresholds = Thresholds::for_gain(ms(10), 115);
    let lossy = LegSample {
        bytes_retransmitted: 1_000_000,
        ..leg(ms(80))
    };
    let again = |leg| match advise(&thresholds, &sending(ms(60), 20), &leg, ms(5_000), 10 << 20) {
        Advice::Wait { again, .. } => again,
        Advice::Splice(reason) => panic!("{reason}"),
    };
    assert_eq!(again(lossy), FINAL_LOOK);
    let queued = LegSample {
        standing_queue: Some(StandingQueue {
            highest: ms(100),
            time: ms(100),
        }),
        ..lossy
    };
    assert_eq!(again(queued), ms(140));
}

#[test]
fn a_sender_fills_a_link_by_its_queue_and_by_what_it_keeps_at_a_loss() {
    for (queue, kept, expected) in [
        (0, 50, 75),
        (0, 70, 85),
        (50, 70, 100),
        (43, 70, 100),
        (100, 50, 100),
        (20, 50, 86),
    ] {
        let used = utilisation(ms(100), ms(queue), kept);
        assert_eq!(used, expected, "{queue} ms of queue on 100 ms, {kept} % kept");
    }
    let _ = utilisation(Duration::ZERO, Duration::MAX, 50);
}

#[test]
fn round_trips_alone_tell_short_paths_and_negligible_legs() {
    let ms = Duration::from_millis;
    let thresholds = Thresholds::for_gain(ms(10), 115);
    for (client, server, distance) in [
        (ms(0), ms(10), Distance::Short),
        (ms(5), ms(5), Distance::Short),
        (ms(1), ms(10), Distance::OneLeg),
        (ms(15), ms(100), Distance::OneLeg),
        (ms(16), ms(100), Distance::Long),
        (ms(6), ms(5), Distance::Long),
    ] {
        assert_eq!(
            thresholds.judge(client, server),
            distance,
            "{client:?} {server:?}"
        );
        assert_eq!(
            thresholds.judge(server, client),
            distance,
            "{client:?} {server:?}"
        );
    }
}

#[test]
fn a_leg_is_nearly_all_of_a_path_once_segments_have_confirmed_it() {
    let thresholds = Thresholds::for_gain(ms(10), 115);
    let near = leg(ms(1));
    for (delivered, age, expected) in [
        (CONFIRMING_SEGMENTS - 1, ms(500), Some(RelayReason::AdvisedWait)),
        (CONFIRMING_SEGMENTS, ms(500), None),
        (0, FIRST_TIME, None),
    ] {
        let far = LegSample {
            delivered,
            ..leg(ms(80))
        };
        for (a, b) in [(&near, &far), (&far, &near)] {
            let advice = advise(&thresholds, a, b, age, 100);
            assert_eq!(reason(advice), expected, "{delivered} segments, {age:?}");
        }
    }
    let unknown = LegSample {
        delivered: 0,
        ..leg(ms(80))
    };
    let auto = advise(&Thresholds::auto(), &near, &unknown, ms(500), 100);
    assert!(is_splice(auto), "this splice can be undone");
}
