//! Shows a configuration for `longsplice check`.

use super::{line, rules::takes, upstream_config::upstream};
use crate::config::{
    AccelerateConfig, Config, ForwardedMode, HttpConfig, ListenerConfig, OnFull, OnReload, OnShutdown,
    Period, Protocol, SourceAddress, Underscores,
};

/// Describes the configuration in words, including defaults.
pub(crate) fn config(c: &Config) -> String {
    let mut out = String::new();
    let s = &c.splicer;
    line(&mut out, "instance", c.instance.to_string());
    line(
        &mut out,
        "admin",
        c.admin
            .as_ref()
            .map_or("at the usual place".into(), |p| p.display().to_string()),
    );
    line(
        &mut out,
        "interfaces",
        s.interfaces
            .as_ref()
            .map_or("all that are up".into(), |i| i.join(", ")),
    );
    if !s.xdp.is_empty() {
        line(&mut out, "xdp", format!("{} ({})", s.xdp.join(", "), s.xdp_mode));
    }
    let ports = s
        .source_ports
        .as_ref()
        .map(|r| format!("{} to {}", r.start(), r.end()));
    line(
        &mut out,
        "source ports",
        ports.unwrap_or_else(|| "chosen outside the kernel's own range".into()),
    );
    line(
        &mut out,
        "flows",
        format!("at most {}, of them {} not detached", s.max_flows, s.max_dormant),
    );
    line(
        &mut out,
        "timeouts",
        format!(
            "idle {}, records of closed flows {}",
            Period(s.idle_timeout),
            Period(s.record_ttl)
        ),
    );
    line(&mut out, "memory", c.memory.to_string());
    if c.require_splice {
        line(&mut out, "splicing", "required".to_owned());
    }
    let spliced = match c.shutdown {
        OnShutdown::Keep => "spliced flows run on",
        OnShutdown::End => "spliced flows are reset",
    };
    line(
        &mut out,
        "at shutdown",
        format!("{spliced}; others get {}", Period(c.shutdown_timeout)),
    );
    let limit = match c.log.lines_per_second {
        0 => "all lines".to_owned(),
        n => format!("at most {n} lines of a kind a second"),
    };
    line(
        &mut out,
        "log",
        format!("{:?}, {:?}, {limit}", c.log.format, c.log.level).to_lowercase(),
    );
    if let Some(address) = c.operations.metrics {
        line(&mut out, "metrics", format!("http://{address}/metrics"));
    }
    if let Some(log) = &c.operations.access_log {
        let place = log
            .path
            .as_ref()
            .map_or("standard output".into(), |p| p.display().to_string());
        line(
            &mut out,
            "access log",
            format!("{place}, {}", log.format.as_str()),
        );
    }
    for rule in &c.rules {
        let action = rule.action.as_str();
        line(
            &mut out,
            "rule",
            format!("{}: {action} {}", rule.name, takes(&rule.matching)),
        );
    }
    if let Some(a) = &c.accelerate {
        accelerate(&mut out, a);
    }
    for u in &c.upstreams {
        upstream(&mut out, u);
    }
    for l in &c.listeners {
        listener(&mut out, l);
    }
    out
}

fn listener(out: &mut String, l: &ListenerConfig) {
    let listen: Vec<_> = l.listen.iter().map(ToString::to_string).collect();
    let to: Vec<_> = l.to.iter().map(ToString::to_string).collect();
    let target = match &l.upstream {
        Some(name) => format!("upstream {name}"),
        None if l.routes.takes_all() => "as its routes say".to_owned(),
        None if to.is_empty() => "where it was going".to_owned(),
        None => to.join(", else "),
    };
    line(
        out,
        "listener",
        format!("{}: {} -> {}", l.name, listen.join(", "), target),
    );
    for route in l.routes.routes() {
        let conditions: Vec<_> = route.conditions.iter().map(ToString::to_string).collect();
        let takes = match conditions.is_empty() {
            true => "everything".to_owned(),
            false => conditions.join(", and "),
        };
        line(
            out,
            "",
            format!("route {}: {takes} -> {}", route.name, route.action),
        );
    }
    if let Some(intercept) = &l.intercept {
        let rules = l.rules();
        let as_whom = match intercept.source {
            SourceAddress::Forwarder => "its own address",
            SourceAddress::Client => "the client's address",
            SourceAddress::ClientAndPort => "the client's address and port",
        };
        for rule in &rules {
            line(out, "", format!("intercepts: {}", takes(&rule.matching)));
        }
        line(out, "", format!("connects from {as_whom}"));
    }
    front(out, l);
    let unsplice = match l.unsplice.is_closed() {
        true => String::new(),
        false => format!(", unsplice {}", l.unsplice),
    };
    line(
        out,
        "",
        format!("splice {}, detach {}{unsplice}", l.splice, l.detach),
    );
    if !l.rate_limit.is_none() {
        line(out, "", format!("at most {} of each connection", l.rate_limit));
    }
    let keepalive = l.idle.keepalive.map_or("off".to_owned(), |k| k.to_string());
    let limit = l
        .idle
        .limit
        .map_or("never".to_owned(), |limit| Period(limit).to_string());
    line(
        out,
        "",
        format!("relayed: ended when idle for {limit}, keep-alive {keepalive}"),
    );
    if l.on_reload != OnReload::Keep {
        line(
            out,
            "",
            format!("open connections at a reload: {}", l.on_reload.as_str()),
        );
    }
    if let Some(name) = &l.congestion {
        line(out, "", format!("congestion control toward clients: {name}"));
    }
    if l.abort_on_close {
        line(
            out,
            "",
            "a client that closes its half while it waits is given up".to_owned(),
        );
    }
    let then = match l.on_full {
        OnFull::Wait => "others wait",
        OnFull::Refuse => "others are refused",
    };
    let most = l
        .max_connections
        .map_or("no limit".into(), |n| format!("at most {n}, {then}"));
    line(
        out,
        "",
        format!(
            "connect timeout {}, connections: {most}",
            Period(l.connect_timeout)
        ),
    );
}

