//! Client that sends exactly the bytes it is given, and parses replies by rules of its own: those of the switch are
//! under test.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

use longsplice_lab::Namespace;

use crate::{SOON, patient};

/// Connection to the switch.
#[derive(Debug)]
pub struct Client {
    /// Socket.
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

/// Reply as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Status.
    pub status: u16,
    /// Head, with its empty line.
    pub head: String,
    /// Body, without chunk framing.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns the value of a field, if there is one of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Returns the value of the first field of this name.
pub(super) fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.split("\r\n").skip(1).find_map(|line| {
        let (n, value) = line.split_once(':')?;
        n.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

impl Client {
    /// Connects from a node.
    pub fn connect(from: &Namespace, to: SocketAddr) -> Client {
        let stream = from.run(|| TcpStream::connect(to)).unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(patient(SOON))).unwrap();
        stream.set_write_timeout(Some(patient(SOON))).unwrap();
        Client {
            stream,
            buffer: Vec::new(),
        }
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    /// Sends these bytes, at once.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a plain GET, and reads its reply.
    pub fn get(&mut self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        self.reply()
    }

    /// Reads the next reply, which may be an interim one.
    pub fn reply(&mut self) -> Reply {
        self.try_reply(false).unwrap()
    }

    /// Reads the reply to a HEAD.
    pub fn reply_to_head(&mut self) -> Reply {
        self.try_reply(true).unwrap()
    }

    /// Reads the next reply, or returns the reason why it cannot.
    pub fn try_reply(&mut self, to_head: bool) -> Result<Reply, String> {
        let head = self.read_until(b"\r\n\r\n")?;
        let head = String::from_utf8(head).map_err(|e| e.to_string())?;
        let status = head.get(9..12).and_then(|s| s.parse().ok());
        let status = status.ok_or_else(|| format!("no status: {head:?}"))?;
        let length = field(&head, "Content-Length").map(|n| n.parse().unwrap());
        let body = match (status, length) {
            _ if to_head => Vec::new(),
            (100..=199 | 204 | 304, _) => Vec::new(),
            _ if field(&head, "Transfer-Encoding").is_some() => self.read_chunks()?,
            (_, Some(length)) => self.read_exactly(length)?,
            (_, None) => self.read_to_end()?,
        };
        Ok(Reply { status, head, body })
    }

    /// Fails unless the connection ends in order, without a byte before.
    pub fn expect_end(&mut self) {
        let rest = self.read_to_end().unwrap();
        assert!(
            rest.is_empty(),
            "before the end came {:?}",
            rest.escape_ascii().to_string()
        );
    }

    /// Reads until the end or a reset; returns all bytes that came.
    pub fn drain(&mut self) -> Vec<u8> {
        loop {
            match self.fill() {
                Ok(true) => {}
                Ok(false) | Err(_) => return std::mem::take(&mut self.buffer),
            }
        }
    }

    /// Reads so many bytes.
    pub fn read_exactly(&mut self, length: usize) -> Result<Vec<u8>, String> {
        while self.buffer.len() < length {
            if !self.fill()? {
                return Err(format!("it ended after {} of {length} bytes", self.buffer.len()));
            }
        }
        let rest = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads up to these bytes, inclusive.
    pub fn read_until(&mut self, end: &[u8]) -> Result<Vec<u8>, String> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|w| w == end) {
                return self.read_exactly(at + end.len());
            }
            if !self.fill()? {
                let there = self.buffer.escape_ascii();
                return Err(format!("it ended with {there}"));
            }
        }
    }

    fn read_chunks(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            let line = self.read_until(b"\r\n")?;
            let line = String::from_utf8_lossy(&line);
            let size = line.split([';', '\r']).next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|e| format!("{line:?}: {e}"))?;
            if size == 0 {
                while self.read_until(b"\r\n")? != b"\r\n" {}
                return Ok(body);
            }
            body.extend(self.read_exactly(size)?);
            if self.read_exactly(2)? != b"\r\n" {
                return Err(format!("a chunk of {size} bytes does not end with CR LF"));
            }
        }
    }

    fn read_to_end(&mut self) -> Result<Vec<u8>, String> {
        while self.fill()? {}
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Reads more bytes; returns true if there were any.
    fn fill(&mut self) -> Result<bool, String> {
        let mut piece = vec![0; 64 << 10];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(false),
                Ok(n) => {
                    self.buffer.extend_from_slice(&piece[..n]);
                    return Ok(true);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("after {} bytes: {e}", self.buffer.len())),
            }
        }
    }
}
