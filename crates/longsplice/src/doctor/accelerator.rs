//! Checks what a transparent accelerator needs besides splicing, and what makes it slow.

use serde_json::Value;

use super::{Env, Finding};

/// Bytes of a leg's buffer below which the window limits a long path: 80 Mbit/s over 100 ms.
const SMALL_BUFFER: u64 = 1 << 20;

/// Bytes for all sockets below which a few hundred legs make memory short.
const SMALL_POOL: u64 = 256 << 20;

/// File of the pages for all sockets together; only the initial network namespace has it.
const POOL: &str = "/proc/sys/net/ipv4/tcp_mem";

/// Exempts taken-over connections from connection tracking without nftables.
const NOTRACK: &str = "for CHAIN in PREROUTING OUTPUT; do iptables -t raw -A $CHAIN -m mark --mark 0x4c000000/0xff000000 -j CT --notrack; done";

/// Mark of taken-over connections.
const MARK: u32 = 0x4c00_0000;

pub(super) fn forwarding(env: &dyn Env) -> Vec<Finding> {
    let is_off = |path: &str| env.value(path).is_ok_and(|value| value == "0");
    let mut findings = vec![match is_off("/proc/sys/net/ipv4/ip_forward") {
        true => Finding::missing(
            "ip-forward",
            "off: this host is no router, and what is passed through ends here",
        )
        .mend("sysctl -w net.ipv4.ip_forward=1"),
        false => Finding::good("ip-forward", "on"),
    }];
    if is_off("/proc/sys/net/ipv6/conf/all/forwarding") {
        findings.push(
            Finding::notice("ip-forward", "off for IPv6: only IPv4 passes this host")
                .mend("sysctl -w net.ipv6.conf.all.forwarding=1"),
        );
    }
    findings
}

pub(super) fn tracking(env: &dyn Env) -> Vec<Finding> {
    if !env.exists("/proc/sys/net/netfilter/nf_conntrack_max") {
        return vec![Finding::good("notrack", "no connection tracking")];
    }
    let finding = match env.probe_nftables() {
        Ok(()) => Finding::good(
            "notrack",
            "the daemon exempts taken-over connections from connection tracking; a firewall that drops by default must accept them: \
             `meta mark & 0xff000000 == 0x4c000000 accept` in its chains `input` and `output`",
        ),
        Err(error) => Finding::notice(
            "notrack",
            format!(
                "nftables cannot be used ({error}), by which the daemon exempts taken-over connections from connection tracking: that \
                 sees both legs as one connection, and a firewall that drops what is invalid breaks it"
            ),
        )
        .mend(NOTRACK),
    };
    vec![finding]
}

/// Looks for chains that drop by default what the daemon's sockets receive or send. Without the program `nft`, or the right to
/// list, there is no finding.
pub(super) fn firewall(env: &dyn Env) -> Vec<Finding> {
    let listed = env.run("nft", &["-j", "list", "ruleset"]);
    let listed: Value = listed
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let all = listed["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    // It lists numbers in decimal.
    let mark = MARK.to_string();
    let table = |one: &Value| ["family", "table"].map(|key| one[key].clone());
    let accepts_all = |expressions: &Value| {
        let is_free = |one: &Value| ["accept", "counter"].iter().any(|key| one.get(key).is_some());
        expressions.as_array().is_some_and(|all| all.iter().all(is_free))
    };
    let accepts = |chain: &Value| {
        let mut rules = all.iter().map(|one| &one["rule"]);
        rules.any(|rule| {
            table(rule) == table(chain)
                && (rule["expr"].to_string().contains(&mark)
                    || rule["chain"] == chain["name"] && accepts_all(&rule["expr"]))
        })
    };
    let is_closed = |chain: &&Value| {
        let is_one_of =
            |key: &str, these: &[&str]| chain[key].as_str().is_some_and(|name| these.contains(&name));
        is_one_of("family", &["inet", "ip", "ip6"])
            && is_one_of("hook", &["input", "output"])
            && is_one_of("policy", &["drop"])
            && !accepts(chain)
    };
    let told = |chain: &Value| {
        let [family, table, name, hook] =
            ["family", "table", "name", "hook"].map(|key| chain[key].as_str().unwrap_or_default());
        let text = format!(
            "the chain `{name}` of the table `{family} {table}` drops by default on {hook}, and the table has no rule for the mark of \
             taken-over connections: unless another rule accepts them, connections pass through (`firewall`)"
        );
        Finding::notice("firewall", text).mend(format!(
            "nft insert rule {family} {table} {name} meta mark and 0xff000000 == 0x4c000000 accept"
        ))
    };
    let chains = all.iter().map(|one| &one["chain"]);
    chains.filter(is_closed).map(told).collect()
}

pub(super) fn congestion(env: &dyn Env) -> Vec<Finding> {
    let available = env
        .value("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    if available.split_whitespace().any(|name| name == "bbr") {
        return Vec::new();
    }
    let text =
        "bbr is not loaded: over a long leg that loses segments no other one of Linux comes near its rate";
    vec![Finding::notice("congestion", text).mend("modprobe tcp_bbr")]
}

pub(super) fn buffers(env: &dyn Env) -> Vec<Finding> {
    match limits(env) {
        Ok((receive, send, pages)) => vec![judge_buffers(env, receive, send, pages)],
        Err(why) => vec![Finding::notice(
            "tcp-buffers",
            format!("the limits cannot be read: {why}"),
        )],
    }
}

/// Returns the bytes that a leg may take to receive and to send, and the pages for all sockets together; `None` for these in
/// a network namespace, where the kernel does not show them. Fails with the file that cannot be read, and the reason.
fn limits(env: &dyn Env) -> Result<(u64, u64, Option<u64>), String> {
    let third = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let text = env.value(&path).map_err(|error| format!("{path}: {error}"))?;
        let value = text
            .split_whitespace()
            .nth(2)
            .and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("{path} has no three numbers: {text:?}"))
    };
    let pages = match env.exists(POOL) {
        true => Some(third("tcp_mem")?),
        false => None,
    };
    Ok((third("tcp_rmem")?, third("tcp_wmem")?, pages))
}

fn judge_buffers(env: &dyn Env, receive: u64, send: u64, pages: Option<u64>) -> Finding {
    let mb = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let all = pages.map(|pages| pages.saturating_mul(env.page_size()));
    let together = match all {
        Some(all) => format!("{:.0} MiB", mb(all)),
        None => format!(
            "what the host allows ({POOL} is not shown in this network namespace: `sysctl net.ipv4.tcp_mem` on the host)"
        ),
    };
    let text = format!(
        "a leg may take {:.1} MiB to receive and {:.1} MiB to send, all sockets together {together}",
        mb(receive),
        mb(send),
    );
    let mut set = Vec::new();
    if receive < SMALL_BUFFER {
        set.push("net.ipv4.tcp_rmem='4096 131072 6291456'".to_owned());
    }
    if send < SMALL_BUFFER {
        set.push("net.ipv4.tcp_wmem='4096 16384 4194304'".to_owned());
    }
    if all.is_some_and(|all| all < SMALL_POOL) {
        let most = SMALL_POOL / env.page_size();
        set.push(format!("net.ipv4.tcp_mem='{} {} {most}'", most / 2, most / 4 * 3));
    }
    match set.is_empty() {
        true => Finding::good("tcp-buffers", text),
        false => Finding::notice("tcp-buffers", format!("{text}: long legs are slow, or few"))
            .mend(format!("sysctl -w {}", set.join(" "))),
    }
}
