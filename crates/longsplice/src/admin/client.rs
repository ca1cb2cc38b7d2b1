//! Runs the command line's side of the admin socket.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{ErrorBody, Places};
use crate::instance::InstanceName;

/// Longest time for an answer; a daemon that needs longer is stuck.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of an answer: more than a full table of flows, less than the memory.
const LONGEST_ANSWER: u64 = 1 << 30;

/// Reason why a request to a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon answers.
    #[error("no daemon of instance `{instance}` is running (looked for {})", list(.looked))]
    NotRunning {
        /// Name of the instance.
        instance: InstanceName,
        /// Paths that were tried.
        looked: Vec<PathBuf>,
    },
    /// The socket belongs to another user.
    #[error("{} may not be opened by this user: the daemon runs as another, try with sudo", .0.display())]
    Denied(PathBuf),
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(String),
    /// The connection failed.
    #[error("the daemon did not answer: {0}")]
    Io(#[from] io::Error),
    /// This version does not understand the answer.
    #[error("the daemon answered what this version ({version}) does not understand: {0}", version = env!("CARGO_PKG_VERSION"))]
    Strange(String),
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    if shown.is_empty() {
        "it in every usual place".to_owned()
    } else {
        shown.join(", ")
    }
}

/// A connection to the daemon of an instance, for one request.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the daemon: at `admin` if given, else at the usual paths.
    pub fn connect(
        places: &Places,
        instance: &InstanceName,
        admin: Option<&Path>,
    ) -> Result<Client, ClientError> {
        let looked = admin.map_or_else(|| places.sockets(instance), |path| vec![path.to_owned()]);
        let mut denied = None;
        for path in &looked {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    return Ok(Client { stream });
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => denied = Some(path.clone()),
                Err(_) => {}
            }
        }
        match denied {
            Some(path) => Err(ClientError::Denied(path)),
            None => Err(ClientError::NotRunning {
                instance: instance.clone(),
                looked,
            }),
        }
    }

    /// Sends a request, and returns the body of the answer.
    pub fn request(self, method: &str, path: &str) -> Result<String, ClientError> {
        self.request_with(method, path, "")
    }

    /// Sends a request with a body of JSON, and returns the body of the answer.
    pub fn request_with(mut self, method: &str, path: &str, body: &str) -> Result<String, ClientError> {
        // Use HTTP/1.0: the answer has no chunks, and ends with the connection.
        write!(
            self.stream,
            "{method} {path} HTTP/1.0\r\nHost: longsplice\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        self.stream.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
        let (status, body) =
            parse_answer(&answer).ok_or_else(|| ClientError::Strange("no HTTP answer".to_owned()))?;
        if (200..300).contains(&status) {
            return Ok(body.to_owned());
        }
        match serde_json::from_str::<ErrorBody>(body) {
            Ok(e) => Err(ClientError::Refused(e.error)),
            Err(_) => Err(ClientError::Strange(format!("status {status}"))),
        }
    }
}

/// Returns the reason that an answer which is no success gives.
pub(crate) fn refusal(answer: &[u8]) -> String {
    match parse_answer(answer) {
        Some((status, body)) => match serde_json::from_str::<ErrorBody>(body) {
            Ok(e) => e.error,
            Err(_) => format!("status {status}"),
        },
        None => "no HTTP answer".to_owned(),
    }
}

/// Splits an answer into its status and its body.
fn parse_answer(answer: &[u8]) -> Option<(u16, &str)> {
    let (head, body) = std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    let mut status_line = head.lines().next()?.split(' ');
    let http = status_line.next()?.starts_with("HTTP/1.");
    let status = status_line.next()?.parse().ok()?;
    http.then_some((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let good = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n[]";
        assert_eq!(parse_answer(good), Some((200, "[]")));
        for bad in [
            &b""[..],
            b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 x OK\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert_eq!(parse_answer(bad), None, "{bad:?}");
        }
    }
}
