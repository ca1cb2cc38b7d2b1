//! Numbers for a reader.

/// Formats a number with as many digits as it needs.
pub(crate) fn number(value: f64) -> String {
    let text = match value.abs() {
        large if large >= 1_000.0 => thousands(value),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 1.0 || middle == 0.0 => format!("{value:.2}"),
        small if small >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.5}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_useless_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (1.05, "1.05"),
            (0.05, "0.05"),
            (123.4, "123"),
            (40_000.0, "40,000"),
            (-1_234_567.8, "-1,234,568"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
