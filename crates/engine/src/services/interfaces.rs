//! Watches interfaces: puts the programs on those that are up, with routes or without. A route may move to any of them, and
//! segments may come in there before it does.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use futures_util::TryStreamExt;
use longsplice_dataplane::{Dataplane, Framing};
use nix::net::if_::if_indextoname;
use parking_lot::{Mutex, RwLock};
use rtnetlink::{
    Handle,
    packet_route::link::{InfoPortKind, LinkAttribute, LinkInfo},
};

use super::network_interface::NetworkInterface;

/// State of an interface that programs can be put on.
#[derive(Debug)]
struct Link {
    name: String,
    framing: Framing,
    is_up: bool,
    /// True for a port of a bridge, a bond or the like, which gets its packets: here they would be processed twice.
    is_port: bool,
}

/// Interface that rules can be for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleLink {
    pub(crate) index: u32,
    /// True for a port of a bridge, a bond or the like.
    pub(crate) is_port: bool,
    pub(crate) is_up: bool,
}

/// Present interfaces of this host.
#[derive(Debug)]
pub(crate) struct Links {
    by_index: HashMap<u32, Link>,
    /// Further ones, whose packets are not as the programs expect.
    others: HashSet<u32>,
}

impl Links {
    /// Asks the kernel for its links.
    pub(crate) async fn ask(handle: &Handle) -> io::Result<Links> {
        let (by_index, others) = links(handle).await.map_err(io::Error::other)?;
        Ok(Links { by_index, others })
    }

    /// Returns true if an interface is there that the kernel has not listed: the list comes in parts, and another interface
    /// may go in between.
    fn lacks(&self, ifindex: u32) -> bool {
        !self.by_index.contains_key(&ifindex) && !self.others.contains(&ifindex) && is_present(ifindex)
    }

    /// Returns the interfaces that rules can be for, up or down, by name: those with Ethernet headers.
    pub(crate) fn for_rules(&self) -> HashMap<String, RuleLink> {
        let links = self.by_index.iter();
        let links = links.filter(|(_, link)| link.framing == Framing::Ethernet);
        let entry = |(&index, link): (&u32, &Link)| {
            let &Link { is_port, is_up, .. } = link;
            (
                link.name.clone(),
                RuleLink {
                    index,
                    is_port,
                    is_up,
                },
            )
        };
        links.map(entry).collect()
    }

    /// Returns those of these interfaces whose packets have Ethernet headers.
    pub(crate) fn with_ethernet(&self, mut of: HashMap<u32, String>) -> HashMap<u32, String> {
        of.retain(|index, _| {
            let link = self.by_index.get(index);
            link.is_none_or(|link| link.framing == Framing::Ethernet)
        });
        of
    }
}

/// Interface on which the programs were put.
#[derive(Debug, Clone)]
struct Watched {
    name: String,
    framing: Framing,
    /// False after another tool has taken the programs off, until they are back.
    is_attached: bool,
}

/// Holds the interfaces that have the programs.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    watched: RwLock<HashMap<u32, Watched>>,
    /// Keeps two tasks from attaching or detaching programs at the same time.
    change: Mutex<()>,
}

impl Interfaces {
    /// Returns true if the programs are on an interface.
    pub(crate) fn has(&self, ifindex: u32) -> bool {
        let watched = self.watched.read();
        watched.get(&ifindex).is_some_and(|link| link.is_attached)
    }

    /// Returns the interfaces with the programs, by index.
    pub(crate) fn watched(&self) -> HashMap<u32, String> {
        let watched = self.watched.read();
        let attached = watched.iter().filter(|(_, link)| link.is_attached);
        attached
            .map(|(index, link)| (*index, link.name.clone()))
            .collect()
    }

