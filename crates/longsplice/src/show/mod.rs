//! Formats the output of the command line for users.

mod config;
mod explain;
mod flows;
mod reload;
mod rules;
mod status;
mod table;
mod upstream_config;
mod upstreams;

use std::fmt::Write;

pub(crate) use config::config;
pub(crate) use explain::{Destination, Explained, Place, Seen, explained};
pub(crate) use flows::flows;
pub(crate) use reload::reloaded;
pub(crate) use rules::rules;
pub(crate) use status::status;
pub(crate) use upstreams::upstreams;

/// Writes a line with a name, or blanks below one, and a value.
fn line(out: &mut String, name: &str, value: String) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "  {name:<13} {value}");
}

/// Formats a number of bytes with three significant digits, in powers of 1024.
fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let (mut value, mut unit) = (n as f64 / 1024.0, 0);
    // Change the unit early: 999.5 would be shown as 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 {
        2
    } else {
        usize::from(value < 99.95)
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Formats a duration in its two largest units.
fn age(seconds: f64) -> String {
    // `as` saturates, and converts NaN into 0.
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Formats nanoseconds.
fn nanoseconds(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        for (n, s) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (1023 * 1024, "1.00 MiB"),
            (15 << 20, "15.0 MiB"),
            (150 << 20, "150 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(n), s);
        }
        for (n, s) in [
            (-1.0, "0s"),
            (f64::NAN, "0s"),
            (59.9, "59s"),
            (61.0, "1m01s"),
            (7_260.0, "2h01m"),
            (90_000.0, "1d01h"),
        ] {
            assert_eq!(age(n), s);
        }
        assert_eq!(
            (nanoseconds(300).as_str(), nanoseconds(12_300).as_str()),
            ("300 ns", "12.3 µs")
        );
    }
}
