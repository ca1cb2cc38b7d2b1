//! Connection of two nodes: a veth pair, or an emulated link.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::{Family, netem};
use crate::emulator::{Emulator, Span, SpanEnd};
use crate::link::{LinkError, LinkSpec};
use crate::{Error, Namespace, tool};

/// Connection of two nodes.
///
/// Its text is `veth`, optionally followed by `mtu=` and `no-offloads` (`veth,mtu=900,no-offloads`), or that of a
/// [`LinkSpec`], which `netem,` may precede.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a topology has a handful of them")]
pub enum Leg {
    /// Veth pair: as fast as the machine.
    Veth {
        /// MTU of both devices, in bytes.
        mtu: u16,
        /// True if the devices keep their offloads (TSO, GSO, GRO, checksums); without them, each packet is one
        /// segment with its checksum filled in, as on a wire.
        offloads: bool,
    },
    /// Emulated link. Its neighbor entries are permanent: a neighbor request that the link lost would cost a second.
    Link(LinkSpec),
    /// Veth pair with the kernel's netem at both ends, where the kernel has that. Reports and verdicts are those of
    /// emulated links only.
    Netem(LinkSpec),
}

impl Default for Leg {
    /// Returns a veth pair with offloads and an MTU of 1,500.
    fn default() -> Self {
        Leg::Veth {
            mtu: 1500,
            offloads: true,
        }
    }
}

impl From<LinkSpec> for Leg {
    fn from(link: LinkSpec) -> Self {
        Leg::Link(link)
    }
}

impl FromStr for Leg {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        if let Some(link) = text.trim().strip_prefix("netem,") {
            return link.parse().map(Leg::Netem);
        }
        let Some(options) = text.trim().strip_prefix("veth") else {
            return text.parse().map(Leg::Link);
        };
        let (mut mtu, mut offloads) = (1500, true);
        for option in options.split(',').skip(1).map(str::trim) {
            match option.split_once('=') {
                Some(("mtu", number)) => {
                    let parsed = number.parse().ok().filter(|mtu| *mtu >= 68);
                    mtu = parsed.ok_or_else(|| LinkError::out_of_range("mtu", &number))?;
                }
                None if option == "no-offloads" => offloads = false,
                _ => return Err(LinkError::Unknown(option.to_owned())),
            }
        }
        match options.is_empty() || options.starts_with(',') {
            true => Ok(Leg::Veth { mtu, offloads }),
            false => Err(LinkError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mtu, offloads) = match self {
            Leg::Link(link) => return link.fmt(f),
            Leg::Netem(link) => return write!(f, "netem,{link}"),
            Leg::Veth { mtu, offloads } => (*mtu, *offloads),
        };
        write!(f, "veth")?;
        if mtu != 1500 {
            write!(f, ",mtu={mtu}")?;
        }
        if !offloads {
            write!(f, ",no-offloads")?;
        }
        Ok(())
    }
}

/// End of a leg.
#[derive(Debug, Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) device: &'a str,
    /// Address, of the family that the topology is known by.
    pub(super) addr: IpAddr,
}

impl End<'_> {
    fn families(&self) -> &'static [Family] {
        Family::of(self.addr).present()
    }
}

/// Leg with its two ends.
#[derive(Debug)]
pub(super) struct Cable<'a> {
    /// Name of the leg in reports.
    pub(super) name: String,
    pub(super) client_side: End<'a>,
    pub(super) server_side: End<'a>,
    pub(super) leg: Leg,
}

/// Makes all legs, gives their devices addresses of /24 networks (and of /64 ones) and sets them up. Returns the
/// emulator, if there is an emulated link among them.
pub(super) fn lay(cables: Vec<Cable<'_>>) -> Result<Option<Emulator>, Error> {
    if cables.iter().any(|cable| matches!(cable.leg, Leg::Link(_))) {
        return emulate(cables).map(Some);
    }
    make(&cables)?;
    Ok(None)
}

/// Makes all legs, emulated links among them, and returns the emulator. Links with the same seed are [told
/// apart](LinkSpec::tell_apart).
pub(super) fn emulate(mut cables: Vec<Cable<'_>>) -> Result<Emulator, Error> {
    LinkSpec::tell_apart(cables.iter_mut().filter_map(|cable| match &mut cable.leg {
        Leg::Link(link) | Leg::Netem(link) => Some(link),
        Leg::Veth { .. } => None,
    }));
    let spans: Vec<Span<'_>> = cables.iter().filter_map(Cable::span).collect();
    let emulator = Emulator::start(&spans, None)?;
    make(&cables)?;
    Ok(emulator)
}

