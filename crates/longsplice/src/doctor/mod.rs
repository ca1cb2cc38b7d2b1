//! Runs `longsplice doctor`: reports what this machine can do, what is missing, and the command that mends it.
//!
//! Each check is a function of an [`Env`], so that tests can pass any machine.

mod accelerator;
mod env;
mod interfaces;
mod kernel;
mod mounts;
mod privileges;
mod speed;
mod sysctls;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Serialize;

pub(crate) use env::{Env, Machine, Unmeasured};

/// Directory of the pins.
const BPFFS: &str = "/sys/fs/bpf";

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The machine is as it should be.
    Good,
    /// It works, with a limitation to know.
    Notice,
    /// Without it nothing can be spliced.
    Missing,
}

/// Finding of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Name of the check; stable, for programs.
    pub check: &'static str,
    /// Result.
    pub verdict: Verdict,
    /// Result in words.
    pub text: String,
    /// Command that mends it, if there is one.
    pub remedy: Option<String>,
}

impl Finding {
    fn good(check: &'static str, text: impl Into<String>) -> Self {
        Finding {
            check,
            verdict: Verdict::Good,
            text: text.into(),
            remedy: None,
        }
    }

    fn notice(check: &'static str, text: impl Into<String>) -> Self {
        Finding {
            verdict: Verdict::Notice,
            ..Finding::good(check, text)
        }
    }

    fn missing(check: &'static str, text: impl Into<String>) -> Self {
        Finding {
            verdict: Verdict::Missing,
            ..Finding::good(check, text)
        }
    }

    fn mend(self, remedy: impl Into<String>) -> Self {
        Finding {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// All findings.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this program.
    pub version: &'static str,
    /// True if nothing is missing.
    pub splice_available: bool,
    /// True if nothing is missing for a transparent accelerator; `None` if that was not examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerate_available: Option<bool>,
    /// Findings: one or more for each check.
    pub findings: Vec<Finding>,
}

type Check = fn(&dyn Env) -> Vec<Finding>;

const CHECKS: &[Check] = &[
    kernel::release,
    kernel::btf,
    kernel::jit,
    kernel::options,
    mounts::bpffs,
    mounts::namespace,
    privileges::capabilities,
    privileges::repair,
    privileges::descriptors,
    interfaces::usable,
    interfaces::offloads,
    interfaces::order,
    speed::tc_or_xdp,
    sysctls::tcp_options,
    sysctls::source_ports,
    sysctls::source_validation,
    sysctls::ipv6,
    sysctls::loopback_forwarding,
    sysctls::conntrack,
    sysctls::congestion,
];

const ACCELERATOR_CHECKS: &[Check] = &[
    accelerator::forwarding,
    accelerator::tracking,
    accelerator::firewall,
    accelerator::congestion,
    accelerator::buffers,
];

/// Runs the checks for splicing.
pub(crate) fn examine(env: &dyn Env) -> Report {
    let findings = run(CHECKS, env);
    Report {
        version: env!("CARGO_PKG_VERSION"),
        splice_available: is_complete(&findings),
        accelerate_available: None,
        findings,
    }
}

/// Runs the checks for splicing, and those for a transparent accelerator.
pub(crate) fn examine_accelerator(env: &dyn Env) -> Report {
    let mut report = examine(env);
    let mut further = run(ACCELERATOR_CHECKS, env);
    report.accelerate_available = Some(report.splice_available && is_complete(&further));
    report.findings.append(&mut further);
    report
}

fn run(checks: &[Check], env: &dyn Env) -> Vec<Finding> {
    checks.iter().flat_map(|check| check(env)).collect()
}

fn is_complete(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict != Verdict::Missing)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let sign = match finding.verdict {
                Verdict::Good => '✔',
                Verdict::Notice => '!',
                Verdict::Missing => '✘',
            };
            writeln!(f, "{sign} {:<14} {}", finding.check, finding.text)?;
            if let Some(remedy) = &finding.remedy {
                writeln!(f, "{:17}→ {remedy}", "")?;
            }
        }
        let verdict = match (self.splice_available, self.accelerate_available) {
            (true, None) => "Nothing that splicing needs was found missing here.",
            (false, None) => "Connections are forwarded here, but not spliced: what is marked ✘ is missing.",
            (_, Some(true)) => "Nothing that an accelerator needs was found missing here.",
            (_, Some(false)) => "No connection can be accelerated here: what is marked ✘ is missing.",
        };
        writeln!(f, "\n{verdict}")
    }
}
