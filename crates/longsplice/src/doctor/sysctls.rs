//! Checks settings of the network stack.

use super::{Env, Finding};

fn ipv4(env: &dyn Env, name: &str) -> Option<String> {
    env.value(&format!("/proc/sys/net/ipv4/{name}")).ok()
}

pub(super) fn tcp_options(env: &dyn Env) -> Vec<Finding> {
    let off: Vec<_> = ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"]
        .into_iter()
        .filter(|name| ipv4(env, name).as_deref() == Some("0"))
        .collect();
    if off.is_empty() {
        return vec![Finding::good(
            "tcp-options",
            "timestamps, SACK and window scaling are offered",
        )];
    }
    let set: Vec<_> = off.iter().map(|name| format!("net.ipv4.{name}=1")).collect();
    let text = format!(
        "{} switched off: long paths are slow, spliced or not",
        off.join(", ")
    );
    vec![Finding::notice("tcp-options", text).mend(format!("sysctl -w {}", set.join(" ")))]
}

/// Checks that the kernel does not assign the port of a spliced flow: it sees no socket there.
pub(super) fn source_ports(env: &dyn Env) -> Vec<Finding> {
    let local = ipv4(env, "ip_local_port_range").and_then(|range| {
        let mut ends = range.split_whitespace().map(str::parse::<u16>);
        Some((ends.next()?.ok()?, ends.next()?.ok()?))
    });
    let Some((lo, hi)) = local else {
        return vec![Finding::notice(
            "source-ports",
            "net.ipv4.ip_local_port_range cannot be read",
        )];
    };
    let reserved_text = ipv4(env, "ip_local_reserved_ports").unwrap_or_default();
    let reserved = parse_ports(&reserved_text);
    let Some(planned) = env.source_ports() else {
        let also = if reserved_text.is_empty() {
            String::new()
        } else {
            format!(", except {reserved_text}")
        };
        return vec![Finding::good(
            "source-ports",
            format!("the kernel hands out {lo} to {hi}{also}"),
        )];
    };
    let kept_out =
        |port: u16| port < lo || port > hi || reserved.iter().any(|(from, to)| (*from..=*to).contains(&port));
    let range = std::ops::RangeInclusive::from(planned);
    vec![if range.clone().all(kept_out) {
        Finding::good(
            "source-ports",
            format!("{planned} is not handed out by the kernel"),
        )
    } else {
        let also = if reserved_text.is_empty() {
            String::new()
        } else {
            format!("{reserved_text},")
        };
        Finding::notice(
            "source-ports",
            format!("the kernel hands out ports of {planned} itself ({lo} to {hi})"),
        )
        .mend(format!(
            "sysctl -w net.ipv4.ip_local_reserved_ports={also}{planned}"
        ))
    }]
}

/// Parses a list such as `80,20000-29999`, without its malformed elements.
fn parse_ports(list: &str) -> Vec<(u16, u16)> {
    let one = |item: &str| {
        let (from, to) = item.split_once('-').unwrap_or((item, item));
        Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
    };
    list.split(',').filter_map(one).collect()
}

pub(super) fn source_validation(env: &dyn Env) -> Vec<Finding> {
    let mode = |of: &str| ipv4(env, &format!("conf/{of}/rp_filter")).and_then(|mode| mode.parse::<u8>().ok());
    let all = mode("all");
    // The kernel takes the larger one of the interface's own and of that for all.
    let is_strict = |name: &str| mode(name).max(all) == Some(1);
    let strict: Vec<_> = env
        .interfaces()
        .into_iter()
        .filter_map(|i| (i.is_up && i.name != "lo" && is_strict(&i.name)).then_some(i.name))
        .collect();
    if strict.is_empty() {
        return vec![Finding::good("rp-filter", "sources are not validated strictly")];
    }
    let marks = match ipv4(env, "conf/all/src_valid_mark").as_deref() {
        Some("1") => ", marks included (src_valid_mark)",
        _ => "",
    };
    let names = strict.join(", ");
    let text = format!("strict on {names}{marks}: where routes are asymmetric, relayed connections fail");
    vec![Finding::notice("rp-filter", text).mend("sysctl -w net.ipv4.conf.all.rp_filter=2")]
}

/// Checks that forwarding of the loopback is on, or can be switched on, without which no route is found.
pub(super) fn loopback_forwarding(env: &dyn Env) -> Vec<Finding> {
    let path = |family: &str| format!("/proc/sys/net/{family}/conf/lo/forwarding");
    let is_off = |family: &&str| env.value(&path(family)).is_ok_and(|value| value == "0");
    let off: Vec<_> = ["ipv4", "ipv6"].into_iter().filter(is_off).collect();
    let refused = off.iter().filter_map(|family| {
        let why = env.probe_write(&path(family)).err()?;
        Some((format!("net.{family}.conf.lo.forwarding=1"), why))
    });
    let refused: Vec<_> = refused.collect();
    vec![match refused.first() {
        None if off.is_empty() => Finding::good("lo-forwarding", "on"),
        None => Finding::good(
            "lo-forwarding",
            format!(
                "off ({}); the daemon switches it on for its look-ups of routes",
                off.join(", ")
            ),
        ),
        Some((_, why)) => {
            let text = format!(
                "off ({}), and this process cannot switch it on, which look-ups of routes need: {why}",
                off.join(", ")
            );
            let set: Vec<_> = refused.iter().map(|(set, _)| set.as_str()).collect();
            let remedy = format!(
                "sysctl -w {}, from where /proc/sys can be written (in a unit: ReadWritePaths=/proc/sys/net/ipv4 -/proc/sys/net/ipv6)",
                set.join(" ")
            );
            Finding::missing("lo-forwarding", text).mend(remedy)
        }
    }]
}

pub(super) fn ipv6(env: &dyn Env) -> Vec<Finding> {
    let off = env.value("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    vec![Finding::good(
        "ipv6",
        match off.as_deref() {
            Ok("0") => "on: legs of IPv6 are spliced, but for link-local ones",
            Ok(_) => "switched off (net.ipv6.conf.all.disable_ipv6): only IPv4 here",
            Err(_) => "not in this kernel: only IPv4 here",
        },
    )]
}

pub(super) fn congestion(env: &dyn Env) -> Vec<Finding> {
    let (all, own) = (
        ipv4(env, "tcp_available_congestion_control").unwrap_or_default(),
        ipv4(env, "tcp_congestion_control").unwrap_or_default(),
    );
    vec![Finding::good(
        "congestion",
        format!("{all} are loaded, {own} is what sockets begin with"),
    )]
}

pub(super) fn conntrack(env: &dyn Env) -> Vec<Finding> {
    if !env.exists("/proc/sys/net/netfilter/nf_conntrack_max") {
        return vec![Finding::good(
            "netfilter",
            "no connection tracking (spliced flows' segments would pass beside it)",
        )];
    }
    let told = match env
        .value("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
        .as_deref()
    {
        Ok("0") => {
            "a return has ctnetlink tell it not to judge that connection by its windows (nf_conntrack_tcp_be_liberal is 0); \
             an entry that has expired is made anew, without NAT"
        }
        _ => "it judges no connection by its windows (nf_conntrack_tcp_be_liberal)",
    };
    vec![Finding::notice(
        "netfilter",
        format!(
            "connection tracking is loaded; a spliced flow's segments pass beside it: firewall rules hold when a connection \
             is set up, and do not see it afterwards; one whose addresses are translated (NAT) is relayed; {told}"
        ),
    )]
}
