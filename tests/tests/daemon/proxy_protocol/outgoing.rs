//! Real servers read the headers.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use longsplice_core::proxy_protocol::{Addresses, Header, Version};
use longsplice_lab::Namespace;
use longsplice_tests::{Nginx, SOON, soon};

const SOURCE: &str = "203.0.113.7:1234";
const SOURCE_V6: &str = "[2001:db8::7]:4321";
const DESTINATION: &str = "198.51.100.1:443";
const DESTINATION_V6: &str = "[2001:db8::1]:443";

/// Returns headers in both versions, and the ends that each names.
fn headers() -> Vec<(Header, [&'static str; 2])> {
    let mut all = Vec::new();
    for version in [Version::V1, Version::V2] {
        for ends in [[SOURCE, DESTINATION], [SOURCE_V6, DESTINATION_V6]] {
            let [source, destination] = ends.map(|end| end.parse().unwrap());
            let mut header = Header::new(version, Some(Addresses::new(source, destination)));
            header.authority = Some("a.example".into());
            header.alpn = Some(b"http/1.1".to_vec());
            all.push((header, ends));
        }
    }
    all
}

/// Returns the answer to a request behind this header.
fn ask(node: &Namespace, server: SocketAddr, header: &Header, path: &str) -> String {
    let connect = || TcpStream::connect_timeout(&server, SOON);
    let mut client = node.run(connect).unwrap().unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(&header.write()).unwrap();
    write!(
        client,
        "GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn nginx_understands_what_is_written() {
    let node = Namespace::new("proxy-nginx").expect("this test needs root");
    let dir = tempfile::tempdir().unwrap();
    let address: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    let server = format!("server {{ listen {address} proxy_protocol; }}");
    let nginx = Nginx::start(&node, dir.path(), &server, address);
    nginx.add("file", b"content of the file");
    for (n, (header, [source, destination])) in headers().into_iter().enumerate() {
        let path = format!("/file?{n}");
        let answer = ask(&node, address, &header, &path);
        assert!(answer.ends_with("content of the file"), "{header:?}: {answer}");
        // nginx writes IPv6 addresses without brackets.
        let plain = |end: &str| end.replace(['[', ']'], "");
        let line = format!("{} {} {path}", plain(source), plain(destination));
        soon("the line of the log", || nginx.log().contains(&line));
    }
    let own = ask(&node, address, &Header::new(Version::V2, None), "/file?own");
    assert!(own.ends_with("content of the file"), "{own}");
}

#[test]
fn haproxy_understands_what_is_written() {
    let node = Namespace::new("proxy-haproxy").expect("this test needs root");
    let dir = tempfile::tempdir().unwrap();
    let address: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    let config = dir.path().join("haproxy.cfg");
    fs::write(
        &config,
        format!(
            "defaults\n mode http\n timeout client 20s\n timeout server 20s\n timeout connect 20s\n\
             frontend front\n bind {address} accept-proxy\n\
             http-request return status 200 content-type text/plain lf-string \
             \"%[src]:%[src_port] %[dst]:%[dst_port] %[fc_pp_authority]\"\n"
        ),
    )
    .unwrap();
    let _haproxy = node
        .command("haproxy")
        .args(["-db", "-q", "-f"])
        .arg(&config)
        .spawn()
        .unwrap();
    soon("haproxy", || {
        node.run(|| TcpStream::connect(address).is_ok()).unwrap()
    });
    for (header, [source, destination]) in headers() {
        let answer = ask(&node, address, &header, "/");
        let plain = |end: &str| end.replace(['[', ']'], "");
        let says = format!("{} {}", plain(source), plain(destination));
        assert!(answer.contains(&says), "{header:?}: {answer}");
        // Version 1 has no room for the authority.
        assert_eq!(
            answer.contains("a.example"),
            header.version == Version::V2,
            "{answer}"
        );
    }
    let own = ask(&node, address, &Header::new(Version::V2, None), "/");
    assert!(own.contains(" 127.0.0.1:7000"), "{own}");
}
