use proptest::prelude::*;

use super::*;
use crate::side::Side;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns a pair over legs of 20 and 80 ms at 100 Mbit/s that is ready: A sends, B only acknowledges.
fn coupled() -> Coupling {
    let (start, far) = (Seq::new(u32::MAX - 10), Seq::new(7_000));
    let to_b = DirectionProgress {
        offered: start + 300_000,
        sent: start + 290_000,
        far_edge: far + 300_000,
        offset: Offset::between(start, far),
        notice: Notice::Quiet,
        backlog: 100_000,
        rate: 12_500_000,
    };
    let to_a = DirectionProgress {
        backlog: 0,
        rate: 0,
        notice: Notice::Heard,
        ..to_b
    };
    let leg = |rtt, rto| LegProgress {
        rtt,
        base_rtt: rtt,
        rto,
        recovering: false,
    };
    Coupling {
        elapsed: ms(125),
        legs: PerSide::new(leg(ms(20), ms(220)), leg(ms(80), ms(280))),
        directions: PerSide::new(to_b, to_a),
    }
}

/// Returns the obstacle of that coupling, with the direction to B changed.
fn with(change: impl FnOnce(&mut DirectionProgress)) -> Option<Obstacle> {
    let mut c = coupled();
    change(&mut c.directions.client);
    obstacle(&c)
}

#[test]
fn the_room_is_the_far_path_stretched_by_the_near_one() {
    // 100 segments over 80 ms, and a quarter more for 20 ms: x must have this much out to fill both legs.
    assert_eq!(room(100, 1_448, ms(20), ms(80)), 181_000);
    // From the long leg to the short one it is five times.
    assert_eq!(room(100, 1_448, ms(80), ms(20)), 724_000);
}

#[test]
fn the_room_is_bounded() {
    assert_eq!(room(1, 536, ms(1), ms(1)), MIN_ROOM);
    assert_eq!(room(0, 0, Duration::ZERO, Duration::ZERO), MIN_ROOM);
    assert_eq!(
        room(u32::MAX, u32::MAX, Duration::MAX, Duration::ZERO),
        MAX_WINDOW
    );
    assert_eq!(room(1_000_000, 1_448, ms(1), ms(1)), MAX_WINDOW);
}

#[test]
fn a_coupled_pair_may_drain() {
    assert_eq!(obstacle(&coupled()), None);
    assert!(ready(&coupled()));
}

#[test]
fn an_end_must_not_send_beyond_the_other_ends_window() {
    assert_eq!(with(|d| d.far_edge = d.far_edge - 1), Some(Obstacle::Window));
    assert_eq!(with(|d| d.offered = d.offered + 1), Some(Obstacle::Window));
    // x sent this by the edge before it was moved back.
    assert_eq!(with(|d| d.sent = d.offered + 1), Some(Obstacle::Window));
    assert_eq!(with(|d| d.sent = d.offered), None);
}

#[test]
fn a_backlog_of_ten_milliseconds_is_short_enough() {
    assert_eq!(with(|d| d.backlog = 125_000), None);
    assert_eq!(with(|d| d.backlog = 125_001), Some(Obstacle::Backlog));
    // At a low rate the 64 KiB count, if they drain in time.
    assert_eq!(with(|d| (d.rate, d.backlog) = (6_000_000, 65_536)), None);
    assert_eq!(
        with(|d| (d.rate, d.backlog) = (6_000_000, 65_537)),
        Some(Obstacle::Backlog)
    );
}

#[test]
fn over_a_short_path_a_small_backlog_may_drain_at_any_rate() {
    let beside = |base_rtt, backlog| {
        let mut c = coupled();
        for leg in &mut c.legs {
            (leg.rtt, leg.base_rtt) = (ms(2), base_rtt);
        }
        (c.directions.client.rate, c.directions.client.backlog) = (0, backlog);
        obstacle(&c)
    };
    let (short, longer) = (Duration::from_micros(2500), Duration::from_micros(2501));
    assert_eq!(beside(short, 256 << 10), None);
    assert_eq!(beside(short, (256 << 10) + 1), Some(Obstacle::Backlog));
    assert_eq!(beside(longer, 64 << 10), None);
    assert_eq!(beside(longer, (64 << 10) + 1), Some(Obstacle::Backlog));
}

