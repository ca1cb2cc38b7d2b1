//! Input of strangers: heads of requests and replies, and chunked bodies. The first byte is the position at which the
//! rest is cut.
#![no_main]

use longsplice_core::http::{
    Answer, AnswerTo, Chunks, Fed, Found, HeadError, Limits, Persistence, ReplyHead, RequestHead,
    RequestKind, Scan, Version,
    rewrite::{self, Forwarded, ForwardedFields, SetCookie, ToClient, ToServer},
};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let cut = usize::from(*first).min(bytes.len());
    request(bytes, cut);
    reply(bytes, cut);
    chunks(bytes, cut);
});

/// Scans whole bytes and cut ones; both must give the same result.
fn scan(new: fn() -> Scan, bytes: &[u8], cut: usize) -> Result<Found, HeadError> {
    let whole = new().find(bytes, &Limits::default());
    let mut scan = new();
    let pieces = match scan.find(&bytes[..cut], &Limits::default()) {
        Ok(Found::NeedMore) => scan.find(bytes, &Limits::default()),
        found => found,
    };
    assert_eq!(whole, pieces, "cut at {cut}");
    whole
}

fn request(bytes: &[u8], cut: usize) {
    let Ok(Found::Head(length)) = scan(Scan::request, bytes, cut) else {
        return;
    };
    let head = match RequestHead::parse(&bytes[..length], &Limits::default()) {
        Ok(head) => head,
        Err(e) => return answer(e),
    };
    let fields = ForwardedFields {
        x_for: true,
        x_proto: true,
        x_host: true,
        standard: true,
    };
    let client = [192, 0, 2, 1].into();
    let forwarded = (cut % 2 == 0).then_some(Forwarded {
        fields,
        replaces: cut % 3 == 0,
        client,
        https: false,
    });
    let sent = rewrite::request(
        &head,
        &ToServer {
            persistence: Persistence::KeepAlive,
            forwarded,
            via: (cut % 5 == 0).then_some("fuzz"),
        },
    );
    let again = RequestHead::parse(
        &sent,
        &Limits {
            head: usize::MAX,
            ..Limits::default()
        },
    );
    // Added lines can make them too many for a second pass.
    let Ok(again) = again else {
        assert_eq!(again.err(), Some(HeadError::TooManyFields));
        return;
    };
    assert_eq!(
        (again.method(), again.path(), again.query()),
        (head.method(), head.path(), head.query())
    );
    assert_eq!(
        (again.body(), again.version(), again.upgrade()),
        (head.body(), head.version(), head.upgrade())
    );
    assert_eq!(
        again.authority().map(|a| a.as_str()),
        head.authority().map(|a| a.as_str())
    );
    assert!(again.cookies().eq(head.cookies()));
    let _ = (head.extension(), head.cookie("a"), head.persistence(), head.other_paths());
}

fn answer(error: HeadError) {
    let to = AnswerTo {
        is_head: false,
        persistence: Persistence::Close,
        version: Version::Http11,
        now: std::time::SystemTime::UNIX_EPOCH,
    };
    let bytes = Answer::new(error.status(), &error.to_string()).to_bytes(&to);
    let found = Scan::reply().find(&bytes, &Limits::default());
    assert!(
        matches!(found, Ok(Found::Head(n)) if ReplyHead::parse(&bytes[..n], RequestKind::USUAL, &Limits::default()).is_ok())
    );
}

fn reply(bytes: &[u8], cut: usize) {
    let Ok(Found::Head(length)) = scan(Scan::reply, bytes, cut) else {
        return;
    };
    let kind = RequestKind {
        is_head: cut & 1 != 0,
        upgrades: cut & 2 != 0,
        version: if cut & 4 != 0 {
            Version::Http10
        } else {
            Version::Http11
        },
    };
    let Ok(head) = ReplyHead::parse(&bytes[..length], kind, &Limits::default()) else {
        return;
    };
    let set_cookie = (cut & 8 != 0).then_some(SetCookie {
        name: "a",
        value: "b",
        secure: true,
    });
    let to = ToClient {
        persistence: head.persistence(),
        version: kind.version,
        set_cookie,
        date: (cut & 16 != 0).then_some(std::time::SystemTime::UNIX_EPOCH),
        via: (cut & 32 != 0).then_some("fuzz"),
    };
    let sent = rewrite::reply(&head, &to);
    let Ok(again) = ReplyHead::parse(
        &sent,
        kind,
        &Limits {
            head: usize::MAX,
            fields: 256,
            line: usize::MAX,
        },
    ) else {
        panic!("{}", sent.escape_ascii());
    };
    assert_eq!(
        (again.status(), again.body(), again.reason()),
        (head.status(), head.body(), head.reason())
    );
}

fn chunks(bytes: &[u8], cut: usize) {
    let whole = Chunks::new().feed(bytes);
    let mut chunks = Chunks::new();
    let pieces = chunks.feed(&bytes[..cut]).and_then(|first| {
        if first.dropped > 0 {
            return Ok(first);
        }
        let second = chunks.feed(&bytes[first.length..])?;
        Ok(Fed {
            length: first.length + second.length,
            ..second
        })
    });
    assert_eq!(whole, pieces, "cut at {cut}");
}
