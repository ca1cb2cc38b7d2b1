//! Real programs: curl fetches from nginx through a forwarder that neither of them knows of.

use std::{fs, net::TcpStream};

use longsplice_lab::pattern::Pattern;
use longsplice_tests::{Policy, soon};

use crate::intercept::lab::{intercepting, lab};

const SIZE: usize = 20 << 20;

#[test]
fn curl_fetches_from_nginx() {
    let mut lab = lab("intercept-curl", intercepting(Policy::DETACHED));
    lab.start();
    let dir = lab.daemon.dir().join("www");
    fs::create_dir(&dir).unwrap();
    let body = Pattern::new(7).prefix(SIZE);
    fs::write(dir.join("file"), &body).unwrap();
    let config = dir.join("nginx.conf");
    let text = format!(
        "daemon off; pid {d}/pid; error_log {d}/log; worker_processes 1; user root; events {{}}\n\
         http {{ access_log off; client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f;\n\
         uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;\n\
         server {{ listen 198.18.2.1:80; listen [2001:db8:2::1]:80; root {d}; add_header X-Peer $remote_addr; }} }}",
        d = dir.display()
    );
    fs::write(&config, text).unwrap();
    let nginx = lab.net.server.command("nginx");
    let _nginx = nginx
        .arg("-c")
        .arg(&config)
        .args(["-e", "stderr"])
        .spawn()
        .unwrap();
    let up = || TcpStream::connect((lab.net.server_addr, 80)).is_ok();
    soon("nginx", || lab.net.server.run(up).unwrap());
    for (url, peer) in [
        ("http://198.18.2.1/file", "X-Peer: 198.18.2.2"),
        ("http://[2001:db8:2::1]/file", "X-Peer: 2001:db8:2::2"),
    ] {
        for n in 0..3 {
            let out = dir.join(format!("out-{n}"));
            let head = dir.join("head");
            let status = std::process::Command::new("ip")
                .args([
                    "netns",
                    "exec",
                    lab.net.client.name(),
                    "curl",
                    "-sS",
                    "--max-time",
                    "30",
                ])
                .args([
                    "-D".as_ref(),
                    head.as_os_str(),
                    "-o".as_ref(),
                    out.as_os_str(),
                    url.as_ref(),
                ])
                .status()
                .unwrap();
            assert!(status.success(), "{url}");
            assert!(fs::read(&out).unwrap() == body, "{url}: the bytes differ");
            let head = fs::read_to_string(&head).unwrap();
            assert!(head.contains(peer), "through the forwarder: {head}");
        }
    }
    lab.daemon.wait_reaped();
    let status = lab.daemon.status();
    assert_eq!(status.accepted_total, 6, "{status:?}");
    assert_eq!(status.spliced_total, 6, "{status:?}");
}
