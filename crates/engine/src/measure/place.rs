//! Makes a network namespace with a veth pair: it is the thread's, and vanishes with it.

use std::net::{IpAddr, Ipv4Addr};

use nix::{
    net::if_::if_nametoindex,
    sched::{CloneFlags, unshare},
};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, packet_route::neighbour::NeighbourState};

/// Address of the interface, and of all neighbors behind it: a frame that leaves comes in again.
pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 1, 1];
/// Our own address, in a network that holds all measured addresses (RFC 2544).
const OURS: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 1), 15);
const LOOPBACK: u32 = 1;

/// Numbers of the two interfaces.
pub(super) struct Place {
    /// Interface at which segments come in and leave.
    pub(super) near: u32,
    /// Other end of the pair.
    pub(super) far: u32,
}

/// Moves the thread to the new namespace; these ends are neighbors behind the near interface.
pub(super) fn make(ends: [IpAddr; 2]) -> Result<Place, String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("unshare: {e}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(lay(ends))
}

async fn lay(ends: [IpAddr; 2]) -> Result<Place, String> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    let said = |what: &'static str| move |e: rtnetlink::Error| format!("{what}: {e}");
    let pair = handle.link().add(LinkVeth::new("near", "far").build());
    pair.execute().await.map_err(said("a veth pair"))?;
    let index = |name: &str| if_nametoindex(name).map_err(|e| format!("{name}: {e}"));
    let place = Place {
        near: index("near")?,
        far: index("far")?,
    };
    up(&handle, LinkUnspec::new_with_index(LOOPBACK)).await?;
    up(&handle, LinkUnspec::new_with_index(place.far)).await?;
    up(
        &handle,
        LinkUnspec::new_with_index(place.near).address(MAC.to_vec()),
    )
    .await?;
    let ours = handle.address().add(place.near, OURS.0.into(), OURS.1);
    ours.execute().await.map_err(said("an address"))?;
    for end in ends {
        let known = handle.neighbours().add(place.near, end);
        let known = known.link_layer_address(&MAC).state(NeighbourState::Permanent);
        known.execute().await.map_err(said("a neighbour"))?;
    }
    Ok(place)
}

async fn up(handle: &Handle, link: rtnetlink::LinkMessageBuilder<LinkUnspec>) -> Result<(), String> {
    let change = handle.link().set(link.up().build());
    change.execute().await.map_err(|e| format!("a link: {e}"))
}
