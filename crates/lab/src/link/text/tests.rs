//! Every link survives a round trip through text, and bad text is refused with a reason.

use std::time::Duration;

use proptest::prelude::*;

use super::super::Queue;
use super::*;

const MS: Duration = Duration::from_millis(1);

fn link(text: &str) -> LinkSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_link_with_everything() {
    let text = "20ms,100Mbit,loss=0.5%,jitter=2ms,reorder=1%,dup=0.1%,queue=256KiB,seed=7";
    let spec = link(text);
    let direction = Direction {
        delay: 20 * MS,
        jitter: 2 * MS,
        loss: 0.005,
        reorder: 0.01,
        duplicate: 0.001,
        rate: Some(100_000_000),
        queue: Queue::Bytes(256 << 10),
        seed: 7,
        ..Direction::default()
    };
    assert_eq!(spec, LinkSpec::symmetric(direction));
    assert_eq!(
        spec.to_string(),
        "20ms,100Mbit,queue=256KiB,jitter=2ms,loss=0.5%,reorder=1%,dup=0.1%,seed=7"
    );
}

#[test]
fn both_directions_and_the_seed_between_them() {
    let spec = link("rtt=20ms, 10Mbit ,mtu=1400/5ms,burst=1%:25%,normal,jitter-reorders");
    assert_eq!((spec.to_server.delay, spec.to_client.delay), (10 * MS, 5 * MS));
    assert_eq!(
        (spec.to_server.rate, spec.to_client.rate),
        (Some(10_000_000), None)
    );
    assert_eq!(spec.mtu, 1400);
    assert_eq!(spec.to_client.burst, Some(Burst::new(0.01, 0.25)));
    assert_eq!(spec.to_client.distribution, Distribution::Normal);
    assert!(spec.to_client.jitter_reorders && !spec.to_server.jitter_reorders);
    assert_eq!(spec.to_client.seed, seed_of_the_way_back(1));
    assert_eq!(link("1ms,seed=3 / 1ms,seed=4").to_client.seed, 4);
    assert_eq!(link("1ms,seed=3"), link("1ms,seed=3/1ms"));
}

#[test]
fn red_is_a_word_or_three_shares() {
    let spec = link("10Mbit,queue=40ms,red/10Mbit,queue=50p,red=5%:50%:2%");
    assert_eq!(spec.to_server.queue, Queue::Time(40 * MS));
    assert_eq!(spec.to_server.red, Some(Red::default()));
    let other = Red {
        min: 0.05,
        max: 0.5,
        probability: 0.02,
    };
    assert_eq!(spec.to_client.red, Some(other));
    assert_eq!(
        spec.to_string(),
        "0ms,10Mbit,queue=40ms,red=10%:30%:10%,seed=1 / \
         0ms,10Mbit,queue=50p,red=5%:50%:2%,seed=11400714819323198484"
    );
    assert_eq!(link(&spec.to_string()), spec);
    let refusal = |text: &str| text.parse::<LinkSpec>().unwrap_err().to_string();
    assert_eq!(
        refusal("red=1%"),
        "red is \"1%\", and should be two shares of the queue and a probability, as 10%:30%:10%"
    );
    assert_eq!(refusal("red,red=10%:30%:10%"), "red is given twice");
    assert_eq!(refusal("red=30%:10%:10%"), "red cannot be 0.3:0.1:0.1");
}

#[test]
fn presets_are_changed_by_what_follows() {
    let spec = link("rtt100,loss=1%,rtt=30ms,seed=9");
    assert_eq!(spec.to_client.delay, 15 * MS);
    assert_eq!(spec.to_client.rate, Some(100_000_000));
    assert_eq!(spec.to_client.loss, 0.01);
    assert_eq!(link("wire"), LinkSpec::default());
    assert_eq!(link("rtt20/wire").to_client.delay, Duration::ZERO);
}

