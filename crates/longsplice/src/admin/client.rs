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
    /// The daemon ended, or was replaced, before its answer was complete.
    #[error(
        "the daemon ended before it answered; `longsplice status` says whether another one has taken its place"
    )]
    Ended,
    /// The connection failed.
    #[error("the daemon did not answer: {0}")]
    Io(io::Error),
    /// This version does not understand the answer.
    #[error("the daemon answered what this version ({version}) does not understand: {0}", version = env!("CARGO_PKG_VERSION"))]
    Strange(String),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ClientError::Ended,
            _ => ClientError::Io(error),
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    if shown.is_empty() {
        "it in every usual place".to_owned()
    } else {
        shown.join(", ")
    }
}

/// Sends a request with a body of JSON to the daemon of an instance, and returns the body of the answer. `admin` is the path
/// of its socket, instead of the usual ones. A daemon that is replaced may end before it answers: a request that changes
/// nothing (`GET`) is sent to its successor then.
///
/// # Errors
/// [`ClientError`].
pub fn request(
    places: &Places,
    instance: &InstanceName,
    admin: Option<&Path>,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String, ClientError> {
    let ask = || exchange(connect(places, instance, admin)?, method, path, body);
    match ask() {
        Err(ClientError::Ended) if method == "GET" => ask(),
        answered => answered,
    }
}

/// Connects to the daemon: at `admin` if given, else at the usual paths.
fn connect(
    places: &Places,
    instance: &InstanceName,
    admin: Option<&Path>,
) -> Result<UnixStream, ClientError> {
    let looked = admin.map_or_else(|| places.sockets(instance), |path| vec![path.to_owned()]);
    let mut denied = None;
    for path in &looked {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(stream);
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

/// Sends a request over a connection of its own, and returns the body of the answer.
fn exchange(mut stream: UnixStream, method: &str, path: &str, body: &str) -> Result<String, ClientError> {
    // Use HTTP/1.0: the answer has no chunks, and ends with the connection.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: longsplice\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
    if is_cut_short(&answer) {
        return Err(ClientError::Ended);
    }
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

/// Returns whether an answer of HTTP ends before its head does, or before as many bytes of body as that says.
fn is_cut_short(answer: &[u8]) -> bool {
    const HTTP: &[u8] = b"HTTP/1.";
    if !HTTP.starts_with(&answer[..answer.len().min(HTTP.len())]) {
        return false;
    }
    let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return true;
    };
    let length = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    };
    let lines = String::from_utf8_lossy(&answer[..head]);
    let length = lines.lines().find_map(length).unwrap_or(0);
    answer.len() - (head + 4) < length
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
    use std::{
        io::{BufRead, BufReader},
        os::unix::net::UnixListener,
        thread,
    };

    use super::*;

    /// Requests a resource of a daemon made by hand, which sends these answers, one in each connection.
    fn requested(method: &str, answers: Vec<&'static str>) -> Result<String, ClientError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // It waits for a connection that is missing until the process ends.
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(&stream).lines();
                while lines.next().unwrap().unwrap() != "" {}
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let instance = InstanceName::default();
        let nowhere = Places::only(Vec::new());
        request(&nowhere, &instance, Some(&path), method, "/status", "")
    }

    #[test]
    fn what_a_replaced_daemon_leaves_unanswered_its_successor_is_asked() {
        const WHOLE: &str = "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n[1,2]";
        for cut in ["", "HTTP/1.0 200 OK\r\nconte", &WHOLE[..WHOLE.len() - 1]] {
            let answered = requested("GET", vec![cut, WHOLE]);
            assert_eq!(answered.unwrap(), "[1,2]", "{cut:?}");
            // It may have done what it was told.
            let told = requested("POST", vec![cut]);
            assert!(matches!(told, Err(ClientError::Ended)), "{told:?}");
        }
        let other = requested("GET", vec!["220 mail\r\n"]);
        assert!(matches!(other, Err(ClientError::Strange(_))), "{other:?}");
    }

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