    /// Puts the programs on the interfaces that are up, of those in `only` if it is given, and on no ports. An interface that is
    /// down keeps them: segments may come in as soon as it is up again.
    pub(crate) fn follow(&self, plane: &Dataplane, only: Option<&[String]>, links: &Links) {
        let _change = self.change.lock();
        let chosen = |link: &Link| !link.is_port && only.is_none_or(|only| only.contains(&link.name));
        // Never hold this lock over a system call: each assessment of a pair takes it.
        let watched = || self.watched.write();
        // A predecessor may have watched others.
        let before: Vec<u32> = watched().keys().copied().collect();
        for ifindex in plane.linked_interfaces().into_iter().chain(before) {
            if links.by_index.get(&ifindex).is_some_and(chosen) || links.lacks(ifindex) {
                continue;
            }
            // Remove it first: no pair is spliced by it from now on.
            let removed = watched().remove(&ifindex);
            plane.detach(ifindex);
            if let Some(Watched { name, .. }) = removed {
                tracing::info!(interface = name, "no longer watched");
            }
        }
        let wanted = links
            .by_index
            .iter()
            .filter(|(_, link)| link.is_up && chosen(link));
        for (&ifindex, Link { name, framing, .. }) in wanted {
            if let Some(known) = watched().get_mut(&ifindex) {
                known.name.clone_from(name);
                continue;
            }
            match plane.attach(ifindex, *framing) {
                Ok(()) => {
                    tracing::info!(interface = name, ifindex, "watched");
                    let link = Watched {
                        name: name.clone(),
                        framing: *framing,
                        is_attached: true,
                    };
                    watched().insert(ifindex, link);
                }
                Err(error) => {
                    tracing::warn!(interface = name, %error, "cannot be watched: its pairs are relayed")
                }
            }
        }
    }

    /// Puts back the programs that another tool has taken off an interface, and logs that once. Until they are back, pairs
    /// over it are relayed.
    pub(crate) fn look(&self, plane: &Dataplane) {
        let _change = self.change.lock();
        let watched = self.watched.read().clone();
        for (ifindex, link) in watched {
            // An error leaves the state as it was: pins that are gone are put back elsewhere.
            let is_attached = plane.is_attached(ifindex).unwrap_or(link.is_attached);
            // An interface loses its programs when it goes: that is not another tool's doing.
            if link.is_attached && is_attached || !is_present(ifindex) {
                continue;
            }
            self.note_attached(ifindex, false);
            match plane.attach(ifindex, link.framing) {
                Ok(()) => {
                    self.note_attached(ifindex, true);
                    tracing::warn!(
                        interface = link.name,
                        "another tool had taken the programs off this interface (by removing its qdisc, or by force): they \
                         are attached again. Flows that were spliced over it may have been reset"
                    );
                }
                Err(error) if link.is_attached => tracing::warn!(
                    interface = link.name,
                    %error,
                    "another tool has taken the programs off this interface, and they cannot be attached again: new \
                     connections over it are relayed. It is tried again each second"
                ),
                Err(_) => {}
            }
        }
    }

    /// Notes whether a watched interface has the programs.
    fn note_attached(&self, ifindex: u32, is_attached: bool) {
        if let Some(link) = self.watched.write().get_mut(&ifindex) {
            link.is_attached = is_attached;
        }
    }
}

/// Returns true if this network namespace has an interface of this number.
fn is_present(ifindex: u32) -> bool {
    // Without an interface, nix returns an empty name.
    if_indextoname(ifindex).is_ok_and(|name| !name.is_empty())
}

/// Returns the interfaces that programs can be put on, and the numbers of the others.
async fn links(handle: &Handle) -> Result<(HashMap<u32, Link>, HashSet<u32>), rtnetlink::Error> {
    let (mut found, mut others) = (HashMap::new(), HashSet::new());
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        let interface = NetworkInterface::of(&link);
        let framed = interface.and_then(|interface| Some((interface.framing()?, interface)));
        let index = link.header.index;
        if let Some((framing, interface)) = framed {
            let link = Link {
                name: interface.name,
                framing,
                is_up: interface.is_up,
                is_port: is_port(&link.attributes),
            };
            found.insert(index, link);
        } else {
            others.insert(index);
        }
    }
    Ok((found, others))
}

/// Returns true for an interface whose packets belong to another one, its controller. A member of a VRF keeps its own.
fn is_port(attributes: &[LinkAttribute]) -> bool {
    let is_of_vrf = |info: &LinkInfo| *info == LinkInfo::PortKind(InfoPortKind::Vrf);
    let mut has_controller = false;
    for attribute in attributes {
        match attribute {
            LinkAttribute::Controller(_) => has_controller = true,
            LinkAttribute::LinkInfo(info) if info.iter().any(is_of_vrf) => return false,
            _ => {}
        }
    }
    has_controller
}
