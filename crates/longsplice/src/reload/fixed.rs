//! Finds keys that a reload cannot change: the engine was opened with them, or clients depend on them.

use longsplice_engine::SplicerConfig;

use crate::config::{Config, usual_max_dormant};

/// Returns the keys that differ and need a restart, as written in the file.
pub(super) fn differing(now: &Config, next: &Config) -> Vec<&'static str> {
    // List all fields: a new field must be considered here.
    let SplicerConfig {
        instance: _,
        interfaces,
        xdp,
        xdp_mode,
        max_flows,
        max_dormant,
        source_ports,
        idle_timeout,
        record_ttl,
    } = &next.splicer;
    let before = &now.splicer;
    // Name a key that follows another one only where it is written.
    let is_usual = |of: &SplicerConfig| of.max_dormant == usual_max_dormant(of.max_flows);
    let keys = [
        ("instance", now.instance != next.instance),
        ("admin", now.admin != next.admin),
        ("interfaces", before.interfaces != *interfaces),
        ("xdp", before.xdp != *xdp),
        ("xdp_mode", before.xdp_mode != *xdp_mode),
        ("max_flows", before.max_flows != *max_flows),
        (
            "max_dormant",
            before.max_dormant != *max_dormant && !(is_usual(before) && is_usual(&next.splicer)),
        ),
        ("source_ports", before.source_ports != *source_ports),
        ("idle_timeout", before.idle_timeout != *idle_timeout),
        ("record_ttl", before.record_ttl != *record_ttl),
        ("accelerate", now.accelerate != next.accelerate),
        ("log.format", now.log.format != next.log.format),
    ];
    keys.into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn parse(head: &str) -> Config {
        let text = format!("{head}\n[[listener]]\nlisten = \"127.0.0.1:8080\"\nto = \"127.0.0.1:80\"\n");
        config::parse(Path::new("x.toml"), &text).unwrap()
    }

    #[test]
    fn each_key_that_needs_a_restart_is_named() {
        let now = parse("");
        for (head, key) in [
            ("instance = \"b\"", "instance"),
            ("admin = \"/run/b.sock\"", "admin"),
            ("interfaces = [\"lo\"]", "interfaces"),
            ("xdp = [\"eth0\"]", "xdp"),
            ("max_flows = 70000", "max_flows"),
            ("max_flows = 100", "max_flows"),
            ("max_dormant = 10", "max_dormant"),
            ("source_ports = \"20000-20009\"", "source_ports"),
            ("idle_timeout = \"1h\"", "idle_timeout"),
            ("record_ttl = \"1s\"", "record_ttl"),
            ("[accelerate]\ninside = \"a\"\noutside = \"b\"", "accelerate"),
            ("[log]\nformat = \"json\"", "log.format"),
        ] {
            assert_eq!(differing(&now, &parse(head)), [key], "{head}");
        }
        for head in [
            "shutdown_timeout = \"1s\"",
            "shutdown = \"end\"",
            "[log]\nlevel = \"debug\"",
            "on_reload = \"reset\"",
        ] {
            assert_eq!(differing(&now, &parse(head)), [""; 0], "{head}");
        }
    }
}
