//! Shows upstreams for `longsplice check`.

use longsplice_core::proxy_protocol::Version;

use super::line;
use crate::config::{HealthConfig, Period, Probe, ServerConfig, UpstreamConfig};

/// Describes an upstream in words, including defaults.
pub(super) fn upstream(out: &mut String, u: &UpstreamConfig) {
    let servers: Vec<_> = u.servers.iter().map(server).collect();
    line(out, "upstream", format!("{}: {}", u.name, servers.join(", ")));
    let sticky = match &u.sticky {
        Some(cookie) => format!(", sticky by cookie {cookie}"),
        None => String::new(),
    };
    let retries = match u.retries {
        Some(0) => "no retries".to_owned(),
        Some(1) => "1 retry".to_owned(),
        Some(n) => format!("{n} retries"),
        None => "all are tried".to_owned(),
    };
    line(
        out,
        "",
        format!(
            "balance {}{sticky}; connect timeout {}, {retries}",
            u.balance,
            Period(u.connect_timeout)
        ),
    );
    if let Some(name) = &u.congestion {
        line(out, "", format!("congestion control toward servers: {name}"));
    }
    if u.servers.iter().any(|s| s.max_connections.is_some()) {
        let timeout = Period(u.queue_timeout);
        line(out, "", format!("queue {}, for {timeout}", u.queue));
    }
    let proxy = match u.send_proxy {
        Some(Version::V1) => ", PROXY header v1",
        Some(Version::V2) => ", PROXY header v2",
        None => "",
    };
    let idle = Period(u.idle_timeout);
    line(
        out,
        "",
        format!("keeps {} idle connections to each for {idle}{proxy}", u.max_idle),
    );
    line(
        out,
        "",
        u.health.as_ref().map_or("not checked".to_owned(), checks),
    );
    let passive = match u.outlier_detection.failures {
        0 => "failures eject no server".to_owned(),
        n => format!(
            "out for {} after {n} failures in a row within {}{}",
            Period(u.outlier_detection.ejection_time),
            Period(u.outlier_detection.period),
            if u.outlier_status { ", 5xx among them" } else { "" }
        ),
    };
    let slow = match u.slow_start.is_zero() {
        true => String::new(),
        false => format!("; slow start {}", Period(u.slow_start)),
    };
    line(out, "", format!("{passive}{slow}"));
}

fn server(s: &ServerConfig) -> String {
    let mut words = Vec::new();
    if s.name.is_some() {
        words.push(s.place.to_string());
    }
    if s.weight != 1 {
        words.push(format!("weight {}", s.weight));
    }
    if let Some(most) = s.max_connections {
        words.push(format!("at most {most}"));
    }
    if s.backup {
        words.push("backup".to_owned());
    }
    match words.is_empty() {
        true => s.label(),
        false => format!("{} ({})", s.label(), words.join(", ")),
    }
}

fn checks(h: &HealthConfig) -> String {
    let what = match &h.probe {
        Probe::Tcp => "a connection".to_owned(),
        Probe::Http { path, host, status } => {
            let host = host.as_ref().map_or(String::new(), |host| format!(" of {host}"));
            format!("GET {path}{host} ({status})")
        }
    };
    format!(
        "checked every {} by {what}, timeout {}; up after {} good ones, down after {} bad ones",
        Period(h.interval),
        Period(h.timeout),
        h.rise,
        h.fall
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn an_upstream_is_shown_with_its_defaults() {
        let text = r#"
            [[upstream]]
            name = "a"
            servers = ["192.0.2.1:80"]
            [[upstream]]
            name = "b"
            balance = "hash=cookie:S"
            sticky = "T"
            retries = 0
            congestion = "bbr"
            queue = 7
            send_proxy = "v2"
            health = { http = "/h", host = "x" }
            outlier_detection = { failures = 0 }
            slow_start = "10s"
            [[upstream.server]]
            address = "192.0.2.2:80"
            name = "two"
            weight = 3
            max_connections = 10
            [[upstream.server]]
            address = "srv:_http._tcp.example"
            backup = true
            [[listener]]
            listen = ":1"
            upstream = "b"
        "#;
        let config = crate::config::parse(Path::new("x.toml"), text).unwrap();
        let mut out = String::new();
        for u in &config.upstreams {
            super::upstream(&mut out, u);
        }
        let indented: String = "\
upstream      a: 192.0.2.1:80
              balance round_robin; connect timeout 5s, 2 retries
              keeps 64 idle connections to each for 30s
              not checked
              out for 10s after 5 failures in a row within 10s
upstream      b: two (192.0.2.2:80, weight 3, at most 10), srv:_http._tcp.example (backup)
              balance hash=cookie:S, sticky by cookie T; connect timeout 5s, no retries
              congestion control toward servers: bbr
              queue 7, for 5s
              keeps 64 idle connections to each for 30s, PROXY header v2
              checked every 2s by GET /h of x (200-399), timeout 1s; up after 2 good ones, down after 3 bad ones
              failures eject no server; slow start 10s
"
        .lines()
        .map(|line| format!("  {line}\n"))
        .collect();
        assert_eq!(out, indented);
    }
}