#[test]
fn what_is_wrong_is_named() {
    for (text, says) in [
        (
            "20ms,los=1%",
            "\"los=1%\" is neither an option of a link nor a preset; `longsplice-lab links` shows them",
        ),
        (
            "",
            "\"\" is neither an option of a link nor a preset; `longsplice-lab links` shows them",
        ),
        ("20ms,delay=3ms", "delay is given twice"),
        ("20ms,rtt=3ms", "delay is given twice"),
        ("normal,uniform", "the distribution of the jitter is given twice"),
        ("mtu=1400/mtu=1400", "mtu is given twice"),
        ("loss=0.5", "loss is \"0.5\", and should be a percentage, as 0.5%"),
        (
            "queue=5",
            "queue is \"5\", and should be bytes, packets or a time, as 256KiB, 50p or 40ms",
        ),
        (
            "burst=5%",
            "burst is \"5%\", and should be up to four percentages, as 1%:25% or 1%:25%:100%:0%",
        ),
        (
            "seed=-1",
            "seed is \"-1\", and should be a whole number in its range",
        ),
        (
            "burst=1%:x",
            "burst is \"1%:x\", and should be up to four percentages, as 1%:25% or 1%:25%:100%:0%",
        ),
        ("0bit", "rate cannot be 0"),
        ("mtu=10", "mtu cannot be 10"),
        ("1ms/1ms/1ms", "a link has two directions, not 3"),
    ] {
        assert_eq!(text.parse::<LinkSpec>().unwrap_err().to_string(), says, "{text}");
    }
    assert!(
        "1ms,mtu=1400".parse::<Direction>().is_err(),
        "the MTU is the link's"
    );
}

prop_compose! {
    /// Generates a direction with any values in range.
    fn directions()(
        times in prop::array::uniform3(any::<u64>().prop_map(Duration::from_nanos)),
        probabilities in prop::array::uniform4(0.0..=1.0f64),
        burst in prop::option::of(prop::array::uniform4(0.0..=1.0f64)),
        normal in any::<bool>(),
        jitter_reorders in any::<bool>(),
        reorder_gap in any::<u32>(),
        rate in prop::option::of(1..=u64::MAX),
        queue in prop_oneof![
            (1..=u64::MAX).prop_map(Queue::Bytes),
            (1..=usize::MAX).prop_map(Queue::Packets),
            (1..=u64::MAX).prop_map(|ns| Queue::Time(Duration::from_nanos(ns))),
        ],
        red in prop::option::of((0.0..0.5f64, 0.5..=1.0f64, 0.0..=1.0f64)),
        seed in any::<u64>(),
    ) -> Direction {
        let [delay, jitter, reorder_delay] = times;
        let [loss, reorder, duplicate, corrupt] = probabilities;
        Direction {
            delay, jitter, jitter_reorders, loss, reorder, reorder_delay, reorder_gap, duplicate, corrupt, rate,
            queue, seed,
            red: red.map(|(min, max, probability)| Red { min, max, probability }),
            distribution: if normal { Distribution::Normal } else { Distribution::Uniform },
            burst: burst.map(|[enter, leave, loss_bad, loss_good]| Burst { enter, leave, loss_bad, loss_good }),
        }
    }
}

prop_compose! {
    fn links()(
        to_server in directions(),
        other in prop::option::of(directions()),
        mtu in 68..=u16::MAX,
    ) -> LinkSpec {
        let link = LinkSpec::symmetric(to_server);
        let to_client = other.unwrap_or_else(|| link.to_client.clone());
        LinkSpec { to_client, mtu, ..link }
    }
}

proptest! {
    #[test]
    fn what_is_shown_is_read(link in links()) {
        let text = link.to_string();
        prop_assert_eq!(text.parse::<LinkSpec>(), Ok(link), "{}", text);
    }

    #[test]
    fn no_text_panics(text in "\\PC*", items in prop::collection::vec(ITEM, 0..4)) {
        let _ = text.parse::<LinkSpec>();
        let _ = items.join(",").parse::<LinkSpec>();
    }
}

/// Text like that of an option.
const ITEM: &str = "(rtt20|([a-z-]{0,6}|delay|rtt|jitter|loss|burst|reorder|gap|dup|rate|queue|red|seed|mtu)=?)\
                    [0-9.]{0,4}[a-zA-Z%:/]{0,4}[0-9%]{0,3}";
