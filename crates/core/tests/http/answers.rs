//! Tests that replies of our own are read as replies.

use std::time::{Duration, SystemTime};

use longsplice_core::http::{
    Answer, AnswerTo, Body, Found, Limits, Persistence, ReplyHead, RequestKind, Scan, Version,
};

use crate::reply;

const TO: AnswerTo = AnswerTo {
    is_head: false,
    persistence: Persistence::KeepAlive,
    version: Version::Http11,
    now: SystemTime::UNIX_EPOCH,
};

fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    match Scan::reply().find(bytes, &Limits::default()) {
        Ok(Found::Head(length)) => bytes.split_at(length),
        other => panic!("{other:?}"),
    }
}

fn field<'b>(head: &ReplyHead<'b>, name: &str) -> Option<&'b str> {
    head.fields()
        .first(name)
        .map(|value| std::str::from_utf8(value).expect("UTF-8"))
}

#[test]
fn an_answer_is_a_reply_with_a_body_for_people() {
    for status in [
        400, 403, 404, 408, 413, 414, 417, 421, 431, 501, 502, 503, 504, 505,
    ] {
        let bytes = Answer::new(status, "something was wrong").to_bytes(&TO);
        let (head, body) = split(&bytes);
        let head = reply(head, RequestKind::USUAL).unwrap();
        assert_eq!(
            (head.status(), head.body()),
            (status, Body::Length(body.len() as u64))
        );
        assert_eq!(head.persistence(), Persistence::KeepAlive);
        let text = std::str::from_utf8(body).unwrap();
        assert!(
            text.starts_with(&status.to_string()) && text.ends_with(": something was wrong\n"),
            "{text}"
        );
        assert!(!text.contains("Answered By"), "{status} has a name");
        assert_eq!(field(&head, "Content-Type"), Some("text/plain; charset=utf-8"));
        assert_eq!(field(&head, "Date"), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
    }
}

#[test]
fn an_answer_to_head_has_no_body_but_its_length() {
    let whole = Answer::new(503, "x").to_bytes(&TO);
    let head = Answer::new(503, "x").to_bytes(&AnswerTo { is_head: true, ..TO });
    assert_eq!(split(&whole).0, head);
}

#[test]
fn an_answer_says_whether_the_connection_stays() {
    use Persistence::*;
    for (persistence, version, expected) in [
        (KeepAlive, Version::Http11, None),
        (KeepAlive, Version::Http10, Some("keep-alive")),
        (Close, Version::Http11, Some("close")),
        (Close, Version::Http10, Some("close")),
    ] {
        let bytes = Answer::new(400, "x").to_bytes(&AnswerTo {
            persistence,
            version,
            ..TO
        });
        let head = reply(split(&bytes).0, RequestKind::USUAL).unwrap();
        assert_eq!(field(&head, "Connection"), expected);
        assert_eq!(head.persistence(), persistence);
    }
}

#[test]
fn nothing_in_an_answer_can_end_its_head() {
    let bytes = Answer::redirect("https://h/a\r\nX: y\u{fc} %41\"").to_bytes(&TO);
    let (head, body) = split(&bytes);
    let head = reply(head, RequestKind::USUAL).unwrap();
    assert_eq!((head.status(), field(&head, "X")), (308, None));
    assert_eq!(
        field(&head, "Location"),
        Some("https://h/a%0D%0AX:%20y%C3%BC%20%41%22")
    );
    assert!(!body.is_empty());
    let answer = Answer {
        retry_after: Some(5),
        ..Answer::new(503, "a\r\nb\0")
    };
    let bytes = answer.to_bytes(&TO);
    let (head, body) = split(&bytes);
    assert_eq!(body, b"503 Service Unavailable: a  b \n");
    assert_eq!(
        field(&reply(head, RequestKind::USUAL).unwrap(), "Retry-After"),
        Some("5")
    );
}

#[test]
fn a_date_that_http_cannot_say_is_left_out() {
    for (now, has_date) in [
        (SystemTime::UNIX_EPOCH - Duration::from_secs(1), false),
        (
            SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799),
            true,
        ),
        (
            SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_800),
            false,
        ),
    ] {
        let bytes = Answer::new(404, "x").to_bytes(&AnswerTo { now, ..TO });
        let head = reply(split(&bytes).0, RequestKind::USUAL).unwrap();
        assert_eq!(field(&head, "Date").is_some(), has_date);
    }
}
