//! Decides what a handshake asks for, so that both legs of a pair agree on the same, and remembers what targets do not
//! agree to.

use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Time for which a target's refusal is believed. Afterwards one client is offered everything again.
pub const LIFETIME: Duration = Duration::from_secs(600);

/// Maximum number of remembered pairs of a listener and a target.
pub const MOST: usize = 4096;

/// Options of TCP that two ends agree on in a handshake: asked for, agreed on, or withheld.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// Timestamps (RFC 7323 section 3).
    pub timestamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

impl Terms {
    /// Holds every option.
    pub const ALL: Terms = Terms {
        timestamps: true,
        sack: true,
        window_scaling: true,
        ecn: true,
    };

    /// Returns the options of these that the others do not hold.
    pub fn without(self, others: Terms) -> Terms {
        self.zip(others, |this, other| this && !other)
    }

    /// Returns the options that are in either.
    pub fn or(self, others: Terms) -> Terms {
        self.zip(others, |this, other| this || other)
    }

    /// Returns true if it holds no option.
    pub fn is_empty(self) -> bool {
        self == Terms::default()
    }

    /// Returns the names of its options, as users see them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        [
            (self.timestamps, "timestamps"),
            (self.sack, "sack"),
            (self.window_scaling, "window_scaling"),
            (self.ecn, "ecn"),
        ]
        .into_iter()
        .filter_map(|(holds, name)| holds.then_some(name))
    }

    fn zip(self, o: Terms, f: impl Fn(bool, bool) -> bool) -> Terms {
        Terms {
            timestamps: f(self.timestamps, o.timestamps),
            sack: f(self.sack, o.sack),
            window_scaling: f(self.window_scaling, o.window_scaling),
            ecn: f(self.ecn, o.ecn),
        }
    }
}

/// Holds what targets lack, so that their clients are not offered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lacks {
    /// Options that they do not agree to.
    pub terms: Terms,
    /// Longest segment that they take, in terms of an MSS option, where clients were offered more; `None`: no limit.
    pub max_segment: Option<u32>,
}

impl Lacks {
    /// Returns true if nothing is lacking.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty() && self.max_segment.is_none()
    }

    fn and(self, others: Lacks) -> Lacks {
        Lacks {
            terms: self.terms.or(others.terms),
            max_segment: self.max_segment.into_iter().chain(others.max_segment).min(),
        }
    }
}

/// Result of a handshake with a target in the name of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Options that the client's leg has.
    pub wanted: Terms,
    /// Options that the target's leg has.
    pub agreed: Terms,
    /// Longest segment that the target takes, if clients were offered longer ones.
    pub max_segment: Option<u32>,
}

impl Agreement {
    /// Returns true if the target agreed to all that the client's leg has.
    pub fn is_whole(&self) -> bool {
        self.max_segment.is_none() && self.wanted.without(self.agreed).is_empty()
    }
}

/// Remembers what the targets of each listener lack, for [`LIFETIME`] and up to [`MOST`] pairs of both.
///
/// Scales are not remembered: a splice translates them, and a client without scaling would be slower while it is relayed.
#[derive(Debug, Default)]
pub struct Shortfalls {
    known: HashMap<(SocketAddr, SocketAddr), (Lacks, Instant)>,
}

impl Shortfalls {
    /// Notes a handshake with `target` for a client of `listener`; both are addresses on the wire. Returns true if it
    /// changes what the listener's clients should be offered. A target that agreed to an option has it, whatever it lacked
    /// before.
    pub fn note(
        &mut self,
        listener: SocketAddr,
        target: SocketAddr,
        agreement: &Agreement,
        now: Instant,
    ) -> bool {
        let wanted = Terms {
            window_scaling: false,
            ..agreement.wanted
        };
        let found = Lacks {
            terms: wanted.without(agreement.agreed),
            max_segment: agreement.max_segment,
        };
        let key = (listener, target);
        let known = self.known.get(&key).copied();
        if found.is_empty() && known.is_none() {
            return false;
        }
        let before = known.map(|(lacks, _)| lacks).unwrap_or_default();
        let still = Lacks {
            terms: before.terms.without(wanted),
            ..before
        };
        let after = still.and(found);
        let until = match known {
            Some((_, until)) if found.is_empty() => until,
            _ => now + LIFETIME,
        };
        if after.is_empty() {
            self.known.remove(&key);
        } else if known.is_some() || self.has_room(now) {
            self.known.insert(key, (after, until));
        }
        before != after
    }

