//! Runs nginx, as a server.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
};

use longsplice_lab::{Namespace, Process};

use crate::soon;

/// Server that ends when it is dropped.
#[derive(Debug)]
pub struct Nginx {
    dir: PathBuf,
    _process: Process,
}

impl Nginx {
    /// Starts a server in `namespace` that serves the files of `dir`, which is made; `http` holds the blocks of its
    /// servers, one of which listens at `address`.
    pub fn start(namespace: &Namespace, dir: &Path, http: &str, address: SocketAddr) -> Nginx {
        fs::create_dir_all(dir.join("files")).unwrap();
        let text = format!(
            "daemon off; pid {d}/pid; error_log {d}/errors; worker_processes 1; user root; events {{}}\n\
             http {{ log_format test '$remote_addr $proxy_protocol_addr:$proxy_protocol_port \
             $proxy_protocol_server_addr:$proxy_protocol_server_port $request_uri';\n\
             access_log {d}/access test; client_max_body_size 0; client_body_temp_path {d}/b; proxy_temp_path {d}/p;\n\
             fastcgi_temp_path {d}/f; uwsgi_temp_path {d}/u; scgi_temp_path {d}/s; root {d}/files;\n{http} }}",
            d = dir.display()
        );
        let config = dir.join("nginx.conf");
        fs::write(&config, text).unwrap();
        let process = namespace
            .command("nginx")
            .arg("-c")
            .arg(&config)
            .args(["-e", "stderr"])
            .spawn()
            .unwrap();
        soon("nginx", || {
            namespace.run(|| TcpStream::connect(address).is_ok()).unwrap()
        });
        Nginx {
            dir: dir.to_owned(),
            _process: process,
        }
    }

    /// Adds a file that it serves.
    pub fn add(&self, name: &str, content: &[u8]) {
        fs::write(self.dir.join("files").join(name), content).unwrap();
    }

    /// Returns its access log: the peer, source and destination of a PROXY header, and the path.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("access")).unwrap_or_default()
    }
}
