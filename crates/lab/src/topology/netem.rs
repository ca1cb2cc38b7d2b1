//! Links by the kernel's netem, on machines whose kernel has it.

use std::time::Duration;

use crate::link::{Direction, Distribution, Queue};
use crate::{Error, Namespace, tool};

/// Bytes of a full Ethernet frame: netem counts its queue in packets.
const FULL_FRAME: u128 = 1514;

/// Attaches netem to a device, for what leaves it. Fails with [`Error::Netem`] for a property that netem lacks, and if
/// the kernel has no netem.
pub(super) fn attach(namespace: &Namespace, device: &str, direction: &Direction) -> Result<(), Error> {
    let mut line: Vec<String> = [
        "-n",
        namespace.name(),
        "qdisc",
        "add",
        "dev",
        device,
        "root",
        "netem",
    ]
    .map(str::to_owned)
    .into();
    line.extend(arguments(direction)?);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    tool::run("tc", &line).map_err(|error| match error {
        Error::Tool { stderr, .. } if is_unknown(&stderr) => Error::Netem(format!(
            "this kernel has no netem ({}): load sch_netem, or emulate links in user space",
            stderr.trim()
        )),
        other => other,
    })
}

/// Returns whether `tc` says that the kernel does not know netem.
fn is_unknown(stderr: &str) -> bool {
    ["qdisc kind is unknown", "No such file or directory"]
        .iter()
        .any(|words| stderr.contains(words))
}

/// Returns the words of `tc` for a direction. Its seed is left out, which older versions of `tc` do not know; jitter may
/// always change the order.
fn arguments(direction: &Direction) -> Result<Vec<String>, Error> {
    let refuse = |what: &str| Err(Error::Netem(format!("netem has no {what}")));
    let percent = |probability: f64| format!("{}%", probability * 100.0);
    let time = |time: Duration| format!("{}us", time.as_micros());
    if direction.red.is_some() {
        return refuse("RED");
    }
    if direction.burst.is_some() && direction.loss > 0.0 {
        return refuse("independent losses beside bursts");
    }
    if direction.reorder > 0.0 && direction.delay.is_zero() {
        return refuse("reordering without a delay");
    }
    let mut words = vec![format!("limit {}", limit(direction))];
    words.push(format!(
        "delay {} {}",
        time(direction.delay),
        time(direction.jitter)
    ));
    if direction.distribution == Distribution::Normal && !direction.jitter.is_zero() {
        words.push("distribution normal".to_owned());
    }
    match direction.burst {
        Some(burst) => {
            let model = [burst.enter, burst.leave, burst.loss_bad, burst.loss_good].map(percent);
            words.push(format!("loss gemodel {}", model.join(" ")));
        }
        None if direction.loss > 0.0 => words.push(format!("loss {}", percent(direction.loss))),
        None => {}
    }
    let shares = [
        ("duplicate", direction.duplicate),
        ("corrupt", direction.corrupt),
        ("reorder", direction.reorder),
    ];
    for (name, share) in shares.into_iter().filter(|(_, share)| *share > 0.0) {
        words.push(format!("{name} {}", percent(share)));
    }
    if direction.reorder > 0.0 && direction.reorder_gap > 1 {
        words.push(format!("gap {}", direction.reorder_gap));
    }
    if let Some(rate) = direction.rate {
        words.push(format!("rate {rate}bit"));
    }
    Ok(words.join(" ").split(' ').map(str::to_owned).collect())
}

/// Returns the queue in packets. Netem counts those that are delayed, too: so there is room for what the rate sends in the
/// delay.
fn limit(direction: &Direction) -> u128 {
    let frames =
        |time: Duration, rate: u64| time.as_nanos() * u128::from(rate) / (8_000_000_000 * FULL_FRAME);
    let Some(rate) = direction.rate else {
        return 1_000_000;
    };
    let queue = match direction.queue {
        Queue::Packets(packets) => packets as u128,
        Queue::Bytes(bytes) => u128::from(bytes) / FULL_FRAME,
        Queue::Time(time) => frames(time, rate),
    };
    queue.max(1) + frames(direction.delay, rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<String, String> {
        let direction: Direction = text.parse().unwrap();
        arguments(&direction)
            .map(|words| words.join(" "))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_direction_becomes_the_words_of_tc() {
        assert_eq!(
            words("20ms,12.112Mbit,queue=50p,loss=0.5%,dup=1%,seed=7").unwrap(),
            "limit 70 delay 20000us 0us loss 0.5% duplicate 1% rate 12112000bit"
        );
        assert_eq!(
            words("5ms,jitter=1ms,normal,burst=1%:25%,reorder=2%,gap=4").unwrap(),
            "limit 1000000 delay 5000us 1000us distribution normal loss gemodel 1% 25% 100% 0% reorder 2% gap 4"
        );
    }

    #[test]
    fn what_netem_lacks_is_refused() {
        for (text, says) in [
            ("10Mbit,red", "netem has no RED"),
            ("loss=1%,burst=1%:25%", "independent losses beside bursts"),
            ("reorder=1%", "reordering without a delay"),
        ] {
            let refusal = words(text).unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
    }

    #[test]
    fn an_unknown_qdisc_is_told_from_other_failures() {
        assert!(is_unknown("Error: Specified qdisc kind is unknown."));
        assert!(!is_unknown("Error: Exclusivity flag on, cannot modify."));
    }
}
