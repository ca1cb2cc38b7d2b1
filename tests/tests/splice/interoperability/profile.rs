//! Profiles of clients and servers: what their systems ask for in a handshake, and what they agree to.

use std::net::IpAddr;

use longsplice_lab::{Namespace, topology::Leg};
use longsplice_tests::{ip, nft};

/// Trait of a profile that no setting of the namespace makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByHand {
    /// Nothing.
    Nothing,
    /// Its SYN asks for no timestamps, but it agrees to them.
    NoTimestampsInSyn,
    /// Its SYN asks for AccECN (RFC 9768).
    AccurateEcn,
    /// It sends no MSS option.
    NoMss,
}

/// Profile of a system.
#[derive(Debug, Clone, Copy)]
pub(super) struct Profile {
    /// Name, as docs/interoperability.md has it.
    pub(super) name: &'static str,
    timestamps: bool,
    sack: bool,
    scaling: bool,
    /// Value of net.ipv4.tcp_ecn: 0 never, 1 asks, 2 agrees.
    ecn: u8,
    /// Largest receive buffer, which sets the scale of its windows.
    receive_buffer: u32,
    mtu: u16,
    /// MSS that it offers, if less than its MTU allows.
    mss: Option<u16>,
    by_hand: ByHand,
}

const LINUX: Profile = Profile {
    name: "Linux 5",
    timestamps: true,
    sack: true,
    scaling: true,
    ecn: 2,
    receive_buffer: 6 << 20,
    mtu: 1500,
    mss: None,
    by_hand: ByHand::Nothing,
};

/// All profiles, in the order of the page.
pub(super) const ALL: [Profile; 15] = [
    LINUX,
    Profile {
        name: "Linux 6",
        receive_buffer: 32 << 20,
        ..LINUX
    },
    Profile {
        name: "Windows 10",
        timestamps: false,
        ecn: 0,
        receive_buffer: 16 << 20,
        ..LINUX
    },
    Profile {
        name: "Windows 11",
        ecn: 0,
        receive_buffer: 16 << 20,
        by_hand: ByHand::NoTimestampsInSyn,
        ..LINUX
    },
    Profile {
        name: "macOS, iOS",
        ecn: 1,
        receive_buffer: 4 << 20,
        ..LINUX
    },
    Profile {
        name: "FreeBSD",
        receive_buffer: 2 << 20,
        ..LINUX
    },
    Profile {
        name: "Android",
        mtu: 1400,
        receive_buffer: 8 << 20,
        ..LINUX
    },
    Profile {
        name: "no option",
        timestamps: false,
        sack: false,
        scaling: false,
        ecn: 0,
        by_hand: ByHand::NoMss,
        ..LINUX
    },
    Profile {
        name: "timestamps only",
        sack: false,
        scaling: false,
        ecn: 0,
        ..LINUX
    },
    Profile {
        name: "SACK off",
        sack: false,
        ..LINUX
    },
    Profile {
        name: "scale off",
        scaling: false,
        ..LINUX
    },
    Profile {
        name: "ECN",
        ecn: 1,
        ..LINUX
    },
    Profile {
        name: "AccECN",
        ecn: 1,
        by_hand: ByHand::AccurateEcn,
        ..LINUX
    },
    Profile {
        name: "MSS 536",
        mss: Some(536),
        ..LINUX
    },
    Profile {
        name: "MSS 8960",
        mtu: 9000,
        ..LINUX
    },
];

impl Profile {
    /// Returns its number in [`ALL`].
    pub(super) fn number(name: &str) -> usize {
        let found = ALL.iter().position(|profile| profile.name == name);
        found.unwrap_or_else(|| panic!("no profile is named {name:?}"))
    }

    /// Returns the leg that its node is connected by.
    pub(super) fn leg(&self) -> Leg {
        Leg::Veth {
            mtu: self.mtu,
            offloads: true,
        }
    }

    /// Returns one line about its settings.
    pub(super) fn settings(&self) -> String {
        let off = |on: bool, what: &str| if on { String::new() } else { format!("{what}, ") };
        let mut text = off(self.timestamps, "no timestamps");
        text += &off(self.sack, "no SACK");
        text += &off(self.scaling, "no window scaling");
        text += match (self.ecn, self.by_hand) {
            (1, ByHand::AccurateEcn) => "asks for AccECN",
            (1, _) => "asks for ECN",
            (2, _) => "agrees to ECN",
            _ => "no ECN",
        };
        text += match self.by_hand {
            ByHand::NoTimestampsInSyn => "; agrees to timestamps and does not ask for them",
            ByHand::NoMss => "; no MSS option",
            _ => "",
        };
        match (self.mtu, self.mss) {
            (_, Some(mss)) => text += &format!("; MSS {mss}"),
            (1500, None) => {}
            (mtu, None) => text += &format!("; MTU {mtu}"),
        }
        text
    }

    /// Makes a node behave like it. Its way to the forwarder leads over `s0`, to this address.
    pub(super) fn apply(&self, node: &Namespace, forwarder: IpAddr) {
        let set = |name: &str, value: &str| node.sysctl(&format!("net.ipv4.{name}"), value).unwrap();
        let flag = |on: bool| if on { "1" } else { "0" };
        set("tcp_timestamps", flag(self.timestamps));
        set("tcp_sack", flag(self.sack));
        set("tcp_window_scaling", flag(self.scaling));
        set("tcp_ecn", &self.ecn.to_string());
        set("tcp_rmem", &format!("4096 131072 {}", self.receive_buffer));
        if let Some(mss) = self.mss {
            ip(node, &format!("route replace {forwarder} dev s0 advmss {mss}"));
        }
        if let Some(rule) = self.by_hand.rule() {
            let table = format!(
                "add table inet byhand; add chain inet byhand out {{ type filter hook output priority 0; }}; \
                 add rule inet byhand out {rule}"
            );
            nft(node, &table);
        }
    }
}

impl ByHand {
    /// Returns the rule of nft for packets that leave the node.
    fn rule(self) -> Option<&'static str> {
        match self {
            ByHand::Nothing => None,
            ByHand::NoTimestampsInSyn => Some("tcp flags & (syn | ack) == syn reset tcp option timestamp"),
            // The bits of AE, CWR, ECE and SYN.
            ByHand::AccurateEcn => Some("@th,96,16 & 0x0fff == 0x00c2 @th,96,16 set @th,96,16 | 0x0100"),
            ByHand::NoMss => Some("tcp flags & syn == syn reset tcp option maxseg"),
        }
    }
}
