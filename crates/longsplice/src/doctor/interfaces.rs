//! Checks the interfaces over which flows can be spliced.

use longsplice_engine::NetworkInterface;

use super::{Env, Finding};

/// Types with an Ethernet header to rewrite: ARPHRD_ETHER and ARPHRD_LOOPBACK.
const WITH_ETHERNET_HEADER: [u16; 2] = [1, 772];
/// Limits the interfaces that are examined in detail: a host of containers has hundreds.
const MOST_EXAMINED: usize = 8;

pub(super) fn usable(env: &dyn Env) -> Vec<Finding> {
    let all = env.interfaces();
    let names = |which: fn(&NetworkInterface) -> bool| {
        all.iter()
            .filter(|i| which(i))
            .map(|i| i.name.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut findings = Vec::new();
    let usable = names(|i| i.can_carry_flows() && i.is_up);
    findings.push(if usable.is_empty() {
        Finding::missing("interfaces", "none that is up can carry spliced flows")
            .mend("ip link set dev NAME up")
    } else {
        Finding::good("interfaces", format!("flows can be spliced over {usable}"))
    });
    let others = names(|i| !i.can_carry_flows() && i.is_up);
    if !others.is_empty() {
        let text = format!(
            "neither with Ethernet headers of their own nor from point to point, so relayed (reason `interface`): {others}"
        );
        findings.push(Finding::notice("interfaces", text));
    }
    let down = names(|i| i.can_carry_flows() && !i.is_up);
    if !down.is_empty() {
        findings.push(Finding::good(
            "interfaces",
            format!("down, watched once they are up: {down}"),
        ));
    }
    findings
}

/// Returns the interfaces to examine in detail.
pub(super) fn examined(env: &dyn Env) -> impl Iterator<Item = NetworkInterface> {
    let all = env.interfaces().into_iter();
    all.filter(|i| WITH_ETHERNET_HEADER.contains(&i.kind) && i.is_up && i.name != "lo")
        .take(MOST_EXAMINED)
}

pub(super) fn offloads(env: &dyn Env) -> Vec<Finding> {
    let mut findings = Vec::new();
    let examined: Vec<_> = examined(env).collect();
    for interface in &examined {
        let name = &interface.name;
        match env.run("ethtool", &["-k", name]) {
            Ok(features) => findings.extend(judge(name, &features)),
            Err(_) => {
                let text = "cannot be seen: ethtool is not installed, or not allowed";
                return vec![
                    Finding::notice("offloads", text).mend(format!("apt install ethtool; ethtool -k {name}")),
                ];
            }
        }
    }
    if findings.is_empty() && !examined.is_empty() {
        findings.push(Finding::good("offloads", "GRO and GSO are on, LRO is off"));
    }
    findings
}

/// Looks at the programs of others where an instance is attached. Without one the order is not decided: ours come first
/// when they are attached.
pub(super) fn order(env: &dyn Env) -> Vec<Finding> {
    let Some(order) = env.programs_before() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if !order.before.is_empty() {
        let text = format!(
            "programs of others stand before ours: if they accept or redirect packets, spliced flows stop: {}",
            order.before.join("; ")
        );
        let remedy = "attach them behind ours (tcx: BPF_F_AFTER), or leave the interface out (`interfaces`)";
        findings.push(Finding::notice("order", text).mend(remedy));
    }
    if !order.unseen.is_empty() {
        let text = format!(
            "whether programs of others stand before ours cannot be seen: {}",
            order.unseen.join("; ")
        );
        let remedy = "look for those that stand first: tc filter show dev INTERFACE ingress, and egress";
        findings.push(Finding::notice("order", text).mend(remedy));
    }
    if findings.is_empty() {
        findings.push(Finding::good("order", "no program of others stands before ours"));
    }
    findings
}

/// Returns findings about features with an unsuitable setting only.
fn judge(name: &str, features: &str) -> Vec<Finding> {
    let on = |feature: &str| {
        let value = features
            .lines()
            .filter_map(|l| l.trim().strip_prefix(feature)?.strip_prefix(": "))
            .next();
        value.map(|v| v.starts_with("on"))
    };
    let mut findings = Vec::new();
    let slow: Vec<_> = [
        ("generic-receive-offload", "gro"),
        ("generic-segmentation-offload", "gso"),
    ]
    .into_iter()
    .filter(|(feature, _)| on(feature) == Some(false))
    .map(|(_, short)| short)
    .collect();
    if !slow.is_empty() {
        let set: Vec<_> = slow.iter().map(|short| format!("{short} on")).collect();
        let text = format!(
            "{name}: {} off: each segment is translated by itself, which is slower",
            slow.join(", ")
        );
        findings.push(Finding::notice("offloads", text).mend(format!("ethtool -K {name} {}", set.join(" "))));
    }
    let by_device = "segments merged by the device may not be cut again as they were";
    let as_list = "spliced segments are merged as lists, which are copied, and dropped before Linux 6.12";
    for (feature, short, effect) in [
        ("large-receive-offload", "lro", by_device),
        ("rx-gro-hw", "rx-gro-hw", by_device),
        ("rx-gro-list", "rx-gro-list", as_list),
    ] {
        if on(feature) == Some(true) {
            let text = format!("{name}: {short} is on: {effect}");
            findings.push(Finding::notice("offloads", text).mend(format!("ethtool -K {name} {short} off")));
        }
    }
    findings
}
