//! Turns messages of the TOML reader into instructions for the user.

use super::diagnostic::{Diagnostic, Source};

/// Returns the diagnostic of an error of the reader.
pub(super) fn diagnose(error: &toml::de::Error, source: &Source<'_>) -> Diagnostic {
    let (message, help) = explain(error.message());
    source.at(error.span().unwrap_or(0..0), message, help)
}

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
        let name = key.trim_matches('`');
        let help = REQUIRED.iter().find(|(required, ..)| *required == name);
        return (
            format!("missing key {key}"),
            help.map(|(_, what, example)| format!("add {what}, such as {name} = {example}")),
        );
    }
    if let Some(message) = wrong_type(message) {
        return (message, None);
    }
    // The reader's list of expected values has several lines.
    (
        message.lines().map(str::trim).collect::<Vec<_>>().join("; "),
        None,
    )
}

/// Lists the keys that a table must have: each with its meaning, and an example.
const REQUIRED: [(&str, &str, &str); 11] = [
    ("listen", "the address to listen on", "\"0.0.0.0:8080\""),
    ("to", "where its connections go", "\"192.0.2.1:80\""),
    ("from", "an address and a port", "\"198.18.0.1:80\""),
    (
        "action",
        "what becomes of the packets (pass, drop, count, limit, deliver, follow, translate, ask, ask_or_pass or copy)",
        "\"count\"",
    ),
    (
        "interface",
        "the interface on which clients' packets come in",
        "\"eth0\"",
    ),
    ("inside", "the interface toward the one side", "\"eth1\""),
    ("outside", "the interface toward the other side", "\"eth0\""),
    (
        "path",
        "the file, or \"stdout\"",
        "\"/var/log/longsplice/access.log\"",
    ),
    ("name", "a name for the others to refer to", "\"web\""),
    ("address", "where the server is", "\"192.0.2.1:80\""),
    ("networks", "the networks that are in it", "\"198.18.1.0/24\""),
];

/// Returns serde's message about a value of another type, in the words of TOML.
fn wrong_type(message: &str) -> Option<String> {
    let Some((given, expected)) = split_types(message) else {
        return (message == WANTED_TEXT).then(|| "text in quotes is expected here".to_owned());
    };
    let given = match given {
        "map" => "table".to_owned(),
        "sequence" => "list".to_owned(),
        other => other
            .replacen("string ", "text ", 1)
            .replacen("floating point ", "number ", 1),
    };
    let expected = match expected {
        "a sequence" => "a list",
        "a string" => "text in quotes",
        "a boolean" => "true or false",
        "i64" => "a whole number",
        "f64" => "a number",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    Some(format!("invalid type: {given}, expected {expected}"))
}

/// Message of the TOML reader about another value than one of several words.
pub(super) const WANTED_TEXT: &str = "wanted string or table";

/// Parses serde's "invalid type: given, expected expected".
pub(super) fn split_types(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("invalid type: ")?;
    match rest.strip_prefix("string ") {
        // Split from the right: the text is the user's.
        Some(_) => rest.rsplit_once(", expected "),
        None => rest.split_once(", expected "),
    }
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
    let cut = |text: &str| text.chars().take(64).collect::<String>();
    strsim::levenshtein(&cut(a), &cut(b))
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