/// Makes the veth pairs, and sets up all devices.
fn make(cables: &[Cable<'_>]) -> Result<(), Error> {
    for cable in cables {
        let (near, far) = (cable.client_side, cable.server_side);
        match &cable.leg {
            Leg::Veth { mtu, offloads } => veth(near, far, *mtu, *offloads)?,
            Leg::Netem(link) => {
                link.check()?;
                veth(near, far, link.mtu, false)?;
                netem::attach(near.namespace, near.device, &link.to_server)?;
                netem::attach(far.namespace, far.device, &link.to_client)?;
            }
            Leg::Link(_) => {}
        }
        set_up(near)?;
        set_up(far)?;
        if matches!(cable.leg, Leg::Link(_) | Leg::Netem(_)) {
            introduce(near, far)?;
            introduce(far, near)?;
        }
    }
    Ok(())
}

impl<'a> Cable<'a> {
    fn span(&self) -> Option<Span<'a>> {
        let Leg::Link(spec) = &self.leg else { return None };
        Some(Span {
            name: self.name.clone(),
            client_side: SpanEnd::Device(self.client_side.namespace, self.client_side.device),
            server_side: SpanEnd::Device(self.server_side.namespace, self.server_side.device),
            spec: spec.clone(),
        })
    }
}

fn veth(near: End<'_>, far: End<'_>, mtu: u16, offloads: bool) -> Result<(), Error> {
    let (near_space, far_space) = (near.namespace.name(), far.namespace.name());
    tool::ip(&format!(
        "-n {near_space} link add {} mtu {mtu} type veth peer name {} mtu {mtu} netns {far_space}",
        near.device, far.device
    ))?;
    if !offloads {
        without_offloads(near_space, near.device)?;
        without_offloads(far_space, far.device)?;
    }
    Ok(())
}

fn without_offloads(namespace: &str, device: &str) -> Result<(), Error> {
    let set = ["tso", "off", "gso", "off", "gro", "off", "tx", "off"];
    let ethtool = ["netns", "exec", namespace, "ethtool", "-K", device];
    tool::run("ip", &[&ethtool[..], &set[..]].concat())
}

fn set_up(end: End<'_>) -> Result<(), Error> {
    let (namespace, device) = (end.namespace.name(), end.device);
    for family in end.families() {
        let (addr, network) = (family.addr(end.addr), family.network());
        tool::ip(&format!("-n {namespace} addr add {addr}{network} dev {device}"))?;
    }
    tool::ip(&format!("-n {namespace} link set {device} up"))
}

/// Adds a permanent neighbor entry at one end with the hardware address of the other.
fn introduce(here: End<'_>, there: End<'_>) -> Result<(), Error> {
    let mac = mac(there.namespace, there.device)?;
    for family in there.families() {
        let addr = family.addr(there.addr);
        tool::ip(&format!(
            "-n {} neigh replace {addr} lladdr {mac} dev {}",
            here.namespace.name(),
            here.device
        ))?;
    }
    Ok(())
}

/// Returns the hardware address of a device.
fn mac(namespace: &Namespace, device: &str) -> Result<String, Error> {
    let output = namespace
        .command("ip")
        .args(["-o", "link", "show", "dev", device])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    match words.nth(1) {
        Some(mac) => Ok(mac.to_owned()),
        None => Err(Error::Parse {
            what: "the hardware address of a device",
            text,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legs_as_text() {
        for text in [
            "veth",
            "veth,mtu=900",
            "veth,no-offloads",
            "veth,mtu=900,no-offloads",
            "20ms,seed=1",
            "netem,20ms,loss=1%,seed=1",
        ] {
            let leg: Leg = text.parse().unwrap();
            assert_eq!(leg.to_string(), text);
        }
        assert_eq!("veth".parse(), Ok(Leg::default()));
        assert_eq!("rtt20".parse(), "rtt20".parse().map(Leg::Link));
        for bad in [
            "vethernet",
            "veth,mtu=67",
            "veth,mtu=x",
            "veth,loss=1%",
            "veth,",
            "netem",
            "ethernet",
        ] {
            assert!(bad.parse::<Leg>().is_err(), "{bad}");
        }
    }
}
