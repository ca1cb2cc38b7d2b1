mod acceleration;

use super::*;

const MBIT: u64 = 125_000;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns a leg with this RTT, warm and idle, on which no segment was ever lost.
fn leg(rtt: Duration) -> LegSample {
    LegSample {
        rtt,
        min_rtt: Some(rtt),
        cwnd: 100,
        ssthresh: Some(80),
        mss: 1_448,
        recovering: false,
        congestion_control: CongestionControl::Cubic,
        bytes_sent: 10_000_000,
        delivered: 7_000,
        bytes_retransmitted: 0,
        waiting: 0,
        segments_received: 10_000,
        out_of_order: 0,
        received_rate: 0,
        received_earlier: [0; EARLIER_SPANS],
        received_peak: 0,
        receive_window: 6 << 20,
        receive_buffer: 12 << 20,
        peer_window: 6 << 20,
        send_buffer_limited: 0,
        receives: false,
        standing_queue: None,
    }
}

/// Returns a leg whose peer sends at this rate, and never sent faster.
fn sending(rtt: Duration, mbit: u64) -> LegSample {
    LegSample {
        received_rate: mbit * MBIT,
        received_earlier: [mbit * MBIT; EARLIER_SPANS],
        received_peak: mbit * MBIT,
        ..leg(rtt)
    }
}

/// Returns the advice for a pair of 30 s of age that has carried 100 MB; either end may be called the client.
fn warm(a: LegSample, b: LegSample) -> Advice {
    let answer = advise(&Thresholds::auto(), &a, &b, ms(30_000), 100 << 20);
    assert_eq!(
        advise(&Thresholds::auto(), &b, &a, ms(30_000), 100 << 20),
        answer,
        "the legs are alike"
    );
    answer
}

fn is_splice(advice: Advice) -> bool {
    matches!(advice, Advice::Splice(_))
}

/// Returns the reason for which it is not spliced.
fn reason(advice: Advice) -> Option<RelayReason> {
    match advice {
        Advice::Splice(_) => None,
        Advice::Wait { reason, again } => {
            assert!(again > Duration::ZERO, "{reason}: asked again at once");
            Some(reason)
        }
    }
}

#[test]
fn the_measured_paths_at_100_mbits() {
    use RelayReason::*;
    let lossy = |leg: LegSample| LegSample {
        bytes_retransmitted: leg.bytes_sent / 200,
        ..leg
    };
    for (name, a, b, expected) in [
        (
            "long leg sends, 20 + 80 ms: 88 to 95 at once",
            leg(ms(20)),
            sending(ms(80), 95),
            None,
        ),
        (
            "short leg sends, 20 + 80 ms: 95 to 38",
            sending(ms(20), 95),
            leg(ms(80)),
            Some(AdvisedThroughput),
        ),
        (
            "both send, 20 + 80 ms",
            sending(ms(20), 40),
            sending(ms(80), 40),
            Some(AdvisedThroughput),
        ),
        ("2 + 2 ms", sending(ms(2), 95), leg(ms(2)), None),
        (
            "20 + 80 ms, 0.5 % lost on the long leg",
            leg(ms(20)),
            lossy(sending(ms(80), 10)),
            Some(AdvisedLoss),
        ),
        (
            "20 + 80 ms, 0.5 % lost on the short leg",
            lossy(leg(ms(20))),
            sending(ms(80), 10),
            Some(AdvisedLoss),
        ),
        (
            "2 + 2 ms, 0.5 % lost",
            lossy(leg(ms(2))),
            sending(ms(2), 50),
            Some(AdvisedLoss),
        ),
    ] {
        assert_eq!(reason(warm(a, b)), expected, "{name}");
    }
}

#[test]
fn on_a_lan_a_splice_is_always_good() {
    let us = Duration::from_micros;
    assert!(is_splice(warm(sending(us(200), 5_000), sending(us(300), 5_000))));
    // The pair is spliced from the first moment on, before any byte was sent.
    assert!(is_splice(advise(
        &Thresholds::auto(),
        &leg(us(200)),
        &leg(us(300)),
        Duration::ZERO,
        0
    )));
}