#[test]
fn a_drain_must_end_well_before_a_senders_timeout() {
    // 65 ms of backlog, 20 and 80 are 165 ms: three quarters of 220.
    assert_eq!(
        with(|d| (d.rate, d.backlog) = (1_000_000, 65_000)),
        Some(Obstacle::Timeout)
    );
    assert_eq!(with(|d| (d.rate, d.backlog) = (1_000_000, 64_000)), None);
    // An initial window leaves each round trip if nothing flows.
    assert_eq!(
        with(|d| (d.rate, d.backlog) = (0, 12_000)),
        Some(Obstacle::Timeout)
    );
    assert_eq!(with(|d| (d.rate, d.backlog) = (0, 11_000)), None);
}

#[test]
fn a_server_beside_us_may_drain_to_a_far_client() {
    // Linux's timeout is at least 200 ms on top of the round trip.
    let with_far_rtt = |rtt, backlog| {
        let mut c = coupled();
        c.elapsed = ms(1_000);
        (c.legs.client.rtt, c.legs.client.rto) = (ms(0), ms(200));
        (c.legs.server.rtt, c.legs.server.rto) = (rtt, rtt + ms(200));
        c.directions.client.backlog = backlog;
        obstacle(&c)
    };
    assert_eq!(with_far_rtt(ms(120), 100_000), None);
    assert_eq!(with_far_rtt(ms(160), 100_000), Some(Obstacle::Timeout));
    // With nothing to drain, waiting would change nothing.
    assert_eq!(with_far_rtt(ms(300), 0), None);
}

#[test]
fn a_smaller_window_needs_time_to_be_heard_of() {
    let early = Coupling {
        elapsed: ms(124),
        ..coupled()
    };
    assert_eq!(obstacle(&early), Some(Obstacle::Notice));
    let mut heard = early;
    heard.directions.client.notice = Notice::Heard;
    assert_eq!(obstacle(&heard), None);
    let x = coupled().legs.client;
    let quiet = |rtt| notice_time(Notice::Quiet, &x, rtt);
    assert_eq!(quiet(Duration::from_micros(200)), Duration::from_micros(300));
    assert_eq!(quiet(ms(2)), ms(8));
}

#[test]
fn what_a_busy_sender_sent_before_may_wait_in_a_queue() {
    let mut c = coupled();
    c.directions.client.notice = Notice::Busy;
    c.elapsed = ms(219);
    assert_eq!(obstacle(&c), Some(Obstacle::Notice));
    c.elapsed = c.legs.client.rto;
    assert_eq!(obstacle(&c), None);
    c.elapsed = ms(0);
    c.directions.client.notice = Notice::Heard;
    assert_eq!(obstacle(&c), None, "it has said that it knows");
}

#[test]
fn losses_are_repaired_first() {
    for side in Side::BOTH {
        let mut c = coupled();
        c.legs[side].recovering = true;
        assert_eq!(obstacle(&c), Some(Obstacle::Recovery));
    }
}

