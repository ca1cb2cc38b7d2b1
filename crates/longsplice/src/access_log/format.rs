//! Formats a record as a line.

use std::{fmt::Write as _, io::Write, net::IpAddr, time::SystemTime};

use longsplice_engine::FlowInfo;
use serde::Serialize;
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

use super::{AccessRecord, End, FlowRecord};
use crate::config::AccessLogFormat;

/// Format of RFC 3339, in UTC, with milliseconds.
const RFC_3339: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
/// Format of NCSA httpd.
const NCSA: &[BorrowedFormatItem<'_>] =
    format_description!("[day]/[month repr:short]/[year]:[hour]:[minute]:[second] +0000");

/// A record in the JSON format: each line has each key.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    client: IpAddr,
    client_port: u16,
    listener: &'a str,
    route: Option<&'a str>,
    upstream: Option<&'a str>,
    server: Option<&'a str>,
    flow: Option<u32>,
    method: Option<&'a str>,
    target: Option<&'a str>,
    host: Option<&'a str>,
    version: Option<&'a str>,
    referer: Option<&'a str>,
    user_agent: Option<&'a str>,
    status: Option<u16>,
    bytes_to_client: u64,
    bytes_to_server: u64,
    duration_seconds: f64,
    first_byte_seconds: Option<f64>,
    spliced: bool,
    bytes_spliced: u64,
    relay_reason: Option<&'a str>,
    sni: Option<&'a str>,
    end: End,
}

/// Record of a spliced flow, in the JSON format: what `longsplice flows --json` shows, at this time.
#[derive(Serialize)]
struct FlowLine<'a> {
    time: String,
    record: &'static str,
    #[serde(flatten)]
    flow: &'a FlowInfo,
}

/// Appends a line.
pub(super) fn line(format: AccessLogFormat, record: &AccessRecord, out: &mut Vec<u8>) {
    match format {
        AccessLogFormat::Json => json(record, out),
        AccessLogFormat::Common => ncsa(record, false, out),
        AccessLogFormat::Combined => ncsa(record, true, out),
    }
}

fn json(record: &AccessRecord, out: &mut Vec<u8>) {
    let request = record.request.as_ref();
    let line = Line {
        time: time(record.time, RFC_3339),
        client: record.client.ip(),
        client_port: record.client.port(),
        listener: &record.listener,
        route: record.route.as_deref(),
        upstream: record.upstream.as_deref(),
        server: record.server.as_deref(),
        flow: record.traffic.flow.map(|id| id.0),
        method: request.map(|r| r.method.as_str()),
        target: request.map(|r| r.target.as_str()),
        host: request.and_then(|r| r.host.as_deref()),
        version: request.map(|r| r.version),
        referer: request.and_then(|r| r.referer.as_deref()),
        user_agent: request.and_then(|r| r.user_agent.as_deref()),
        status: record.status,
        bytes_to_client: record.traffic.bytes_to_client,
        bytes_to_server: record.traffic.bytes_to_server,
        duration_seconds: seconds(record.duration),
        first_byte_seconds: record.first_byte.map(seconds),
        spliced: record.traffic.spliced,
        bytes_spliced: record.traffic.bytes_spliced,
        relay_reason: record.traffic.relay_reason.map(|r| r.as_str()),
        sni: record.sni.as_deref(),
        end: record.end,
    };
    object(&line, out);
}

/// Appends the line of a spliced flow.
pub(super) fn flow(record: &FlowRecord, out: &mut Vec<u8>) {
    let line = FlowLine {
        time: time(record.time, RFC_3339),
        record: "flow",
        flow: &record.info,
    };
    object(&line, out);
}

fn object(line: &impl Serialize, out: &mut Vec<u8>) {
    let begin = out.len();
    match serde_json::to_writer(&mut *out, line) {
        Ok(()) => out.push(b'\n'),
        // Remove a partial line, which would spoil the next one. No field can fail.
        Err(_) => out.truncate(begin),
    }
}