#[test]
fn a_negligible_leg_costs_nothing() {
    let (server, client) = (Duration::from_micros(300), ms(60));
    // The switch is beside its servers, before the first byte, and in a download.
    let fresh = advise(&Thresholds::auto(), &leg(client), &leg(server), Duration::ZERO, 0);
    assert!(is_splice(fresh));
    assert!(is_splice(warm(sending(server, 95), leg(client))));
    // The firewall is beside its clients.
    assert!(is_splice(warm(leg(server), sending(client, 95))));
    // Losses on the long leg are repaired over hardly more than that leg; those on the short one are not.
    let lossy = |leg: LegSample| LegSample {
        bytes_retransmitted: leg.bytes_sent / 100,
        ..leg
    };
    assert!(is_splice(warm(leg(server), lossy(sending(client, 9)))));
    assert_eq!(
        reason(warm(lossy(leg(server)), sending(client, 9))),
        Some(RelayReason::AdvisedLoss)
    );
    // An eighth of a long leg is a path of its own, with a window of its own.
    assert_eq!(
        reason(warm(sending(ms(10), 95), leg(ms(100)))),
        Some(RelayReason::AdvisedThroughput)
    );
}

#[test]
fn a_sender_that_was_seen_to_have_more_in_flight_may_be_spliced() {
    // The sender filled our buffers at 400 Mbit/s before the other leg became the limit.
    let sender = LegSample {
        received_peak: 400 * MBIT,
        ..sending(ms(20), 60)
    };
    assert!(is_splice(warm(sender, leg(ms(60)))));
    // Its rate does not count beyond the window that we offered.
    let sender = LegSample {
        receive_window: 64 << 10,
        ..sender
    };
    assert_eq!(
        reason(warm(sender, leg(ms(60)))),
        Some(RelayReason::AdvisedThroughput)
    );
}

#[test]
fn a_pair_that_carries_little_over_long_legs_is_spliced_after_a_minute() {
    let typing = |rtt| LegSample {
        received_rate: 1_000,
        received_peak: 1_000,
        ..leg(rtt)
    };
    let at = |a, b, age| advise(&Thresholds::auto(), &a, &b, age, 10_000);
    for (a, b) in [(20, 80), (2, 2)] {
        let advice = at(typing(ms(a)), leg(ms(b)), ms(4_000));
        let expected = Advice::Wait {
            reason: RelayReason::AdvisedQuiet,
            again: QUIET - ms(4_000),
        };
        assert_eq!(advice, expected, "{a} + {b} ms");
        assert!(is_splice(at(typing(ms(a)), leg(ms(b)), QUIET)), "{a} + {b} ms");
        // A slow stream is no quiet pair: its losses can be judged.
        let (slow, far) = (typing(ms(a)), leg(ms(b)));
        let steady = advise(&Thresholds::auto(), &slow, &far, ms(4_000), JUDGED_BYTES);
        assert!(is_splice(steady), "{a} + {b} ms");
    }
    // A burst loses nothing where a leg is negligible, or both are.
    assert!(is_splice(at(typing(ms(1)), leg(ms(80)), ms(4_000))));
    let beside = Duration::from_micros(400);
    assert!(is_splice(at(typing(beside), leg(beside), ms(100))));
}

#[test]
fn a_stream_behind_a_lull_is_judged_like_one_of_a_new_connection() {
    let (quiet, near, far) = (leg(ms(20)), sending(ms(20), 95), leg(ms(80)));
    let mut period = Period::default();
    let mut at = |leg: &LegSample, age, bytes| period.note(leg, &far, age, bytes);
    assert_eq!(at(&near, ms(300), 1 << 20), (ms(300), 1 << 20));
    assert_eq!(
        at(&quiet, ms(2_000), 4 << 20),
        (ms(2_000), 4 << 20),
        "a short pause is part of the stream"
    );
    assert_eq!(at(&near, ms(4_000), 5 << 20), (ms(4_000), 5 << 20));
    assert_eq!(at(&quiet, ms(5_000), 5 << 20), (ms(5_000), 5 << 20));
    assert_eq!(at(&quiet, ms(12_000), 5 << 20), (ms(7_000), 0));
    assert_eq!(at(&near, ms(12_500), 6 << 20), (ms(0), 0));
    assert_eq!(at(&near, ms(12_900), 7 << 20), (ms(400), 1 << 20));
    assert_eq!(
        reason(advise(&Thresholds::auto(), &near, &far, ms(400), 1 << 20)),
        Some(RelayReason::AdvisedWait)
    );
}

