//! Turns messages of the TOML reader into instructions for the user.

/// Returns the message in plain words, and the remedy if there is one.
pub(super) fn explain(message: &str) -> (String, Option<String>) {
    let message = message.trim();
    if let Some((given, known)) = unknown(message, "unknown field ") {
        return (
            format!("unknown key `{given}`"),
            Some(suggest(given, &known, "known here")),
        );
    }
    if let Some((given, known)) = unknown(message, "unknown variant ") {
        return (
            format!("`{given}` is not possible here"),
            Some(suggest(given, &known, "use one of")),
        );
    }
    if let Some(key) = message.strip_prefix("missing field ") {
        let help = match key {
            "`listen`" => "add the address to listen on, such as listen = \"0.0.0.0:8080\"",
            "`to`" => "add where its connections go, such as to = \"192.0.2.1:80\"",
            "`action`" => {
                "say what becomes of the packets: pass, drop, count, deliver, follow, translate, ask or copy"
            }
            "`interface`" => "name the one on which clients' packets come in, such as interface = \"eth0\"",
            _ => return (format!("missing key {key}"), None),
        };
        return (format!("missing key {key}"), Some(help.to_owned()));
    }
    // The reader's list of expected values has several lines.
    (
        message.lines().map(str::trim).collect::<Vec<_>>().join("; "),
        None,
    )
}

/// Parses serde's "unknown … `given`, expected … `a`, `b`".
fn unknown<'m>(message: &'m str, kind: &str) -> Option<(&'m str, Vec<&'m str>)> {
    let rest = message.strip_prefix(kind)?;
    // Split from the right: the given name may contain backticks, but the text behind it is fixed.
    let (given, expected) = rest.rsplit_once("`, expected ")?;
    let known = expected.split('`').skip(1).step_by(2).collect();
    Some((given.strip_prefix('`')?, known))
}

/// Suggests the known name that is nearest, or lists the known names if none is near.
pub(super) fn suggest(given: &str, known: &[&str], otherwise: &str) -> String {
    let nearest = known.iter().map(|k| (distance(given, k), k)).min();
    match nearest {
        Some((d, k)) if d <= (k.len() / 3).max(1) => format!("did you mean `{k}`?"),
        _ => format!("{otherwise}: {}", known.join(", ")),
    }
}

/// Returns the number of characters that must be inserted, removed or replaced to get from one to the other.
fn distance(a: &str, b: &str) -> usize {
    // Cut long names off: they are far from any key anyway, and the cost grows with the square of the length.
    const LONG: usize = 64;
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(LONG).collect(), b.chars().take(LONG).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (slot, y) in row.iter_mut().skip(1).zip(&b) {
            let best = (diagonal + usize::from(x != y)).min(*slot + 1).min(left + 1);
            diagonal = std::mem::replace(slot, best);
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [
            ("", "", 0),
            ("abc", "", 3),
            ("lisen", "listen", 1),
            ("kitten", "sitting", 3),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(a, b), d, "{a} {b}");
            assert_eq!(distance(b, a), d, "{b} {a}");
        }
    }

    #[test]
    fn names_with_backticks_are_survived() {
        let (message, help) = explain("unknown field ``, expected `x``, expected `listen` or `to`");
        assert_eq!(message, "unknown key ``, expected `x``");
        assert_eq!(help.as_deref(), Some("known here: listen, to"));
    }
}