    /// Returns what the clients of a listener must not be offered: what any of its targets lacks. `listener` is the address
    /// that it is bound to, also a wildcard.
    pub fn of(&self, listener: SocketAddr) -> Lacks {
        let is_its = |local: SocketAddr| {
            local == listener || (listener.ip().is_unspecified() && local.port() == listener.port())
        };
        let its = self.known.iter().filter(|((local, _), _)| is_its(*local));
        its.fold(Lacks::default(), |all, (_, (lacks, _))| all.and(*lacks))
    }

    /// Returns true if nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Forgets what is older than [`LIFETIME`]. Returns true if anything was.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.known.len();
        self.known.retain(|_, (_, until)| now < *until);
        self.known.len() < before
    }

    fn has_room(&mut self, now: Instant) -> bool {
        if self.known.len() >= MOST {
            self.expire(now);
        }
        self.known.len() < MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Terms = Terms {
        timestamps: false,
        sack: false,
        window_scaling: false,
        ecn: false,
    };

    fn at(host: u8, port: u16) -> SocketAddr {
        ([198, 18, host, 1], port).into()
    }

    fn agreement(wanted: Terms, agreed: Terms) -> Agreement {
        Agreement {
            wanted,
            agreed,
            max_segment: None,
        }
    }

    #[test]
    fn a_listener_withholds_what_any_of_its_targets_lacks() {
        let (mut memory, now) = (Shortfalls::default(), Instant::now());
        let no_ecn = Terms {
            ecn: false,
            ..Terms::ALL
        };
        assert!(!memory.note(at(1, 80), at(2, 80), &agreement(Terms::ALL, Terms::ALL), now));
        assert!(memory.note(at(1, 80), at(2, 80), &agreement(Terms::ALL, no_ecn), now));
        let short = Agreement {
            max_segment: Some(536),
            ..agreement(NOTHING, NOTHING)
        };
        assert!(memory.note(at(1, 80), at(3, 80), &short, now));
        let lacks = memory.of(at(1, 80));
        assert_eq!(lacks.terms.names().collect::<Vec<_>>(), ["ecn"]);
        assert_eq!(lacks.max_segment, Some(536));
        assert_eq!(memory.of("0.0.0.0:80".parse().unwrap()), lacks);
        assert!(memory.of(at(1, 81)).is_empty());
        assert!(memory.of("0.0.0.0:81".parse().unwrap()).is_empty());
    }

    #[test]
    fn what_a_target_agrees_to_it_does_not_lack() {
        let (mut memory, now) = (Shortfalls::default(), Instant::now());
        let (listener, target) = (at(1, 80), at(2, 80));
        assert!(memory.note(listener, target, &agreement(Terms::ALL, NOTHING), now));
        // A client that does not ask tells nothing.
        assert!(!memory.note(listener, target, &agreement(NOTHING, NOTHING), now));
        assert!(memory.of(listener).terms.timestamps);
        assert!(!memory.of(listener).terms.window_scaling, "scales are translated");
        assert!(memory.note(listener, target, &agreement(Terms::ALL, Terms::ALL), now));
        assert!(memory.of(listener).is_empty());
    }

    #[test]
    fn what_is_old_is_forgotten_and_the_memory_is_limited() {
        let (mut memory, now) = (Shortfalls::default(), Instant::now());
        let refused = agreement(Terms::ALL, NOTHING);
        for n in 0..MOST + 10 {
            let noted = memory.note(at(1, 80), at(2, n as u16), &refused, now);
            assert_eq!(memory.known.len(), MOST.min(n + 1));
            assert!(noted);
        }
        assert!(!memory.expire(now + LIFETIME / 2));
        assert!(memory.expire(now + LIFETIME));
        assert!(memory.of(at(1, 80)).is_empty());
        memory.note(at(1, 80), at(2, 80), &refused, now);
        let later = now + LIFETIME / 2;
        memory.note(at(1, 80), at(2, 80), &refused, later);
        assert!(
            !memory.expire(now + LIFETIME),
            "a refusal that is repeated is believed anew"
        );
    }
}
