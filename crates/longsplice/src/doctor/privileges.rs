//! Checks the privileges of this process.

use super::{BPFFS, Env, Finding};

const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Number of descriptors below which a busy relay runs short.
const FEW_DESCRIPTORS: u64 = 4096;

/// Returns the effective capabilities, as a set of bits.
fn effective(env: &dyn Env) -> Option<u64> {
    let status = env.read("/proc/self/status").ok()?;
    let bits = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

fn has(set: u64, capability: u32) -> bool {
    set & (1 << capability) != 0
}

pub(super) fn is_admin(env: &dyn Env) -> bool {
    effective(env).is_some_and(|set| has(set, SYS_ADMIN))
}

pub(super) fn capabilities(env: &dyn Env) -> Vec<Finding> {
    let Some(set) = effective(env) else {
        return vec![Finding::notice(
            "capabilities",
            "cannot be read (/proc/self/status)",
        )];
    };
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, which were split off it.
    let network = |capability| matches!(capability, NET_ADMIN | NET_RAW);
    let lacks = |capability| !has(set, capability) && (network(capability) || !has(set, SYS_ADMIN));
    let needed = [
        ("CAP_BPF", BPF),
        ("CAP_NET_ADMIN", NET_ADMIN),
        ("CAP_NET_RAW", NET_RAW),
        ("CAP_PERFMON", PERFMON),
    ];
    let lacking: Vec<_> = needed
        .into_iter()
        .filter(|(_, c)| lacks(*c))
        .map(|(name, _)| name)
        .collect();
    vec![if lacking.is_empty() {
        Finding::good("capabilities", "CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON")
    } else {
        Finding::missing(
            "capabilities",
            format!("this process lacks {}", lacking.join(", ")),
        )
        // Capabilities alone do not help a user who may not write where the pins are.
        .mend(match env.probe_write(BPFFS).is_ok() {
            true => {
                "run it with sudo or by packaging/longsplice.service, or: \
                 setcap cap_bpf,cap_net_admin,cap_net_raw,cap_perfmon+ep \"$(command -v longsplice)\""
            }
            false => "run it with sudo or by packaging/longsplice.service",
        })
    }]
}

pub(super) fn repair(env: &dyn Env) -> Vec<Finding> {
    vec![match env.probe_repair() {
        Ok(()) => Finding::good("tcp-repair", "sockets can be closed in silence and rebuilt"),
        Err(why) if effective(env).is_some_and(|set| has(set, NET_ADMIN)) => {
            Finding::missing("tcp-repair", format!("the kernel refuses it: {why}")).mend(
                "boot a kernel built with CONFIG_CHECKPOINT_RESTORE=y, and start outside of user namespaces",
            )
        }
        Err(why) => Finding::missing("tcp-repair", format!("not allowed without CAP_NET_ADMIN: {why}"))
            .mend("see capabilities"),
    }]
}

pub(super) fn descriptors(env: &dyn Env) -> Vec<Finding> {
    let limits = env.read("/proc/self/limits").unwrap_or_default();
    let hard = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files"))
        .and_then(|l| l.split_whitespace().nth(1))
        .map(str::to_owned);
    // A connection takes two sockets; the daemon raises its soft limit to the hard one.
    vec![match hard.as_deref().map(|h| (h, h.parse::<u64>())) {
        None => Finding::notice("descriptors", "the limit cannot be read (/proc/self/limits)"),
        Some((_, Ok(n))) if n < FEW_DESCRIPTORS => Finding::notice(
            "descriptors",
            format!("{n}: some {} connections not detached at once", n / 2),
        )
        .mend("ulimit -n 1048576, or LimitNOFILE=1048576 in the unit"),
        Some((_, Ok(n))) => Finding::good(
            "descriptors",
            format!("{n}: some {} connections not detached at once", n / 2),
        ),
        Some((hard, Err(_))) => Finding::good("descriptors", hard.to_owned()),
    }]
}
