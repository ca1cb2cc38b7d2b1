//! Compares the costs of a segment at tc and in XDP on this machine, and advises which to use on which interface.

use super::{Env, Finding, Unmeasured, Verdict, interfaces, mounts, privileges};

/// Approximate number of segments in a super-packet of 64 kB, which GRO hands to tc as one.
const MERGED: u32 = 44;

pub(super) fn tc_or_xdp(env: &dyn Env) -> Vec<Finding> {
    // Skip this if a prerequisite is missing, which another check reports: mounting or loading here could hide it.
    let lacking = [mounts::bpffs(env), privileges::capabilities(env)].concat();
    if lacking.iter().any(|f| f.verdict != Verdict::Good) {
        return Vec::new();
    }
    if !privileges::is_admin(env) {
        let text = "tc and XDP were not compared: a network namespace to do that in needs CAP_SYS_ADMIN";
        return vec![Finding::good("xdp", text)];
    }
    let cost = match env.segment_cost() {
        Ok(cost) => cost,
        Err(Unmeasured::Refused(why)) => return vec![Finding::missing("programs", why)],
        Err(Unmeasured::Failed(why)) => {
            return vec![Finding::notice(
                "xdp",
                format!("tc and XDP were not compared: {why}"),
            )];
        }
    };
    let text = format!(
        "a segment takes {} ns at tc and {} ns in XDP (programs alone, one flow); {}",
        cost.tc,
        cost.xdp,
        advice(cost.tc, cost.xdp, &native(env))
    );
    vec![Finding::good("xdp", text)]
}

/// Returns the interfaces whose drivers support XDP.
fn native(env: &dyn Env) -> Vec<String> {
    interfaces::examined(env)
        .map(|i| i.name)
        .filter(|name| env.has_native_xdp(name))
        .collect()
}

fn advice(tc: u32, xdp: u32, native: &[String]) -> String {
    if native.is_empty() {
        return "use tc: no driver of an interface here is known to have XDP that redirects".into();
    }
    if xdp >= tc {
        return "use tc: XDP saves no more than the sk_buff".into();
    }
    let names: Vec<_> = native.iter().map(|name| format!("\"{name}\"")).collect();
    format!(
        "use XDP where segments are short or come one by one: xdp = [{}] (it also saves the sk_buff); use tc where GRO \
         merges them ({:.1} ns for each of {MERGED}), and on veth, where checksums come unfinished",
        names.join(", "),
        f64::from(tc) / f64::from(MERGED)
    )
}