/// Describes the transparent accelerator in words, including defaults.
fn accelerate(out: &mut String, a: &AccelerateConfig) {
    fn joined<T: ToString>(list: &[T]) -> String {
        let all: Vec<_> = list.iter().map(ToString::to_string).collect();
        all.join(", ")
    }
    let or_all = |text: String| if text.is_empty() { "all".to_owned() } else { text };
    line(
        out,
        "accelerate",
        format!(
            "between {} (inside) and {} (outside)",
            joined(&a.inside),
            joined(&a.outside)
        ),
    );
    let except = match a.except.is_empty() {
        true => String::new(),
        false => format!(", except networks {}", joined(&a.except)),
    };
    let (to, ports) = (or_all(joined(&a.to)), or_all(joined(&a.ports)));
    line(
        out,
        "",
        format!("takes over connections to: networks {to}, ports {ports}{except}"),
    );
    line(
        out,
        "",
        format!(
            "at most {} at once, in each at most {} of queue",
            a.max_connections,
            Period(a.queue)
        ),
    );
    line(
        out,
        "",
        format!(
            "released: round trip of {} or less, or predicted gain below {:.2}",
            Period(a.min_rtt),
            f64::from(a.min_gain) / 100.0
        ),
    );
    let named = |name: &Option<String>| name.clone().unwrap_or_else(|| "the kernel's own".to_owned());
    let (inside, outside) = (named(&a.inside_congestion), named(&a.outside_congestion));
    line(
        out,
        "",
        format!("congestion control: inside {inside}, outside {outside}"),
    );
}

/// Describes the handling of heads.
fn http(http: &HttpConfig) -> String {
    let paths = match http.strict_paths {
        true => "strict",
        false => "as written",
    };
    let underscores = match http.underscores {
        Underscores::Drop => "are dropped",
        Underscores::Pass => "pass",
        Underscores::Refuse => "are refused",
    };
    let date = if http.date { "added" } else { "left" };
    let replaced = match http.forwarded_mode {
        ForwardedMode::Append => "",
        ForwardedMode::Replace => ", forwarded fields of clients are taken out",
    };
    let via = http
        .via
        .as_ref()
        .map_or(String::new(), |name| format!(", via {name}"));
    format!("paths {paths}, fields with underscores {underscores}, date {date}{replaced}{via}")
}

/// Describes what precedes the protocol.
fn front(out: &mut String, l: &ListenerConfig) {
    if !l.accept_proxy.is_empty() {
        let from: Vec<_> = l.accept_proxy.iter().map(ToString::to_string).collect();
        line(out, "", format!("requires a PROXY header of {}", from.join(", ")));
    }
    if l.protocol == Protocol::Http {
        line(out, "", http(&l.http));
    }
    let Some(tls) = &l.tls else { return };
    let files = tls
        .certificates
        .iter()
        .map(|c| c.certificate.display().to_string());
    let files: Vec<_> = files.collect();
    line(out, "", format!("terminates TLS with {}", files.join(", ")));
    if !tls.alpn.is_empty() {
        line(out, "", format!("offers {} by ALPN", tls.alpn.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::parse;

    fn shown(section: &str) -> String {
        let text = format!("[accelerate]\n{section}");
        let config = parse(Path::new("x.toml"), &text).unwrap();
        let mut out = String::new();
        super::accelerate(&mut out, &config.accelerate.unwrap());
        out
    }

    #[test]
    fn an_accelerator_is_shown_with_its_defaults() {
        let smallest = shown("inside = \"eth1\"\noutside = [\"eth0\", \"eth2\"]");
        let full = shown(
            "inside = \"eth1\"\noutside = \"eth0\"\noutside_congestion = \"bbr\"\nto = \"198.18.0.0/15\"\nports = [\"80\", \"443\"]\n\
             except = \"198.18.9.0/24\"\nmin_rtt = \"20ms\"\nmin_gain = 1.5\nqueue = \"50ms\"\nmax_connections = 9",
        );
        let expected = "\
accelerate    between eth1 (inside) and eth0, eth2 (outside)
              takes over connections to: networks all, ports all
              at most 16384 at once, in each at most 75ms of queue
              released: round trip of 10ms or less, or predicted gain below 1.15
              congestion control: inside the kernel's own, outside the kernel's own
accelerate    between eth1 (inside) and eth0 (outside)
              takes over connections to: networks 198.18.0.0/15, ports 80, 443, except networks 198.18.9.0/24
              at most 9 at once, in each at most 50ms of queue
              released: round trip of 20ms or less, or predicted gain below 1.50
              congestion control: inside the kernel's own, outside bbr
";
        let indented: String = expected.lines().map(|line| format!("  {line}\n")).collect();
        assert_eq!(smallest + &full, indented);
    }
}
