//! Checks the kernel: its version, types, compiler and options.

use super::{Env, Finding};

/// Oldest kernel with sufficient helpers and verifier: `make test-kernels` boots it.
const FLOOR: (u32, u32) = (6, 1);
/// First kernel that shows a program the state of a checksum; on older ones, helpers find it out for each segment.
const CHECKSUMS: (u32, u32) = (6, 2);
/// First kernel with tcx links; on older ones, programs attach as clsact filters.
const TCX: (u32, u32) = (6, 6);

fn version(env: &dyn Env) -> Option<(String, (u32, u32))> {
    let release = env.value("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some((release, version))
}

pub(super) fn release(env: &dyn Env) -> Vec<Finding> {
    let (major, minor) = FLOOR;
    let finding = match version(env) {
        None => Finding::notice("kernel", "the version cannot be read; 6.1 or later is needed"),
        Some((release, v)) if v < FLOOR => Finding::missing(
            "kernel",
            format!("Linux {release}; {major}.{minor} or later is needed"),
        )
        .mend("install a newer kernel, such as Debian 12's: apt install linux-image-amd64"),
        Some((release, v)) => {
            let mut text = format!("Linux {release} ({major}.{minor} or later is needed)");
            if v < CHECKSUMS {
                text += "; a segment costs some 60 ns more than from 6.2 on";
            }
            if v < TCX {
                text += "; programs attach as clsact filters (tcx from 6.6 on)";
            }
            Finding::good("kernel", text)
        }
    };
    vec![finding]
}

pub(super) fn btf(env: &dyn Env) -> Vec<Finding> {
    vec![if env.exists("/sys/kernel/btf/vmlinux") {
        Finding::good("btf", "the kernel describes its types (/sys/kernel/btf/vmlinux)")
    } else {
        Finding::missing(
            "btf",
            "the kernel does not describe its types: no /sys/kernel/btf/vmlinux",
        )
        .mend("boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (distributions' kernels are)")
    }]
}

pub(super) fn jit(env: &dyn Env) -> Vec<Finding> {
    vec![match env.value("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Ok("0") => Finding::notice(
            "bpf-jit",
            "programs are interpreted, which is several times slower",
        )
        .mend("sysctl -w net.core.bpf_jit_enable=1"),
        Ok(_) => Finding::good("bpf-jit", "programs are compiled"),
        Err(_) => Finding::notice(
            "bpf-jit",
            "cannot be seen here (net.core.bpf_jit_enable is shown in the first network namespace only)",
        ),
    }]
}

/// Options that tc programs need. A module is loaded on demand.
const OPTIONS: [&str; 4] = [
    "CONFIG_BPF_SYSCALL",
    "CONFIG_NET_CLS_ACT",
    "CONFIG_NET_SCH_INGRESS",
    "CONFIG_NET_CLS_BPF",
];

pub(super) fn options(env: &dyn Env) -> Vec<Finding> {
    let boot = version(env).map(|(release, _)| format!("/boot/config-{release}"));
    let config = env
        .run("zcat", &["/proc/config.gz"])
        .ok()
        .or_else(|| boot.and_then(|path| env.read(&path).ok()));
    let Some(config) = config else {
        return vec![Finding::notice(
            "kernel-config",
            "cannot be read (no /proc/config.gz nor /boot/config-*); whether tc programs attach is seen at the start",
        )];
    };
    let built = |option: &str| {
        config
            .lines()
            .filter_map(|l| l.strip_prefix(option))
            .any(|value| value == "=y" || value == "=m")
    };
    let absent: Vec<_> = OPTIONS.into_iter().filter(|option| !built(option)).collect();
    vec![if absent.is_empty() {
        Finding::good("kernel-config", "built with tc and BPF")
    } else {
        Finding::missing("kernel-config", format!("built without {}", absent.join(", ")))
            .mend("boot a kernel that has them (distributions' kernels have)")
    }]
}
