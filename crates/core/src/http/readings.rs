//! Finds the other paths that servers make of one: a rule on paths must be applied to them, too.

use super::path::{decode_unreserved, has_dot_segment, without_dot_segments};

/// Doubts for which the readings of a path cannot be listed. A well-meaning client does not send such a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PathDoubt {
    /// `%00` to `%1F`, or `%7F`: some servers end the path there, or leave the character out.
    #[error("the path has an encoded control character, which servers read in different ways")]
    Control,
    /// Two of the oddities at once, such as `;` and `//`.
    #[error(
        "the path has several of `//`, `;`, `\\`, `%2F`, `%5C` and `%25` with two digits, which servers read in different ways: \
         write it without them"
    )]
    Several,
}

/// Lists the readings of servers that are more liberal than RFC 3986: one entry for each reading that differs from
/// [`normalise`](super::path::normalise)'s; mostly none. `path` has been normalized without an error before.
///
/// - `//` is one slash (nginx's `merge_slashes`, most file systems).
/// - Text behind a `;` in a segment is a parameter and no part of the name (servlet containers).
/// - A backslash, `%5C` or `%2F` is a slash.
/// - `%25` and two digits are decoded twice.
/// - Dot segments stay where they are (routers that compare text).
///
/// Fails if there are too many: two of the first four at once, of which each order gives another path; or for a control
/// character.
pub(super) fn readings(path: &str) -> Result<Vec<String>, PathDoubt> {
    // Most paths have none of these.
    if !path.contains("//") && !path.contains("/.") && !path.contains(['%', ';', '\\']) {
        return Ok(Vec::new());
    }
    let Ok(written) = decode_unreserved(path) else {
        return Ok(Vec::new());
    };
    if has_control(&written) {
        return Err(PathDoubt::Control);
    }
    let resolve = |path: &str| match has_dot_segment(path) {
        true => without_dot_segments(path),
        false => path.to_owned(),
    };
    let usual = resolve(&written);
    let mut all = vec![written.clone()];
    let mut odd = Oddity::ALL.into_iter().filter(|odd| odd.is_in(&written));
    if let Some(oddity) = odd.next() {
        let liberal = oddity.read(&written);
        if odd.next().is_some() || Oddity::ALL.iter().any(|other| other.is_in(&liberal)) {
            return Err(PathDoubt::Several);
        }
        all.push(oddity.read(&usual));
        all.push(resolve(&liberal));
        all.push(liberal);
    }
    all.sort_unstable();
    all.dedup();
    all.retain(|reading| *reading != usual);
    Ok(all)
}

/// Spelling that some servers take for another one.
#[derive(Debug, Clone, Copy)]
enum Oddity {
    Slashes,
    Parameters,
    Backslash,
    EncodedSlash,
    EncodedTwice,
}

impl Oddity {
    const ALL: [Oddity; 5] = [
        Oddity::Slashes,
        Oddity::Parameters,
        Oddity::Backslash,
        Oddity::EncodedSlash,
        Oddity::EncodedTwice,
    ];

    /// Returns whether a path has the oddity; its triplets have upper-case digits.
    fn is_in(self, path: &str) -> bool {
        match self {
            Oddity::Slashes => path.contains("//"),
            Oddity::Parameters => path.contains(';') || path.contains("%3B"),
            Oddity::Backslash => path.contains('\\') || path.contains("%5C"),
            Oddity::EncodedSlash => path.contains("%2F"),
            Oddity::EncodedTwice => path
                .split("%25")
                .skip(1)
                .any(|rest| rest.bytes().take_while(u8::is_ascii_hexdigit).count() >= 2),
        }
    }

    /// Reads a path as a server does that takes this liberty.
    fn read(self, path: &str) -> String {
        match self {
            Oddity::Slashes => {
                let mut read = String::with_capacity(path.len());
                for c in path.chars() {
                    if c != '/' || !read.ends_with('/') {
                        read.push(c);
                    }
                }
                read
            }
            Oddity::Parameters => {
                let name = |segment: &str| {
                    let end = [";", "%3B"].iter().filter_map(|mark| segment.find(mark)).min();
                    segment.get(..end.unwrap_or(segment.len())).map(str::to_owned)
                };
                let names: Vec<String> = path.split('/').filter_map(name).collect();
                names.join("/")
            }
            Oddity::Backslash => path.replace('\\', "/").replace("%5C", "/"),
            Oddity::EncodedSlash => path.replace("%2F", "/"),
            Oddity::EncodedTwice => {
                let once = path.replace("%25", "%");
                // A percent sign that stands for itself is no error here.
                decode_unreserved(&once).unwrap_or(once)
            }
        }
    }
}

/// Returns whether a triplet stands for a control character.
fn has_control(path: &str) -> bool {
    let is_control = |rest: &str| {
        let digits = rest.get(..2).unwrap_or_default();
        u8::from_str_radix(digits, 16).is_ok_and(|byte| byte.is_ascii_control())
    };
    path.split('%').skip(1).any(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_path_has_one_reading() {
        for path in [
            "/",
            "/a/b.html",
            "/a/",
            "/.well-known/x",
            "/a...b",
            "/%7Euser",
            "/a%20b",
            "/%C3%BC",
            "/100%25",
            "/a%25zz",
            "",
        ] {
            assert_eq!(readings(path), Ok(Vec::new()), "{path}");
        }
    }

    #[test]
    fn each_liberty_gives_its_readings() {
        for (path, expected) in [
            ("//admin", &["/admin"][..]),
            ("/.//admin", &["/.//admin", "/./admin", "/admin"]),
            ("/x//../admin", &["/admin", "/x/../admin", "/x//../admin"]),
            (
                "/x//..//admin",
                &["/admin", "/x/../admin", "/x//..//admin", "/x/admin"],
            ),
            ("/x/..;/admin", &["/admin", "/x/../admin"]),
            ("/admin;a=b", &["/admin"]),
            ("/admin%3ba", &["/admin"]),
            ("/a;x/b;y", &["/a/b"]),
            ("/x/..%2fadmin", &["/admin", "/x/../admin"]),
            ("/x\\..\\admin", &["/admin", "/x/../admin"]),
            ("/x%5Cadmin", &["/x/admin"]),
            ("/%2561dmin", &["/admin"]),
            ("/x/%252e%252e/admin", &["/admin", "/x/../admin"]),
            ("/admin/../public", &["/admin/../public"]),
            ("/admin/%2e%2e/public", &["/admin/../public"]),
        ] {
            let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(readings(path), Ok(expected), "{path}");
        }
    }

    #[test]
    fn what_has_too_many_is_in_doubt() {
        for path in [
            "/;/admin",
            "/;a/admin",
            "/x;//admin",
            "/x%2f%2Fadmin",
            "/x/%5C/admin",
            "/x%252f..%252fadmin",
            "/a;b%2Fc",
            "/%25252e",
        ] {
            assert_eq!(readings(path), Err(PathDoubt::Several), "{path}");
        }
        for path in ["/a%00", "/%0d%0Ax", "/%7f/b"] {
            assert_eq!(readings(path), Err(PathDoubt::Control), "{path}");
        }
    }
}