#[test]
fn a_reader_has_stopped_when_its_window_keeps_back_what_waits() {
    let stopped = Delivery {
        unsent: 300_000,
        in_flight: 0,
        window: 1_000,
        mss: 1_448,
        quiet: STILL,
    };
    let is_stopped = |change: fn(&mut Delivery)| {
        let mut delivery = stopped;
        change(&mut delivery);
        delivery.is_stopped()
    };
    assert!(is_stopped(|_| {}) && is_stopped(|d| d.window = 0));
    assert!(!is_stopped(|d| d.quiet = STILL - ms(1)));
    // The end reads, and an acknowledgement is on its way; or nothing waits for it; or the next segment is about to go.
    assert!(!is_stopped(|d| d.in_flight = 1));
    assert!(!is_stopped(|d| d.unsent = 0));
    assert!(!is_stopped(|d| d.window = 1_448));
    assert!(!is_stopped(|d| d.unsent = 1_000));
    // The waiting bytes may still be few enough for a drain.
    assert!(!stopped.is_hopeless(SMALL_BACKLOG) && stopped.is_hopeless(SMALL_BACKLOG + 1));
}

#[test]
fn looks_take_a_part_of_a_processor_only() {
    assert_eq!(soonest_look(ms(0), 1), ms(1));
    assert_eq!(soonest_look(ms(1_999), 4_000), ms(1));
    assert_eq!(soonest_look(ms(2_000), 1), ms(1));
    for pairs in [100_u32, 4_000] {
        let each_second = f64::from(pairs) / soonest_look(ms(1_000_000), pairs as usize).as_secs_f64();
        assert!(each_second <= 20_001.0, "{each_second}");
    }
}

#[test]
fn looks_at_a_silent_pair_become_rarer_up_to_five_a_second() {
    let (mut quiet, mut looks) = (Duration::ZERO, 0);
    while quiet < ms(1_000) {
        quiet += latest_look(quiet, ms(1));
        looks += 1;
    }
    assert!((20..=40).contains(&looks), "{looks}");
    assert_eq!(latest_look(Duration::MAX, ms(1)), LONGEST_LOOK);
    assert_eq!(latest_look(Duration::MAX, 2 * LONGEST_LOOK), 2 * LONGEST_LOOK);
}

#[test]
fn giving_up_scales_with_the_path() {
    assert_eq!(give_up_after(Duration::ZERO, ms(1)), ms(1_000));
    assert_eq!(give_up_after(ms(20), ms(80)), ms(2_000));
    assert_eq!(give_up_after(Duration::MAX, Duration::MAX), Duration::MAX);
}

proptest! {
    #[test]
    fn more_window_or_a_longer_near_leg_never_means_less_room(
        cwnd in 0..1_000_000u32, mss in 1..9_000u32, x in 0..1_000_000u64, o in 0..1_000_000u64, more in 0..1_000_000u64,
    ) {
        let us = Duration::from_micros;
        let bytes = room(cwnd, mss, us(x), us(o));
        prop_assert!((MIN_ROOM..=MAX_WINDOW).contains(&bytes));
        prop_assert!(room(cwnd.saturating_add(1), mss, us(x), us(o)) >= bytes);
        prop_assert!(room(cwnd, mss, us(x + more), us(o)) >= bytes);
        prop_assert!(room(cwnd, mss, us(x), us(o + more)) <= bytes);
    }
}

#[test]
fn a_limited_end_has_room_for_a_round_trip_and_what_a_drain_may_find() {
    let (near, far) = (Duration::ZERO, Duration::from_millis(20));
    for (rate, room) in [
        (4_000_000, 120_000),
        (100_000, LEAST_LIMITED_ROOM),
        (1_000, LEAST_LIMITED_ROOM),
        (u64::from(u32::MAX), 128_849_018),
    ] {
        let rate = Rate::new(rate).unwrap();
        assert_eq!(limited_room(rate, near, far), room, "{rate:?}");
        // Bytes that are not on their way then are no obstacle.
        let under_way = bytes_in(rate.per_second().into(), far);
        let backlog = u64::from(room).saturating_sub(under_way);
        assert!(backlog <= bytes_in(rate.per_second().into(), SHORT_BACKLOG).max(MIN_ROOM.into()) + 1);
    }
    assert_eq!(
        limited_room(
            Rate::new(u64::from(u32::MAX)).unwrap(),
            far,
            Duration::from_secs(3600)
        ),
        MAX_WINDOW
    );
}
