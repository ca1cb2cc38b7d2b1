//! Routes by the content of a hello.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use longsplice_tests::{Daemon, Policy, SOON, client_hello, eventually};

use crate::tls::Place;

#[test]
fn names_and_protocols_choose_the_server() {
    let place = Place::new("tls-routes");
    let servers: Vec<SocketAddr> = (7443..7446).map(|p| (place.net.server_addr, p).into()).collect();
    let bind = |at: &SocketAddr| {
        let listener = place.net.server.run(|| TcpListener::bind(at)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    };
    let listeners: Vec<TcpListener> = servers.iter().map(bind).collect();
    let config = place.config(Policy::DETACHED, "tls").with(&format!(
        "[[listener.route]]\nsni = [\"mail.example\", \"*.mail.example\"]\nupstream = \"mail\"\n\
         [[listener.route]]\nalpn = [\"h2\"]\nupstream = \"grpc\"\n\
         [[upstream]]\nname = \"mail\"\nservers = [\"{}\"]\n\
         [[upstream]]\nname = \"grpc\"\nservers = [\"{}\"]",
        servers[1], servers[2]
    ));
    let mut daemon = Daemon::of(&config);
    daemon.start(&place.net.forwarder);
    for (name, alpn, which) in [
        ("mail.example", &["h2"][..], 1),
        ("IMAP.Mail.Example", &[], 1),
        ("mail.example.", &[], 1),
        ("www.example", &["h2", "http/1.1"], 2),
        ("www.example", &["http/1.1"], 0),
        ("notmail.example", &[], 0),
    ] {
        let hello = client_hello(name, alpn, 50);
        let connect = || TcpStream::connect_timeout(&place.front, SOON);
        let mut client = place.net.client.run(connect).unwrap().unwrap();
        client.write_all(&hello).unwrap();
        let (chosen, server) = eventually("a server", SOON, || {
            let accept = |(n, l): (usize, &TcpListener)| l.accept().ok().map(|(s, _)| (n, s));
            listeners.iter().enumerate().find_map(accept)
        });
        assert_eq!(chosen, which, "{name} {alpn:?}");
        let mut server = server;
        server.set_nonblocking(false).unwrap();
        server.set_read_timeout(Some(SOON)).unwrap();
        let mut got = vec![0; hello.len()];
        server.read_exact(&mut got).unwrap();
        assert!(got == hello, "{name}: the hello was changed");
    }
}
