//! An incoming header chooses the route, and goes out to the server.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use longsplice_core::proxy_protocol::{Addresses, Header, Version};
use longsplice_tests::{Config, Daemon, Nginx, Policy, SOON, soon, veth_line};

#[test]
fn a_server_is_told_of_the_client_behind_the_proxy() {
    for (policy, out) in [(Policy::DETACHED, "v2"), (Policy::ON_DEMAND, "v1")] {
        let net = veth_line("proxy-through", Default::default());
        let front: SocketAddr = (net.forwarder_client_addr, 8080).into();
        let [plain, told] = [7000, 7001].map(|port| SocketAddr::from((net.server_addr, port)));
        let config = Config::new()
            .listener(front, plain, policy.splice, policy.detach)
            .with(&format!("accept_proxy = \"{}\"", net.client_addr))
            .with("[[listener.route]]\nclient = \"203.0.113.0/24\"\nupstream = \"told\"")
            .with(&format!(
                "[[upstream]]\nname = \"told\"\nservers = [\"{told}\"]\nsend_proxy = \"{out}\""
            ));
        let mut daemon = Daemon::of(&config);
        let server = format!("server {{ listen {plain}; }} server {{ listen {told} proxy_protocol; }}");
        let nginx = Nginx::start(&net.server, &daemon.dir().join("nginx"), &server, plain);
        let body = "content of the file".repeat(1000);
        nginx.add("file", body.as_bytes());
        daemon.start(&net.forwarder);
        for (n, (version, source, says)) in [
            (
                Version::V1,
                "203.0.113.7:1234",
                "203.0.113.7:1234 198.51.100.1:443",
            ),
            (
                Version::V2,
                "203.0.113.8:1235",
                "203.0.113.8:1235 198.51.100.1:443",
            ),
            // This one takes the default route: its server gets no header.
            (Version::V2, "192.0.2.1:1236", "-:- -:-"),
        ]
        .into_iter()
        .enumerate()
        {
            let ends = Addresses::new(source.parse().unwrap(), "198.51.100.1:443".parse().unwrap());
            let connect = || TcpStream::connect_timeout(&front, SOON);
            let mut client = net.client.run(connect).unwrap().unwrap();
            client.set_read_timeout(Some(SOON)).unwrap();
            client
                .write_all(&Header::new(version, Some(ends)).write())
                .unwrap();
            let path = format!("/file?{n}");
            write!(
                client,
                "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            )
            .unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with(&body), "{source}: {answer}");
            let line = format!("{says} {path}");
            soon("the line of the log", || nginx.log().contains(&line));
        }
        daemon.wait_reaped();
    }
}
