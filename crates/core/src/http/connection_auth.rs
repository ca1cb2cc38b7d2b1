//! Recognises schemes that authenticate a connection instead of a request: NTLM and Negotiate (RFC 4559).

use super::{
    fields::{Fields, Known},
    text,
};

const SCHEMES: [&str; 2] = ["negotiate", "ntlm"];

/// Returns whether one of these fields, all of them [`Known::Challenge`] or [`Known::Credentials`], has such a scheme. A
/// comma within a quoted string counts as one between challenges: that can only add schemes.
pub(super) fn is_in(fields: &Fields<'_>, which: Known) -> bool {
    fields.known(which).flat_map(text::list).any(|element| {
        let scheme = element.split(|b| *b == b' ' || *b == b'\t').next();
        scheme.is_some_and(|scheme| {
            SCHEMES
                .iter()
                .any(|known| scheme.eq_ignore_ascii_case(known.as_bytes()))
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::http::{Limits, ReplyHead, RequestHead, RequestKind};

    #[test]
    fn challenges_of_either_scheme_are_found_in_any_of_the_fields() {
        for (fields, expected) in [
            ("WWW-Authenticate: NTLM", true),
            ("www-authenticate: ntlm TlRMTVNTUAAC==", true),
            ("WWW-Authenticate: NEGOTIATE\toYG==", true),
            ("Proxy-Authenticate: Negotiate", true),
            (
                "WWW-Authenticate: Basic realm=\"a\"\r\nWWW-Authenticate: NTLM",
                true,
            ),
            ("WWW-Authenticate: Basic realm=\"a, b\", Negotiate", true),
            ("WWW-Authenticate: ,NTLM,Basic realm=a", true),
            ("WWW-Authenticate: Basic realm=\"NTLM\"", false),
            ("WWW-Authenticate: Digest realm=\"a\", nonce=NTLM", false),
            ("WWW-Authenticate: NTLMv2", false),
            ("WWW-Authenticate:", false),
            ("Authorization: NTLM x", false),
            ("X-Authenticate: NTLM", false),
        ] {
            let head = format!("HTTP/1.1 401 x\r\n{fields}\r\n\r\n");
            let head = ReplyHead::parse(head.as_bytes(), RequestKind::USUAL, &Limits::default()).unwrap();
            assert_eq!(head.authenticates_connection(), expected, "{fields}");
        }
        // A server may finish with a token beside its reply (RFC 4559).
        let head = b"HTTP/1.1 200 x\r\nWWW-Authenticate: Negotiate oYG\r\n\r\n";
        let head = ReplyHead::parse(head, RequestKind::USUAL, &Limits::default()).unwrap();
        assert!(head.authenticates_connection());
    }

    #[test]
    fn credentials_of_either_scheme_are_found() {
        for (field, expected) in [
            ("Authorization: NTLM TlRMTVNTUAAB", true),
            ("authorization: negotiate YII", true),
            ("Proxy-Authorization: Negotiate YII", true),
            ("Authorization: Basic bnRsbTpuZWdvdGlhdGU=", false),
            ("Authorization: Bearer NTLM", false),
            ("Cookie: NTLM", false),
            ("WWW-Authenticate: NTLM", false),
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            let head = RequestHead::parse(head.as_bytes(), &Limits::default()).unwrap();
            assert_eq!(head.authenticates_connection(), expected, "{field}");
        }
    }
}