/// Rounds to microseconds, the useful precision of a system's clock.
fn seconds(time: std::time::Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

/// Writes `host ident user [date] "request" status bytes`, and, if `combined`, `"referrer" "user agent"`.
fn ncsa(record: &AccessRecord, combined: bool, out: &mut Vec<u8>) {
    let mut request = String::new();
    let (mut referer, mut user_agent) = ("-", "-");
    match &record.request {
        Some(r) => {
            let _ = write!(request, "{} {} {}", r.method, r.target, r.version);
            referer = r.referer.as_deref().unwrap_or(referer);
            user_agent = r.user_agent.as_deref().unwrap_or(user_agent);
        }
        None => request.push('-'),
    }
    let status = record.status.map_or_else(|| "-".to_owned(), |s| s.to_string());
    // Writing to a Vec cannot fail.
    let _ = write!(
        out,
        "{} - - [{}] \"{}\" {status} {}",
        record.client.ip(),
        time(record.time, NCSA),
        Escaped(&request),
        record.traffic.bytes_to_client
    );
    if combined {
        let _ = write!(out, " \"{}\" \"{}\"", Escaped(referer), Escaped(user_agent));
    }
    out.push(b'\n');
}

fn time(time: SystemTime, format: &[BorrowedFormatItem<'_>]) -> String {
    let time = OffsetDateTime::from(time);
    // Every year of a system's clock fits the format.
    time.format(format).unwrap_or_else(|_| "-".to_owned())
}

/// Text for use between quotes: it contains no quote and no line end.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'"' | b'\\' => write!(f, "\\{}", byte as char)?,
                0x20..=0x7e => f.write_char(byte as char)?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use strum::VariantArray;

    use super::*;
    use crate::access_log::{Request, Traffic};

    fn record() -> AccessRecord {
        AccessRecord {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(971_211_336_250),
            route: Some("images".into()),
            request: Some(Request {
                method: "GET".into(),
                target: "/a\"b\u{7f}\r\nfake".into(),
                host: Some("img.example".into()),
                version: "HTTP/1.1",
                referer: None,
                user_agent: Some("curl\t\u{e9}".into()),
            }),
            status: Some(200),
            traffic: Traffic {
                bytes_to_client: 2326,
                bytes_to_server: 80,
                spliced: true,
                bytes_spliced: 2000,
                ..Traffic::default()
            },
            duration: Duration::from_micros(1_500_250),
            first_byte: Some(Duration::from_millis(2)),
            ..AccessRecord::new("web", "198.18.0.1:50000".parse().unwrap())
        }
    }

    fn text(format: AccessLogFormat, record: &AccessRecord) -> String {
        let mut out = Vec::new();
        line(format, record, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ncsa_lines_are_as_other_servers_write_them() {
        assert_eq!(
            text(AccessLogFormat::Common, &record()),
            "198.18.0.1 - - [10/Oct/2000:20:55:36 +0000] \"GET /a\\\"b\\x7f\\x0d\\x0afake HTTP/1.1\" 200 2326\n"
        );
        assert_eq!(
            text(AccessLogFormat::Combined, &record()),
            "198.18.0.1 - - [10/Oct/2000:20:55:36 +0000] \"GET /a\\\"b\\x7f\\x0d\\x0afake HTTP/1.1\" 200 2326 \
             \"-\" \"curl\\x09\\xc3\\xa9\"\n"
        );
        let plain = AccessRecord {
            request: None,
            status: None,
            ..record()
        };
        assert_eq!(
            text(AccessLogFormat::Common, &plain),
            "198.18.0.1 - - [10/Oct/2000:20:55:36 +0000] \"-\" - 2326\n"
        );
    }

    #[test]
    fn a_json_line_is_one_object_with_every_key() {
        let text = text(AccessLogFormat::Json, &record());
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (key, expected) in [
            ("time", serde_json::json!("2000-10-10T20:55:36.250Z")),
            ("client", "198.18.0.1".into()),
            ("client_port", 50_000.into()),
            ("route", "images".into()),
            ("upstream", serde_json::Value::Null),
            ("target", "/a\"b\u{7f}\r\nfake".into()),
            ("status", 200.into()),
            ("bytes_spliced", 2000.into()),
            ("duration_seconds", 1.50025.into()),
            ("first_byte_seconds", 0.002.into()),
            ("spliced", true.into()),
            ("end", "complete".into()),
        ] {
            assert_eq!(value[key], expected, "{key}");
        }
        assert_eq!(value.as_object().unwrap().len(), 24);
    }

    #[test]
    fn the_names_of_ends_are_the_same_everywhere() {
        for end in End::VARIANTS {
            assert_eq!(serde_json::to_value(end).unwrap(), end.as_str());
        }
    }
}
