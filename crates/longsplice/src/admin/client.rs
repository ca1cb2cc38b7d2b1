//! Runs the command line's side of the admin socket.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::de::IgnoredAny;

use super::{ErrorBody, Places, claim::held_lock, places::display_all};
use crate::instance::InstanceName;

/// Longest time for an answer; a daemon that needs longer is stuck.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of an answer: more than a million flows, less than the memory.
const LONGEST_ANSWER: u64 = 1 << 30;
/// Limit of the fields in an answer's head.
const MOST_FIELDS: usize = 32;

/// Reason why a request to a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon answers.
    #[error("no daemon of instance `{instance}` is running (looked at {})", display_all(.looked))]
    NotRunning {
        /// Name of the instance.
        instance: InstanceName,
        /// Paths that were tried.
        looked: Vec<PathBuf>,
    },
    /// A daemon runs, and its socket is elsewhere.
    #[error(
        "a daemon of instance `{instance}` is running, but not at {}: name its socket with --admin PATH (`admin` in its file)",
        display_all(.looked)
    )]
    Elsewhere {
        /// Name of the instance.
        instance: InstanceName,
        /// Paths that were tried.
        looked: Vec<PathBuf>,
    },
    /// The socket, or its directory, is another user's.
    #[error("{} may not be opened by this user: if a daemon runs there, it is another user's, try with sudo", .0.display())]
    Denied(PathBuf),
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(String),
    /// The daemon ended, or was replaced, before its answer was complete.
    #[error(
        "the daemon ended before it answered; `longsplice status` says whether another one has taken its place"
    )]
    Ended,
    /// The answer is too long to be held in memory.
    #[error("the answer has more than {} MiB; `{curl}` prints it as it comes", LONGEST_ANSWER >> 20)]
    TooLong {
        /// Command that prints it.
        curl: String,
    },
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
    let instance = instance.clone();
    Err(match denied {
        _ if held_lock(places, &instance).is_some() => ClientError::Elsewhere { instance, looked },
        Some(path) => ClientError::Denied(path),
        None => ClientError::NotRunning { instance, looked },
    })
}

/// Sends a request over a connection of its own, and returns the body of the answer.
fn exchange(mut stream: UnixStream, method: &str, path: &str, body: &str) -> Result<String, ClientError> {
    // Use HTTP/1.0: the answer has no chunks, and ends with the connection.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: longsplice\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut bytes = Vec::new();
    let length = (&stream).take(LONGEST_ANSWER).read_to_end(&mut bytes)?;
    if length as u64 == LONGEST_ANSWER {
        let socket = stream.peer_addr()?;
        let socket = socket.as_pathname().unwrap_or(Path::new("SOCKET"));
        let curl = format!("curl --unix-socket {} http://longsplice{path}", socket.display());
        return Err(ClientError::TooLong { curl });
    }
    let answer = Answer::parse(&bytes)?;
    if answer.is_cut() {
        return Err(ClientError::Ended);
    }
    match answer.status {
        200..300 => {
            let body = std::str::from_utf8(answer.body);
            Ok(body.map_err(|e| ClientError::Strange(e.to_string()))?.to_owned())
        }
        _ => Err(match answer.error() {
            Ok(error) => ClientError::Refused(error),
            Err(status) => ClientError::Strange(status),
        }),
    }
}

/// Returns the reason that an answer which is no success gives.
pub(crate) fn refusal(answer: &[u8]) -> String {
    match Answer::parse(answer) {
        Ok(answer) => answer.error().unwrap_or_else(|status| status),
        Err(_) => "no HTTP answer".to_owned(),
    }
}

/// Answer of a daemon, of which the end may lack.
struct Answer<'b> {
    status: u16,
    /// Length of the body, if the head says it.
    length: Option<usize>,
    /// Bytes of the body that came.
    body: &'b [u8],
}

impl<'b> Answer<'b> {
    /// Reads an answer. Fails with [`ClientError::Ended`] if it ends before its head does, with
    /// [`ClientError::Strange`] if it is none of HTTP.
    fn parse(bytes: &'b [u8]) -> Result<Answer<'b>, ClientError> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut head = httparse::Response::new(&mut fields);
        let strange = |e: httparse::Error| ClientError::Strange(format!("no HTTP answer: {e}"));
        let httparse::Status::Complete(end) = head.parse(bytes).map_err(strange)? else {
            return Err(ClientError::Ended);
        };
        let is_length = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case("content-length");
        let said = head.headers.iter().find(is_length);
        let length = said.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
        Ok(Answer {
            status: head.code.unwrap_or_default(),
            length,
            body: bytes.get(end..).unwrap_or_default(),
        })
    }

    /// Returns true if the end lacks. A list that comes in parts has no length: it ends where its JSON does.
    fn is_cut(&self) -> bool {
        match self.length {
            Some(length) => self.body.len() < length,
            None => serde_json::from_slice::<IgnoredAny>(self.body).is_err_and(|e| e.is_eof()),
        }
    }

    /// Returns the error that it tells, or else its status.
    fn error(&self) -> Result<String, String> {
        let told = serde_json::from_slice::<ErrorBody>(self.body);
        told.map(|body| body.error)
            .map_err(|_| format!("status {}", self.status))
    }
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
        let nowhere = Places {
            directories: Vec::new(),
        };
        request(&nowhere, &instance, Some(&path), method, "/status", "")
    }

    #[test]
    fn what_a_replaced_daemon_leaves_unanswered_its_successor_is_asked() {
        const WHOLE: &str = "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n[1,2]";
        const IN_PARTS: &str = "HTTP/1.0 200 OK\r\n\r\n[1,2";
        for cut in [
            "",
            "HTTP/1.0 200 OK\r\nconte",
            &WHOLE[..WHOLE.len() - 1],
            IN_PARTS,
        ] {
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
        let answer = Answer::parse(good).unwrap();
        assert_eq!((answer.status, answer.body), (200, &b"[]"[..]));
        for bad in [
            &b""[..],
            b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 x OK\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert!(Answer::parse(bad).is_err(), "{bad:?}");
        }
    }
}
