//! Remembers routes to targets: asking the kernel for one takes five system calls, and most targets are few.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use longsplice_repair::options;
use parking_lot::Mutex;

use crate::kernel::packet::headers;

/// Time that an answer is valid if no notification voids it, such as for a learned path MTU. (A notification of rtnetlink
/// voids it at once.)
const LIFETIME: Duration = Duration::from_secs(1);

/// Maximum number of remembered targets; an interceptor has any number.
const MOST: usize = 1024;

/// Interval between two searches for old answers among so many.
const SEARCH: Duration = Duration::from_millis(100);

/// Route to a target, as the kernel routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    /// Source address of packets to it.
    pub(crate) source: IpAddr,
    /// Longest segment that it takes, in terms of an MSS option; `None`: unknown.
    pub(crate) max_segment: Option<u32>,
}

/// Holds the remembered routes.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    ways: HashMap<SocketAddr, (Instant, Way)>,
    /// Time of the last search for old answers.
    searched: Option<Instant>,
}

impl Known {
    /// Remembers an answer, if there is room for it or old ones make room.
    fn insert(&mut self, target: SocketAddr, asked: Instant, way: Way) {
        let is_due = self.searched.is_none_or(|at| at.elapsed() >= SEARCH);
        if self.ways.len() >= MOST && is_due {
            self.searched = Some(Instant::now());
            self.ways.retain(|_, (asked, _)| asked.elapsed() < LIFETIME);
        }
        if self.ways.len() < MOST {
            self.ways.insert(target, (asked, way));
        }
    }
}

impl Routes {
    /// Returns the route to `target`, no older than a second, and than the last change that was notified.
    pub(crate) fn way(&self, target: SocketAddr) -> io::Result<Way> {
        let known = self.known.lock().ways.get(&target).copied();
        match known {
            Some((asked, way)) if asked.elapsed() < LIFETIME => Ok(way),
            _ => self.ask(target),
        }
    }

    /// Returns the present route to `target`.
    pub(crate) fn ask(&self, target: SocketAddr) -> io::Result<Way> {
        // Take the time before the answer: a later change voids the entry, a change during the question makes it old.
        let asked = Instant::now();
        let way = ask(target)?;
        self.known.lock().insert(target, asked, way);
        Ok(way)
    }

    #[cfg(test)]
    pub(crate) fn remember(&self, target: SocketAddr, way: Way) {
        self.known.lock().ways.insert(target, (Instant::now(), way));
    }

    /// Forgets all routes, after a change of routes, addresses, interfaces or rules.
    pub(crate) fn forget(&self) {
        self.known.lock().ways.clear();
    }
}

/// Asks by a socket that is routed to `target`, and sends nothing.
fn ask(target: SocketAddr) -> io::Result<Way> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let probe = UdpSocket::bind(any)?;
    probe.connect(target)?;
    let mtu = options::path_mtu(&probe).ok();
    Ok(Way {
        source: probe.local_addr()?.ip(),
        max_segment: mtu.and_then(|mtu| mtu.checked_sub(headers(target.ip()))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 80).into()
    }

    #[test]
    fn the_loopback_is_reached_from_itself_in_long_segments() {
        let routes = Routes::default();
        let v4 = routes.way(target(1)).unwrap();
        assert_eq!(v4.source, IpAddr::from([127, 0, 0, 1]));
        assert!(v4.max_segment.is_some_and(|n| n > 32_767), "{v4:?}");
        assert_eq!(routes.known.lock().ways.len(), 1);
    }

    #[test]
    fn an_answer_is_used_again_until_it_is_old_or_void() {
        let routes = Routes::default();
        let real = routes.way(target(1)).unwrap();
        let other = Way {
            source: [127, 0, 0, 9].into(),
            ..real
        };
        let put = |age| {
            let asked = Instant::now().checked_sub(age).unwrap();
            routes.known.lock().ways.insert(target(1), (asked, other));
        };
        put(LIFETIME / 10);
        assert_eq!(routes.way(target(1)).unwrap(), other);
        assert_eq!(routes.ask(target(1)).unwrap(), real, "who asks is told what is");
        put(LIFETIME);
        assert_eq!(routes.way(target(1)).unwrap(), real);
        put(Duration::ZERO);
        routes.forget();
        assert_eq!(routes.way(target(1)).unwrap(), real);
    }

    #[test]
    fn any_number_of_targets_takes_some_memory_only() {
        let routes = Routes::default();
        let way = routes.way(target(1)).unwrap();
        let now = Instant::now();
        let many = (1..=MOST as u16).map(|port| (([127, 0, 0, 2], port).into(), (now, way)));
        routes.known.lock().ways.extend(many);
        let before = routes.known.lock().ways.len();
        routes.way(target(3)).unwrap();
        assert_eq!(routes.known.lock().ways.len(), before);
        // Old entries make room.
        let old = now.checked_sub(LIFETIME).unwrap();
        routes
            .known
            .lock()
            .ways
            .values_mut()
            .for_each(|(asked, _)| *asked = old);
        routes.known.lock().searched = Some(Instant::now() + SEARCH);
        routes.way(target(3)).unwrap();
        assert_eq!(
            routes.known.lock().ways.len(),
            before,
            "it was searched a moment ago"
        );
        routes.known.lock().searched = now.checked_sub(SEARCH);
        routes.way(target(3)).unwrap();
        assert_eq!(routes.known.lock().ways.len(), 1);
    }
}
