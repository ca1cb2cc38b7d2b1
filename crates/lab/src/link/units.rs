//! Converts numbers with units to text and back exactly: no value is rounded.

use std::time::Duration;

use super::{Queue, Red};

/// Formats a probability, 0 to 1, in percent: the decimal point is moved, the number is not multiplied.
pub(super) fn show_percent(probability: f64) -> String {
    // This conversion never uses scientific notation.
    let text = probability.to_string();
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let part = format!("{part:0<2}");
    let (moved, rest) = part.split_at(2);
    let joined = format!("{whole}{moved}");
    let whole = match joined.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    };
    if rest.is_empty() {
        format!("{whole}%")
    } else {
        format!("{whole}.{rest}%")
    }
}

/// Reads a probability from a percentage with its sign; `None` for any other text, also above 100 %.
pub(super) fn read_percent(text: &str) -> Option<f64> {
    let number = text.strip_suffix('%')?;
    let (whole, part) = split_decimal(number)?;
    let whole = format!("{whole:0>3}");
    let (whole, moved) = whole.split_at(whole.len() - 2);
    let probability: f64 = format!("{whole}.{moved}{part}").parse().ok()?;
    (probability <= 1.0).then_some(probability)
}

/// Formats a time with a fitting unit.
pub(super) fn show_time(time: Duration) -> String {
    let ns = time.as_nanos();
    let (digits, unit) = match ns {
        0 => (6, "ms"),
        _ if ns.is_multiple_of(1_000_000_000) => (9, "s"),
        1_000_000.. => (6, "ms"),
        1000.. => (3, "us"),
        _ => (0, "ns"),
    };
    show_decimal(ns, digits) + unit
}

/// Reads a time with a unit, exact to the nanosecond; `None` for any other text.
pub(super) fn read_time(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text);
    let digits = match unit {
        "ns" => 0,
        "us" | "µs" => 3,
        "ms" => 6,
        "s" => 9,
        _ => return None,
    };
    read_decimal(number, digits).map(Duration::from_nanos)
}

/// Formats a rate in bit/s with a fitting unit.
pub(super) fn show_rate(rate: u64) -> String {
    let (digits, unit) = match rate {
        1_000_000_000.. => (9, "Gbit"),
        1_000_000.. => (6, "Mbit"),
        1000.. => (3, "kbit"),
        _ => (0, "bit"),
    };
    show_decimal(rate.into(), digits) + unit
}

/// Reads a rate in bit/s with a unit.
pub(super) fn read_rate(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text);
    let digits = match unit.to_ascii_lowercase().as_str() {
        "bit" => 0,
        "kbit" => 3,
        "mbit" => 6,
        "gbit" => 9,
        _ => return None,
    };
    read_decimal(number, digits)
}

const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Formats the limit of a queue, in bytes, packets or time.
pub(super) fn show_queue(queue: Queue) -> String {
    let bytes = match queue {
        Queue::Packets(packets) => return format!("{packets}p"),
        Queue::Time(time) => return show_time(time),
        Queue::Bytes(bytes) => bytes,
    };
    let fits = |(_, size): &&(&str, u64)| bytes >= *size && bytes.is_multiple_of(*size);
    let (unit, size) = SIZES.iter().find(fits).unwrap_or(&SIZES[3]);
    format!("{}{unit}", bytes / size)
}

/// Reads the limit of a queue: `256KiB`, `50p`, `40ms`.
pub(super) fn read_queue(text: &str) -> Option<Queue> {
    if let Some(time) = read_time(text) {
        return Some(Queue::Time(time));
    }
    let (number, unit) = split_unit(text);
    if unit == "p" {
        return number.parse().ok().map(Queue::Packets);
    }
    let (_, size) = SIZES.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*size).map(Queue::Bytes)
}

/// Formats the thresholds and the probability of RED, in percent.
pub(super) fn show_red(red: Red) -> String {
    [red.min, red.max, red.probability].map(show_percent).join(":")
}

/// Reads the thresholds and the probability of RED: `10%:30%:10%`.
pub(super) fn read_red(text: &str) -> Option<Red> {
    let mut parts = text.split(':').map(read_percent);
    let red = Red {
        min: parts.next()??,
        max: parts.next()??,
        probability: parts.next()??,
    };
    parts.next().is_none().then_some(red)
}

