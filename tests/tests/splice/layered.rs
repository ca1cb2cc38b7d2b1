//! Sockets whose bytes differ from those on the wire, because the kernel has a layer of its own above TCP: MPTCP (RFC
//! 8684), or TLS (kTLS). Such a pair is relayed, and the reason is reported.

use std::net::{SocketAddr, TcpListener, TcpStream};

use longsplice_core::reason::RelayReason;
use longsplice_engine::{Pair as Near, Until};
use longsplice_lab::not_run;
use longsplice_tests::{
    Pair, SOON, accept, eventually,
    library::{Depth, Desk, at_once},
};
use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::TcpUlp},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream as NearStream;

const FRONT_PORT: u16 = 8081;

/// Opens an MPTCP socket (`IPPROTO_MPTCP`).
fn mptcp(address: SocketAddr) -> Socket {
    Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::MPTCP))
        .unwrap_or_else(|e| panic!("this kernel has no MPTCP (CONFIG_MPTCP, net.mptcp.enabled): {e}"))
}

/// Splices a pair whose client's socket is `near`: the splice is refused, and all bytes pass.
fn refused(desk: &Desk, far: TcpStream, near: TcpStream) {
    near.set_nonblocking(true).unwrap();
    let near = desk.library.run(async { NearStream::from_std(near) }).unwrap();
    let (near_server, far_server) = desk.library.connect(&near, &desk.listener);
    let mut pair = Pair::of(far, far_server);
    let port = pair.client_port();
    let near = at_once(Near::new(near, near_server), Depth::Dormant);
    let call = desk.library.splice(near, Until::closed());
    eventually("the refusal", SOON, || {
        let mut flows = desk.library.splicer().flows();
        let flow = flows.find(|f| f.client.peer.port() == port);
        flow.filter(|f| f.reason == Some(RelayReason::SocketOption))
    });
    pair.exchange(1 << 20);
    pair.close();
    assert!(!call.closed().reset);
    let counters = desk.library.splicer().counters();
    assert_eq!(counters.spliced_total, 0, "{counters:?}");
}

#[test]
fn mptcp_is_relayed() {
    let desk = Desk::new("layered-mptcp");
    let front = SocketAddr::from((desk.net.forwarder_client_addr, FRONT_PORT));
    let listen = || {
        let listener = mptcp(front);
        listener.bind(&front.into()).unwrap();
        listener.listen(8).unwrap();
        TcpListener::from(listener)
    };
    let listener = desk.net.forwarder.run(listen).unwrap();
    let connect = || {
        let socket = mptcp(front);
        socket.connect(&front.into()).unwrap();
        TcpStream::from(socket)
    };
    let far = desk.net.client.run(connect).unwrap();
    let near = accept(&listener);
    refused(&desk, far, near);
}

#[test]
fn kernel_tls_is_relayed() {
    let desk = Desk::new("layered-tls");
    let front = SocketAddr::from((desk.net.forwarder_client_addr, FRONT_PORT));
    let listener = desk
        .net
        .forwarder
        .run(|| TcpListener::bind(front))
        .unwrap()
        .unwrap();
    let far = desk
        .net
        .client
        .run(|| TcpStream::connect(front))
        .unwrap()
        .unwrap();
    let near = accept(&listener);
    // Without keys its bytes are still plain.
    match setsockopt(&near, TcpUlp::default(), b"tls") {
        Ok(()) => refused(&desk, far, near),
        Err(Errno::ENOENT) => not_run("this kernel has no kTLS (CONFIG_TLS, or its module, is missing)"),
        Err(e) => panic!("TCP_ULP: {e}"),
    }
}