#[test]
fn a_bbr_sender_on_the_shorter_leg_is_left_alone() {
    let bbr = |leg: LegSample| LegSample {
        congestion_control: CongestionControl::Bbr,
        ..leg
    };
    assert_eq!(
        reason(warm(bbr(sending(ms(20), 34)), bbr(leg(ms(80))))),
        Some(RelayReason::AdvisedBbr)
    );
    assert!(is_splice(warm(bbr(leg(ms(20))), bbr(sending(ms(80), 34)))));
    assert!(is_splice(warm(bbr(sending(ms(2), 95)), bbr(leg(ms(2))))));
    // A path that is short as a whole is not spliced, either: its window would be a fifth of the needed one.
    let short = bbr(sending(Duration::from_micros(500), 1_000));
    assert_eq!(reason(warm(short, leg(ms(4)))), Some(RelayReason::AdvisedBbr));
}

#[test]
fn slow_start_is_waited_for_but_not_for_ever() {
    let sender = sending(ms(5), 50);
    let receiver = LegSample {
        cwnd: 60,
        ssthresh: None,
        ..leg(ms(50))
    };
    let at = |age| reason(advise(&Thresholds::auto(), &sender, &receiver, age, 1 << 20));
    assert_eq!(at(ms(549)), Some(RelayReason::AdvisedSlowStart));
    assert_ne!(at(ms(550)), Some(RelayReason::AdvisedSlowStart));
    let congested = LegSample {
        ssthresh: Some(60),
        ..receiver
    };
    let advice = advise(&Thresholds::auto(), &sender, &congested, ms(300), 1 << 20);
    assert_ne!(reason(advice), Some(RelayReason::AdvisedSlowStart));
}

#[test]
fn a_leg_in_recovery_is_waited_for_a_few_round_trips() {
    let recovering = LegSample {
        recovering: true,
        ..leg(ms(80))
    };
    let expected = Advice::Wait {
        reason: RelayReason::Recovery,
        again: ms(400),
    };
    assert_eq!(warm(leg(ms(20)), recovering), expected);
}

#[test]
fn too_little_is_known_at_first() {
    let unmeasured = LegSample {
        rtt: Duration::ZERO,
        min_rtt: None,
        ..leg(ms(1))
    };
    assert_eq!(
        reason(warm(unmeasured, leg(ms(1)))),
        Some(RelayReason::AdvisedWait)
    );
    // The caller knows that a stream follows.
    let thresholds = Thresholds {
        quiet: Duration::ZERO,
        ..Thresholds::auto()
    };
    let young = |age, bytes| reason(advise(&thresholds, &leg(ms(20)), &leg(ms(80)), age, bytes));
    assert_eq!(young(ms(100), 1 << 20), Some(RelayReason::AdvisedWait));
    assert_eq!(young(ms(500), 10_000), Some(RelayReason::AdvisedWait));
    assert_eq!(young(ms(500), 1 << 20), None);
    assert_eq!(young(ms(3_000), 10_000), None);
}

#[test]
fn queues_of_the_relay_do_not_make_a_path_long() {
    let queued = LegSample {
        min_rtt: Some(ms(1)),
        ..sending(ms(40), 95)
    };
    assert!(is_splice(warm(queued, leg(ms(2)))));
}

#[test]
fn few_segments_without_a_loss_are_no_lossy_leg() {
    for segments in [LOSS_SEGMENTS - 1, LOSS_SEGMENTS, 347, 499, 500, u32::MAX] {
        let whole = LegSample {
            segments_received: segments,
            bytes_sent: u64::from(segments) * 1_448,
            ..sending(ms(2), 95)
        };
        assert!(!whole.is_lossy(), "{segments}");
    }
    let one = LegSample {
        segments_received: LOSS_SEGMENTS,
        out_of_order: 16,
        ..sending(ms(2), 95)
    };
    assert!(
        one.is_lossy(),
        "a window's worth of 16 segments came behind one that was lost"
    );
}

