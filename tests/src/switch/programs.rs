//! Third-party servers.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use longsplice_lab::{Namespace, NsCommand, Process};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::soon;

const CONFIGURATION: &str = include_str!("nginx.conf");

/// Longest time for a server to end.
const STOP: Duration = Duration::from_secs(5);

/// nginx with a folder of files. Dropping it ends it and its workers.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    dir: TempDir,
}

impl Nginx {
    /// Starts it in a node, with an empty folder.
    pub fn start(at: &Namespace, listen: SocketAddr) -> Nginx {
        let dir = folder();
        fs::create_dir(dir.path().join("root")).unwrap();
        let text = CONFIGURATION
            .replace("@DIR@", &dir.path().display().to_string())
            .replace("@LISTEN@", &listen.to_string());
        let file = dir.path().join("nginx.conf");
        fs::write(&file, text).unwrap();
        let command = at.command("nginx").args(["-e", "stderr", "-c"]).arg(file);
        let process = started(at, command, dir.path(), listen);
        Nginx { process, dir }
    }

    /// Returns the folder that it serves.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Returns its access log, a line for each request: connection, request of that connection, request line, status,
    /// bytes of the body.
    pub fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers would survive a SIGKILL of nginx itself.
        if self.process.kill(Signal::TERM).is_ok() {
            let _ = self.process.wait(STOP);
        }
    }
}

/// A Python server on the standard library's `http.server`, with a thread for each connection: `server.py`.
#[derive(Debug)]
pub struct Python {
    _process: Process,
    dir: TempDir,
}

impl Python {
    /// Starts it in a node, with an empty folder. It speaks HTTP/1.0 or HTTP/1.1.
    pub fn start(at: &Namespace, listen: SocketAddr, version: &str) -> Python {
        let dir = folder();
        fs::create_dir(dir.path().join("root")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/switch/server.py");
        let (host, port) = (listen.ip().to_string(), listen.port().to_string());
        let command = at.command("python3").arg(script).args([&host, &port, version]);
        let command = command.arg(dir.path().join("root"));
        Python {
            _process: started(at, command, dir.path(), listen),
            dir,
        }
    }

    /// Returns the folder that it serves.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Returns its log of complaints.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("longsplice-test-")
        .tempdir()
        .unwrap()
}

fn started(at: &Namespace, command: NsCommand<'_>, dir: &Path, listen: SocketAddr) -> Process {
    let log = dir.join("log");
    let process = command.log_to(&log).unwrap().spawn().unwrap();
    soon("the server to listen", || {
        assert!(
            process.is_running(),
            "it ended: {}",
            fs::read_to_string(&log).unwrap_or_default()
        );
        at.listens_at(listen.port()).unwrap()
    });
    process
}