/// Splits a number from the unit behind it.
fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    text.split_at(end.unwrap_or(text.len()))
}

/// Splits a decimal number without a sign into the digits before and behind its point.
fn split_decimal(text: &str) -> Option<(&str, &str)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (!whole.is_empty() && digits(whole) && digits(part)).then_some((whole, part))
}

/// Formats `value / 10^digits`, exactly.
fn show_decimal(value: u128, digits: usize) -> String {
    let text = format!("{value:0>width$}", width = digits + 1);
    let (whole, part) = text.split_at(text.len() - digits);
    match part.trim_end_matches('0') {
        "" => whole.to_owned(),
        part => format!("{whole}.{part}"),
    }
}

/// Returns `text * 10^digits`, if that is a whole number that fits.
fn read_decimal(text: &str, digits: usize) -> Option<u64> {
    let (whole, part) = split_decimal(text)?;
    let part = part.trim_end_matches('0');
    if part.len() > digits {
        return None;
    }
    format!("{whole}{part:0<digits$}").parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentages_are_moved_points() {
        for (probability, text) in [
            (0.0, "0%"),
            (1.0, "100%"),
            (0.5, "50%"),
            (0.005, "0.5%"),
            (0.07, "7%"),
            (0.123_45, "12.345%"),
            (1e-9, "0.0000001%"),
        ] {
            assert_eq!(show_percent(probability), text);
            assert_eq!(read_percent(text), Some(probability), "{text}");
        }
        for bad in ["0.5", "-1%", "101%", "1e-3%", "%", ".5%", "1.2.3%", "NaN%", "1 %"] {
            assert_eq!(read_percent(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_rates_and_queues() {
        for (ns, text) in [
            (0, "0ms"),
            (20_000_000, "20ms"),
            (1_500_000, "1.5ms"),
            (300_000, "300us"),
            (2_000_000_000, "2s"),
            (7, "7ns"),
        ] {
            assert_eq!(show_time(Duration::from_nanos(ns)), text);
            assert_eq!(read_time(text), Some(Duration::from_nanos(ns)));
        }
        assert_eq!(read_time("0.1us"), Some(Duration::from_nanos(100)));
        for bad in ["20", "ms", "0.1ns", "-1ms", "20m", "99999999999999999999s"] {
            assert_eq!(read_time(bad), None, "{bad}");
        }
        assert_eq!(read_rate("100mbit"), Some(100_000_000));
        assert_eq!(show_rate(1_544_000), "1.544Mbit");
        assert_eq!(read_rate("100MB"), None);
        assert_eq!(read_queue("256KiB"), Some(Queue::Bytes(256 << 10)));
        assert_eq!(read_queue("50p"), Some(Queue::Packets(50)));
        assert_eq!(read_queue("40ms"), Some(Queue::Time(Duration::from_millis(40))));
        assert_eq!(read_red("10%:30%:10%"), Some(Red::default()));
        for bad in ["10%", "10%:30%", "1:2:3", "10%:30%:10%:1%", ""] {
            assert_eq!(read_red(bad), None, "{bad}");
        }
        assert_eq!(read_queue("99999999999999GiB"), None);
        for bad in ["50", "1.5p", "p", "99999999999999999999p", "1.5KiB"] {
            assert_eq!(read_queue(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read(
            probability in 0.0..=1.0f64,
            ns in any::<u64>(),
            rate in any::<u64>(),
            queue in prop_oneof![
                any::<u64>().prop_map(Queue::Bytes),
                (0..1u64 << 34).prop_map(|kib| Queue::Bytes(kib << 10)),
                any::<usize>().prop_map(Queue::Packets),
                any::<u64>().prop_map(|ns| Queue::Time(Duration::from_nanos(ns))),
            ],
        ) {
            prop_assert_eq!(read_percent(&show_percent(probability)), Some(probability));
            let time = Duration::from_nanos(ns);
            prop_assert_eq!(read_time(&show_time(time)), Some(time));
            prop_assert_eq!(read_rate(&show_rate(rate)), Some(rate));
            prop_assert_eq!(read_queue(&show_queue(queue)), Some(queue));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = (read_percent(&text), read_time(&text), read_rate(&text), read_queue(&text));
        }
    }
}