#[test]
fn a_stream_is_spliced_when_its_losses_can_be_judged() {
    let advice = |a, b, age, bytes| reason(advise(&Thresholds::auto(), &a, &b, age, bytes));
    let wait = Some(RelayReason::AdvisedWait);
    for path in [2, 20] {
        let (sender, receiver) = (sending(ms(path), 95), leg(ms(path)));
        assert_eq!(advice(sender, receiver, ms(1_500), JUDGED_BYTES - 1), wait);
    }
    let (sender, receiver) = (sending(ms(2), 95), leg(ms(2)));
    assert_eq!(advice(sender, receiver, ms(1_500), JUDGED_BYTES), None);
    assert_eq!(advice(sender, receiver, FIRST_TIME, JUDGED_BYTES - 1), None);
    // Where a repair is near, nothing is waited for.
    let near = Duration::from_micros(300);
    assert_eq!(advice(sending(near, 5_000), leg(near), ms(200), 300_000), None);
}

#[test]
fn segments_out_of_order_are_losses_of_the_peers() {
    // 95 Mbit/s over 80 ms are 656 segments in flight; a loss lets as many arrive out of order.
    let with = |out_of_order| LegSample {
        out_of_order,
        ..sending(ms(80), 95)
    };
    assert!(is_splice(warm(leg(ms(20)), with(15 * 656))));
    assert_eq!(
        reason(warm(leg(ms(20)), with(20 * 657))),
        Some(RelayReason::AdvisedLoss)
    );
    // A few segments show nothing.
    let few = LegSample {
        segments_received: 100,
        ..with(100)
    };
    assert!(is_splice(warm(leg(ms(20)), few)));
}

#[test]
fn congestion_controls_are_known_by_name() {
    for (name, class) in [
        ("cubic", CongestionControl::Cubic),
        ("reno", CongestionControl::Reno),
        ("bbr", CongestionControl::Bbr),
        ("bbr3", CongestionControl::Bbr),
        ("htcp", CongestionControl::Other),
    ] {
        assert_eq!(CongestionControl::from(name), class, "{name}");
    }
}

#[test]
fn extreme_samples_do_not_panic() {
    let extreme = LegSample {
        rtt: Duration::MAX,
        min_rtt: Some(Duration::MAX),
        received_rate: u64::MAX,
        received_peak: u64::MAX,
        out_of_order: u32::MAX,
        mss: 0,
        ..leg(ms(1))
    };
    for age in [Duration::ZERO, Duration::MAX] {
        let _ = advise(&Thresholds::auto(), &extreme, &extreme, age, u64::MAX);
        let _ = advise(&Thresholds::auto(), &leg(ms(1)), &extreme, age, 0);
    }
}

/// Returns an upload of which the first megabytes went into our buffers at 95 Mbit/s, while the long leg was in slow
/// start. By its present rate alone, a window of 20 ms seemed enough for 100 ms (measured: 77 instead of 86 Mbit/s).
#[test]
fn a_stream_that_we_hold_back_is_judged_by_what_it_could_do() {
    let sender = LegSample {
        received_rate: 15 * MBIT,
        ..sending(ms(20), 95)
    };
    let far = leg(ms(80));
    let held = LegSample { waiting: 1, ..far };
    assert_eq!(reason(warm(sender, far)), None, "it wants no more than 15 Mbit/s");
    assert_eq!(reason(warm(sender, held)), Some(RelayReason::AdvisedThroughput));
    let starting = LegSample {
        ssthresh: None,
        ..held
    };
    let at = |age| {
        reason(advise(
            &Thresholds::auto(),
            &sender,
            &starting,
            ms(age),
            100 << 20,
        ))
    };
    assert_eq!(at(4_000), Some(RelayReason::AdvisedSlowStart));
    assert_eq!(at(6_000), Some(RelayReason::AdvisedThroughput));
    let near = Duration::from_micros(50);
    let near = LegSample {
        rtt: near,
        min_rtt: Some(near),
        ..starting
    };
    let lan = advise(&Thresholds::auto(), &near, &near, ms(100), 100 << 20);
    assert_eq!(
        reason(lan),
        None,
        "on a LAN nothing is lost, and slow start has no end"
    );
}
