//! What a request says, for those who decide where it goes.

use longsplice_core::{
    http::{Fields, RequestHead},
    route::{Facts, Headers},
};

use crate::{client::Hello, upstream::KeyKind};

/// Fields of a head, as routes ask for them.
pub(super) struct FieldsOf<'f>(pub(super) &'f Fields<'f>);

impl Headers for FieldsOf<'_> {
    fn any(&self, name: &str, see: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.values(name).any(see)
    }
}

/// What is known of a request.
pub(super) fn facts<'a>(
    head: &'a RequestHead<'_>,
    headers: &'a FieldsOf<'_>,
    client: std::net::IpAddr,
    hello: Option<&'a Hello>,
) -> Facts<'a> {
    Facts {
        client,
        method: Some(head.method()),
        host: head.authority().map(|a| a.as_str()),
        path: head.path(),
        query: head.query(),
        headers,
        sni: hello.and_then(|h| h.sni.as_deref()),
        alpn: hello.map_or(&[], |h| &h.alpn),
    }
}

/// What an upstream's hash is of, where it is not of the client's address.
pub(super) fn key(head: &RequestHead<'_>, kind: &KeyKind) -> Option<Vec<u8>> {
    match kind {
        KeyKind::None | KeyKind::Client => None,
        KeyKind::Header(name) => head.fields().first(name).map(<[u8]>::to_vec),
        KeyKind::Cookie(name) => head.cookie(name).map(<[u8]>::to_vec),
    }
}
