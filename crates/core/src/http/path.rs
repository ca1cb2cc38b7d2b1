//! Normalizes paths for comparison by rules (RFC 3986 section 6.2.2).

use std::borrow::Cow;

use super::HeadError;

/// Returns the path in one of its many spellings: percent-encoded unreserved characters are decoded, the digits of
/// other triplets are upper case, dot segments are removed (RFC 3986 section 5.2.4). Parts that make a difference to
/// some servers stay: `//`, `%2F`, the case of letters. An empty path is `/`. Fails with [`HeadError::PercentTriplet`]
/// if a percent sign is not followed by two hexadecimal digits.
pub(crate) fn normalise(path: &str) -> Result<Cow<'_, str>, HeadError> {
    if path.is_empty() {
        return Ok(Cow::Borrowed("/"));
    }
    let decoded = match path.contains('%') {
        true => Cow::Owned(decode_unreserved(path)?),
        false => Cow::Borrowed(path),
    };
    Ok(match has_dot_segment(&decoded) {
        true => Cow::Owned(without_dot_segments(&decoded)),
        false => decoded,
    })
}

pub(super) fn decode_unreserved(path: &str) -> Result<String, HeadError> {
    let mut decoded = String::with_capacity(path.len());
    let mut parts = path.split('%');
    decoded.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (triplet, rest) = part.split_at_checked(2).ok_or(HeadError::PercentTriplet)?;
        // Check the digits: from_str_radix would take a sign.
        if !triplet.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(HeadError::PercentTriplet);
        }
        let byte = u8::from_str_radix(triplet, 16).map_err(|_| HeadError::PercentTriplet)?;
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            decoded.push(char::from(byte));
        } else {
            decoded.push('%');
            decoded.extend(triplet.chars().map(|c| c.to_ascii_uppercase()));
        }
        decoded.push_str(rest);
    }
    Ok(decoded)
}

pub(super) fn has_dot_segment(path: &str) -> bool {
    path.contains("/.") && path.split('/').any(|segment| segment == "." || segment == "..")
}

pub(super) fn without_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." if is_last => kept.push(""),
            "." => {}
            ".." => {
                kept.pop();
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    kept.iter()
        .fold(String::with_capacity(path.len()), |path, segment| {
            path + "/" + segment
        })
}

/// Returns the text behind the last dot of the last segment, if something stands before it: `gif` of `/a/b.gif`,
/// nothing of `/.profile`.
pub(super) fn extension(path: &str) -> Option<&str> {
    let segment = path.rsplit('/').next()?;
    let (stem, extension) = segment.rsplit_once('.')?;
    (!stem.is_empty() && !extension.is_empty()).then_some(extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/%61/%7e%2D%5F%2e", "/a/~-_."),
            ("/a%2fb", "/a%2Fb"),
            ("/a//b/", "/a//b/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/../../b", "/b"),
            ("/..", "/"),
            ("/.", "/"),
            ("/a/b/..", "/a/"),
            ("/a/b/.", "/a/b/"),
            ("/a//../b", "/a/b"),
            ("/a/...", "/a/..."),
            ("/a/.b", "/a/.b"),
            ("/%00%c3%bc", "/%00%C3%BC"),
            ("/%252e%252e/", "/%252e%252e/"),
        ] {
            assert_eq!(normalise(path).unwrap(), expected, "{path}");
        }
        for path in ["/%", "/%4", "/%zz", "/a%", "/%+1", "/%é"] {
            assert_eq!(normalise(path), Err(HeadError::PercentTriplet), "{path}");
        }
        // The RFC has these two examples (RFC 3986 section 5.2.4).
        assert_eq!(normalise("/a/b/c/./../../g").unwrap(), "/a/g");
        assert!(matches!(normalise("/usual/path.gif"), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn an_extension_belongs_to_the_last_segment() {
        for (path, expected) in [
            ("/a.gif", Some("gif")),
            ("/a.tar.gz", Some("gz")),
            ("/a.gif/b", None),
            ("/.profile", None),
            ("/a.", None),
            ("/", None),
        ] {
            assert_eq!(extension(path), expected, "{path}");
        }
    }
}
