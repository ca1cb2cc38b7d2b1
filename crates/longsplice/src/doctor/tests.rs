use std::{collections::BTreeMap, io};

use longsplice_engine::{NetworkInterface, ProgramsBefore, measure::SegmentCost};

use super::*;
use crate::address::PortRange;

mod accelerator;

/// A machine made of text: links and outputs of commands are files, too.
struct Fake {
    files: BTreeMap<String, String>,
    interfaces: Vec<NetworkInterface>,
    repair: Result<(), String>,
    nftables: Result<(), String>,
    source_ports: Option<PortRange>,
    /// Nanoseconds at tc and in XDP.
    cost: Result<(u32, u32), Unmeasured>,
    native_xdp: bool,
    before: Option<ProgramsBefore>,
    /// File that cannot be written, and the number of the error.
    refused: Option<(&'static str, i32)>,
}

const CONFIG: &str =
    "CONFIG_BPF_SYSCALL=y\nCONFIG_NET_CLS_ACT=y\nCONFIG_NET_SCH_INGRESS=m\nCONFIG_NET_CLS_BPF=m\n";
const MOUNTS: &str =
    "23 27 0:22 / /sys rw - sysfs sysfs rw\n42 23 0:39 / /sys/fs/bpf rw shared:1 - bpf bpf rw\n";
const FEATURES: &str = "Features for eth0:\ngeneric-segmentation-offload: on\ngeneric-receive-offload: on\n\
                        large-receive-offload: off [fixed]\nrx-gro-hw: off\n";

fn interface(name: &str, kind: u16) -> NetworkInterface {
    NetworkInterface {
        name: name.into(),
        kind,
        is_up: true,
        is_point_to_point: false,
        is_ipvlan: false,
    }
}

impl Fake {
    /// Returns a machine on which all is as it should be.
    fn good() -> Self {
        let files = [
            ("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
            ("/sys/kernel/btf/vmlinux", ""),
            ("/proc/sys/net/core/bpf_jit_enable", "1\n"),
            ("zcat /proc/config.gz", CONFIG),
            ("/proc/self/mountinfo", MOUNTS),
            ("/proc/1/mountinfo", MOUNTS),
            ("/proc/self/ns/mnt", "mnt:[1]"),
            ("/proc/1/ns/mnt", "mnt:[1]"),
            ("/proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n"),
            (
                "/proc/self/limits",
                "Max open files            1024                 524288               files     \n",
            ),
            ("ethtool -k eth0", FEATURES),
            ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("/proc/sys/net/ipv4/conf/all/rp_filter", "0\n"),
            ("/proc/sys/net/ipv4/conf/lo/forwarding", "0\n"),
            (
                "/proc/sys/net/ipv4/tcp_available_congestion_control",
                "reno cubic bbr\n",
            ),
            ("/proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
            ("/proc/sys/net/ipv4/ip_forward", "1\n"),
            ("/proc/sys/net/ipv6/conf/all/forwarding", "1\n"),
            ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
            ("/proc/sys/net/ipv4/tcp_mem", "94557\t126079\t189114\n"),
        ];
        Fake {
            files: files
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .collect(),
            interfaces: vec![interface("eth0", 1), interface("lo", 772)],
            repair: Ok(()),
            nftables: Ok(()),
            source_ports: None,
            cost: Ok((80, 60)),
            native_xdp: true,
            before: None,
            refused: None,
        }
    }

    fn with(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    fn without(mut self, path: &str) -> Self {
        self.files.remove(path);
        self
    }
}

impl Env for Fake {
    fn read(&self, path: &str) -> io::Result<String> {
        self.files
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn page_size(&self) -> u64 {
        4096
    }

    fn exists(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }
    fn probe_write(&self, path: &str) -> io::Result<()> {
        match self.refused {
            Some((refused, code)) if refused == path => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }
    fn link(&self, path: &str) -> io::Result<String> {
        self.read(path)
    }
    fn interfaces(&self) -> Vec<NetworkInterface> {
        self.interfaces.clone()
    }
    fn run(&self, program: &str, args: &[&str]) -> io::Result<String> {
        self.read(&format!("{program} {}", args.join(" ")))
    }
    fn probe_repair(&self) -> Result<(), String> {
        self.repair.clone()
    }
    fn probe_nftables(&self) -> Result<(), String> {
        self.nftables.clone()
    }
    fn source_ports(&self) -> Option<PortRange> {
        self.source_ports
    }
    fn segment_cost(&self) -> Result<SegmentCost, Unmeasured> {
        self.cost.clone().map(|(tc, xdp)| SegmentCost { tc, xdp })
    }
    fn has_native_xdp(&self, _: &str) -> bool {
        self.native_xdp
    }
    fn programs_before(&self) -> Option<ProgramsBefore> {
        self.before.clone()
    }
}

/// Returns the findings that are not good, as `check verdict text → remedy`.
fn complaints(fake: &Fake) -> Vec<String> {
    told(examine(fake))
}

fn told(report: Report) -> Vec<String> {
    let bad = report.findings.into_iter().filter(|f| f.verdict != Verdict::Good);
    bad.map(|f| {
        format!(
            "{} {:?} {} → {}",
            f.check,
            f.verdict,
            f.text,
            f.remedy.unwrap_or_default()
        )
    })
    .collect()
}

#[test]
fn a_good_machine_has_nothing_to_mend() {
    let fake = Fake::good();
    assert_eq!(complaints(&fake), Vec::<String>::new());
    let report = examine(&fake);
    assert!(report.splice_available);
    assert!(
        report
            .to_string()
            .contains("✔ kernel         Linux 6.1.0-18-amd64"),
        "{report}"
    );
    // The consequences of an old kernel are shown; a new kernel has none.
    assert!(report.to_string().contains("as clsact filters"), "{report}");
    let new = examine(&Fake::good().with("/proc/sys/kernel/osrelease", "6.18.44"));
    assert!(
        new.to_string()
            .contains("✔ kernel         Linux 6.18.44 (6.1 or later is needed)\n"),
        "{new}"
    );
}

#[test]
fn tc_or_xdp_is_recommended_by_what_was_measured() {
    let says = |fake: Fake| {
        let all = examine(&fake).findings;
        let xdp: Vec<String> = all
            .into_iter()
            .filter(|f| f.check == "xdp")
            .map(|f| f.text)
            .collect();
        xdp.join("\n")
    };
    let faster = says(Fake::good());
    assert!(
        faster.starts_with("a segment takes 80 ns at tc and 60 ns in XDP"),
        "{faster}"
    );
    assert!(faster.contains("xdp = [\"eth0\"]"), "{faster}");
    assert!(faster.contains("(1.8 ns for each of 44)"), "{faster}");
    let slower = Fake {
        cost: Ok((80, 80)),
        ..Fake::good()
    };
    assert!(says(slower).contains("use tc: XDP saves no more"));
    let no_driver = Fake {
        native_xdp: false,
        ..Fake::good()
    };
    assert!(says(no_driver).contains("use tc: no driver"));
    let failed = Fake {
        cost: Err(Unmeasured::Failed("no veth".into())),
        ..Fake::good()
    };
    assert_eq!(
        complaints(&failed),
        ["xdp Notice tc and XDP were not compared: no veth → "]
    );
    // Only the missing prerequisite is reported, without a comparison.
    assert_eq!(says(Fake::good().with("/proc/self/mountinfo", "")), "");
    let bpf_and_net = "CapEff:\t000000c000003000\n";
    assert!(says(Fake::good().with("/proc/self/status", bpf_and_net)).contains("CAP_SYS_ADMIN"));
}

#[test]
fn each_fault_is_found_alone_and_its_remedy_named() {
    let source_ports = Fake {
        source_ports: "40000-40009".parse().ok(),
        ..Fake::good()
    };
    for (fake, says) in [
        (
            Fake::good().with("/proc/sys/kernel/osrelease", "5.10.0"),
            "kernel Missing Linux 5.10.0; 6.1",
        ),
        (
            Fake::good().with("/proc/sys/kernel/osrelease", "?"),
            "kernel Notice the version cannot",
        ),
        (Fake::good().without("/sys/kernel/btf/vmlinux"), "btf Missing"),
        (
            Fake::good().with("/proc/sys/net/core/bpf_jit_enable", "0"),
            "→ sysctl -w net.core.bpf_jit_enable=1",
        ),
        (
            Fake::good().with(
                "zcat /proc/config.gz",
                "CONFIG_BPF_SYSCALL=y\nCONFIG_NET_CLS_ACT=y\n",
            ),
            "kernel-config Missing built without CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF",
        ),
        (
            Fake::good().without("zcat /proc/config.gz"),
            "kernel-config Notice cannot be read",
        ),
        (Fake::good().with("/proc/self/mountinfo", ""), "bpffs Notice"),
        (
            Fake::good()
                .with("/proc/self/ns/mnt", "mnt:[2]")
                .with("/proc/1/mountinfo", ""),
            "mounts Notice private (`ip netns exec` makes them so)",
        ),
        (
            Fake::good()
                .without("/proc/1/ns/mnt")
                .without("/proc/1/mountinfo"),
            "mounts Notice whether pins",
        ),
        (
            Fake::good().with("/proc/self/status", "CapEff:\t0000000000001000\n"),
            "capabilities Missing this process lacks CAP_BPF, CAP_NET_RAW, CAP_PERFMON",
        ),
        (
            Fake {
                repair: Err("EPERM".into()),
                ..Fake::good()
            },
            "tcp-repair Missing the kernel refuses it: EPERM",
        ),
        (
            Fake::good().with("/proc/self/limits", "Max open files 1024 1024 files"),
            "some 512 connections",
        ),
        (
            Fake {
                interfaces: vec![interface("lo", 772), interface("tun0", 65_534)],
                ..Fake::good()
            },
            "`interface`): tun0",
        ),
        (
            Fake::good().with("ethtool -k eth0", "generic-receive-offload: off\n"),
            "→ ethtool -K eth0 gro on",
        ),
        (
            Fake::good().with("ethtool -k eth0", "rx-gro-hw: on\n"),
            "→ ethtool -K eth0 rx-gro-hw off",
        ),
        (
            Fake::good().with("ethtool -k eth0", "rx-gro-list: on\n"),
            "→ ethtool -K eth0 rx-gro-list off",
        ),
        (Fake::good().without("ethtool -k eth0"), "→ apt install ethtool"),
        (
            Fake::good().with("/proc/sys/net/ipv4/tcp_sack", "0"),
            "→ sysctl -w net.ipv4.tcp_sack=1",
        ),
        (
            source_ports,
            "→ sysctl -w net.ipv4.ip_local_reserved_ports=40000-40009",
        ),
        (
            Fake::good().with("/proc/sys/net/ipv4/conf/all/rp_filter", "1"),
            "rp-filter Notice strict on eth0:",
        ),
        (
            Fake::good().with("/proc/sys/net/ipv4/conf/eth0/rp_filter", "1"),
            "rp-filter Notice strict on eth0:",
        ),
        (
            Fake::good().with("/proc/sys/net/netfilter/nf_conntrack_max", "1"),
            "netfilter Notice",
        ),
    ] {
        let found = complaints(&fake);
        assert_eq!(found.len(), 1, "{says}: {found:?}");
        assert!(found[0].contains(says), "{says}: {found:?}");
    }
}

#[test]
fn sources_are_validated_as_the_larger_number_says() {
    let loose = Fake::good()
        .with("/proc/sys/net/ipv4/conf/all/rp_filter", "2")
        .with("/proc/sys/net/ipv4/conf/eth0/rp_filter", "1");
    assert_eq!(complaints(&loose), Vec::<String>::new());
}

#[test]
fn planned_ports_that_are_reserved_are_good() {
    let fake = Fake {
        source_ports: "40000-40009".parse().ok(),
        ..Fake::good()
    };
    let fake = fake.with("/proc/sys/net/ipv4/ip_local_reserved_ports", "80,40000-41000\n");
    assert_eq!(complaints(&fake), Vec::<String>::new());
}

#[test]
fn a_private_mount_namespace_with_the_machines_bpffs_is_good() {
    let fake = Fake::good().with("/proc/self/ns/mnt", "mnt:[2]");
    assert_eq!(complaints(&fake), Vec::<String>::new());
}

#[test]
fn what_is_found_of_ipv6_is_said() {
    const OFF: &str = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
    const FORWARDING: &str = "/proc/sys/net/ipv6/conf/lo/forwarding";
    let with = |off: &str| Fake::good().with(OFF, off).with(FORWARDING, "0\n");
    for (fake, ipv6, forwarding) in [
        (with("0\n"), "on: ", "off (ipv4, ipv6); "),
        (with("1\n"), "switched off ", "off (ipv4, ipv6); "),
        (Fake::good(), "not in this kernel", "off (ipv4); "),
    ] {
        let report = examine(&fake);
        let says = |check: &str| &report.findings.iter().find(|f| f.check == check).unwrap().text;
        assert!(says("ipv6").starts_with(ipv6), "{report}");
        assert!(says("lo-forwarding").starts_with(forwarding), "{report}");
        assert_eq!(complaints(&fake), Vec::<String>::new());
    }
}

#[test]
fn a_kernel_that_refuses_the_programs_cannot_splice() {
    let fake = Fake {
        cost: Err(Unmeasured::Refused("the verifier refuses them".into())),
        ..Fake::good()
    };
    assert!(!examine(&fake).splice_available);
    assert_eq!(
        complaints(&fake),
        ["programs Missing the verifier refuses them → "]
    );
}

#[test]
fn what_cannot_be_written_is_missing_and_its_remedy_helps() {
    const EACCES: i32 = 13;
    const EROFS: i32 = 30;
    const FORWARDING: &str = "/proc/sys/net/ipv4/conf/lo/forwarding";
    let refused = |path, code| Fake {
        refused: Some((path, code)),
        ..Fake::good()
    };
    for (fake, says, mends) in [
        (
            refused("/sys/fs/bpf", EACCES),
            "bpffs Missing mounted at /sys/fs/bpf, where this process cannot keep pins: Permission denied",
            "as the owner of /sys/fs/bpf",
        ),
        (
            refused("/sys/fs/bpf", EROFS),
            "cannot keep pins: Read-only file system",
            "ReadWritePaths=/sys/fs/bpf",
        ),
        (
            refused(FORWARDING, EROFS),
            "lo-forwarding Missing off (ipv4), and this process cannot switch it on",
            "sysctl -w net.ipv4.conf.lo.forwarding=1, from where",
        ),
    ] {
        assert!(!examine(&fake).splice_available, "{says}");
        let found = complaints(&fake);
        assert_eq!(found.len(), 1, "{says}: {found:?}");
        assert!(found[0].contains(says) && found[0].contains(mends), "{found:?}");
    }
    // It is of no matter where forwarding is on.
    let on = refused(FORWARDING, EROFS).with(FORWARDING, "1\n");
    assert_eq!(complaints(&on), Vec::<String>::new());
    // Capabilities do not open what belongs to root.
    let user = refused("/sys/fs/bpf", EACCES).with("/proc/self/status", "CapEff:\t0000000000000000\n");
    let found = complaints(&user);
    assert!(
        found.iter().any(|line| line.starts_with("capabilities Missing")),
        "{found:?}"
    );
    assert!(!found.iter().any(|line| line.contains("setcap")), "{found:?}");
}

#[test]
fn programs_before_ours_are_told() {
    let lines = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect();
    let with = |before: &[&str], unseen: &[&str]| Fake {
        before: Some(ProgramsBefore {
            before: lines(before),
            unseen: lines(unseen),
        }),
        ..Fake::good()
    };
    assert_eq!(complaints(&with(&[], &[])), Vec::<String>::new());
    let found = complaints(&with(
        &[
            "eth0 ingress: cil_from_netdev (program 12)",
            "eth1 egress: b (program 3)",
        ],
        &[],
    ));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("order Notice"), "{found:?}");
    assert!(
        found[0].contains("cil_from_netdev (program 12); eth1 egress: b"),
        "{found:?}"
    );
    assert!(found[0].contains("BPF_F_AFTER"), "{found:?}");
    let found = complaints(&with(&[], &["eth0: filters"]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("cannot be seen: eth0: filters →"), "{found:?}");
    let both = with(&["eth0 ingress: a (program 12)"], &["eth1: filters"]);
    assert_eq!(complaints(&both).len(), 2);
}

#[test]
fn an_empty_machine_is_survived() {
    let fake = Fake {
        files: BTreeMap::new(),
        interfaces: Vec::new(),
        repair: Err(String::new()),
        nftables: Err(String::new()),
        source_ports: None,
        cost: Err(Unmeasured::Failed("nothing was measured".into())),
        native_xdp: false,
        before: None,
        refused: None,
    };
    let report = examine(&fake);
    assert!(!report.splice_available);
    assert!(report.to_string().contains("what is marked ✘ is missing"));
}
