//! Connection of two nodes: a veth pair, or an emulated link.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;

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
/// emulator, if there is an emulated link among them; links with the same seed are [told
/// apart](LinkSpec::tell_apart) then.
pub(super) fn lay(mut cables: Vec<Cable<'_>>) -> Result<Option<Emulator>, Error> {
    let mut emulator = None;
    if cables.iter().any(|cable| matches!(cable.leg, Leg::Link(_))) {
        LinkSpec::tell_apart(cables.iter_mut().filter_map(|cable| match &mut cable.leg {
            Leg::Link(link) | Leg::Netem(link) => Some(link),
            Leg::Veth { .. } => None,
        }));
        let spans: Vec<Span<'_>> = cables.iter().filter_map(Cable::span).collect();
        emulator = Some(Emulator::start(&spans, None)?);
    }
    make(&cables)?;
    Ok(emulator)
}

/// Makes the veth pairs, and sets up all devices.
fn make(cables: &[Cable<'_>]) -> Result<(), Error> {
    let pairs = cables.iter().filter_map(|cable| cable.pair().transpose());
    tool::ip_batch(&[], &pairs.collect::<Result<Vec<_>, _>>()?)?;
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for cable in cables {
        let (near, far) = (cable.client_side, cable.server_side);
        match &cable.leg {
            Leg::Veth { offloads: true, .. } | Leg::Link(_) => {}
            Leg::Veth { .. } => without_offloads(near, far)?,
            Leg::Netem(link) => {
                without_offloads(near, far)?;
                netem::attach(near.namespace, near.device, &link.to_server)?;
                netem::attach(far.namespace, far.device, &link.to_client)?;
            }
        }
        for (here, there) in [(near, far), (far, near)] {
            let lines = lines.entry(here.namespace.name()).or_default();
            let families = here.families().iter();
            let addresses = families.map(|family| family.addr(here.addr));
            lines.extend(set_up(here.device, addresses));
            if matches!(cable.leg, Leg::Link(_) | Leg::Netem(_)) {
                lines.extend(introduce(here, there)?);
            }
        }
    }
    lines
        .iter()
        .try_for_each(|(namespace, lines)| tool::ip_batch(&["-n", namespace], lines))
}

impl<'a> Cable<'a> {
    /// Returns the line for `ip` that makes its veth pair, if it has one.
    fn pair(&self) -> Result<Option<String>, Error> {
        let mtu = match &self.leg {
            Leg::Veth { mtu, .. } => *mtu,
            Leg::Netem(link) => {
                link.check()?;
                link.mtu
            }
            Leg::Link(_) => return Ok(None),
        };
        let (near, far) = (self.client_side, self.server_side);
        Ok(Some(format!(
            "link add {} netns {} mtu {mtu} type veth peer name {} mtu {mtu} netns {}",
            near.device,
            near.namespace.name(),
            far.device,
            far.namespace.name()
        )))
    }

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

fn without_offloads(near: End<'_>, far: End<'_>) -> Result<(), Error> {
    for end in [near, far] {
        tool::switch_off(end.namespace.name(), end.device, &["tso", "gso", "gro", "tx"])?;
    }
    Ok(())
}

/// Returns the lines for `ip` that give a device its addresses, and start it.
pub(crate) fn set_up(device: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Vec<String> {
    let add = |addr| format!("addr add {addr}{} dev {device}", Family::of(addr).network());
    let lines = addresses.into_iter().map(add);
    lines.chain([format!("link set {device} up")]).collect()
}

/// Returns the lines for `ip` that add permanent neighbor entries at one end, with the hardware address of the other.
fn introduce(here: End<'_>, there: End<'_>) -> Result<Vec<String>, Error> {
    let mac = mac(there)?;
    let entries = there.families().iter().map(|family| {
        let addr = family.addr(there.addr);
        format!("neigh replace {addr} lladdr {mac} dev {}", here.device)
    });
    Ok(entries.collect())
}

/// Returns the hardware address of a device.
fn mac(end: End<'_>) -> Result<String, Error> {
    let read = || {
        let mut all = getifaddrs()?;
        let mac = all.find_map(|known| {
            let is_its = known.interface_name == end.device;
            is_its.then(|| known.address?.as_link_addr()?.addr()).flatten()
        });
        mac.ok_or(Errno::ENODEV)
    };
    let mac = end
        .namespace
        .run(read)?
        .map_err(|errno| Error::io(format!("read the hardware address of {}", end.device))(errno.into()))?;
    Ok(mac.map(|byte| format!("{byte:02x}")).join(":"))
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
