//! Reads the section of the transparent accelerator: its interfaces, its congestion controls, and what it leaves alone.

use std::{net::IpAddr, ops::Range, time::Duration};

use longsplice_engine::{
    Thresholds, handshake,
    rules::{Action, Match, Network, Ports, Rule},
};
use serde::Deserialize;
use toml::Spanned;

use super::{
    intercept::rule_name,
    one_or_many::{OneOrMany, list},
    period::Period,
    rules,
    settler::Settler,
};

/// Shortest round trip of both legs together for which a connection stays taken over, by default.
const DEFAULT_MIN_RTT: Duration = Duration::from_millis(10);

/// Least predicted gain, in percent, by default.
const DEFAULT_MIN_GAIN: u32 = 115;

/// Longest queue inside the node, by default.
const DEFAULT_QUEUE: Duration = Duration::from_millis(75);

/// Time without a byte after which a connection is released, by default.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Number of connections that are taken over at once, by default.
const DEFAULT_MAX_CONNECTIONS: u32 = 16_384;

/// End of the name of a rule for packets to this host itself.
const TO_THIS_HOST: &str = "to this host";

/// Settings of the transparent accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccelerateConfig {
    /// Interfaces of one side, such as a site.
    pub inside: Vec<String>,
    /// Interfaces of the other side, such as a long link.
    pub outside: Vec<String>,
    /// Congestion control of the legs on the inside; `None`: the kernel's own choice.
    pub inside_congestion: Option<String>,
    /// Congestion control of the legs on the outside.
    pub outside_congestion: Option<String>,
    /// Networks of the ends that accept; empty means all.
    pub to: Vec<Network>,
    /// Ports of the ends that accept; empty means all.
    pub ports: Vec<Ports>,
    /// Networks of either end whose connections are left alone.
    pub except: Vec<Network>,
    /// Shortest round trip of both legs together for which a connection stays taken over.
    pub min_rtt: Duration,
    /// Least predicted gain for which it stays taken over, in percent (100 to 10,000).
    pub min_gain: u32,
    /// Longest time that a byte shall wait inside the node.
    pub queue: Duration,
    /// Time without a byte after which a connection is released.
    pub idle_timeout: Duration,
    /// Number of connections that are taken over at once.
    pub max_connections: u32,
    /// Connections whose client is answered before the server.
    pub early_accept: EarlyAccept,
    /// Treatment of connections that fill the queue of a bottleneck.
    pub standing_queue: StandingQueue,
    /// Classes of customers, the first one first: when there is no room, a connection of an earlier class takes that of a
    /// later one.
    pub classes: Vec<AccelerateClass>,
}

/// A class of customers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccelerateClass {
    /// Name of the class.
    pub name: String,
    /// Networks of its customers: of either end of a connection.
    pub networks: Vec<Network>,
}

/// A class as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClass {
    name: Spanned<String>,
    networks: Spanned<OneOrMany<Network>>,
}

/// Selects the connections whose SYN is answered before the server has answered (paper 004, algorithm 1). A short
/// transfer gains most of its time by that; a server that refuses looks like one that accepts and resets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EarlyAccept {
    /// None.
    #[default]
    Never,
    /// Those to servers that have accepted a connection in the last ten minutes.
    Known,
    /// All.
    Always,
}

/// Selects what becomes of a connection that keeps the queue of a bottleneck filled. Its rate is that of the link with or
/// without a node, and its shorter round trip takes the share of other connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StandingQueue {
    /// It is released.
    #[default]
    Release,
    /// It stays taken over.
    Keep,
}

/// The section as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    inside: Spanned<OneOrMany<String>>,
    outside: Spanned<OneOrMany<String>>,
    inside_congestion: Option<Spanned<String>>,
    outside_congestion: Option<Spanned<String>>,
    to: Option<Spanned<OneOrMany<Network>>>,
    ports: Option<Spanned<OneOrMany<Ports>>>,
    except: Option<Spanned<OneOrMany<Network>>>,
    min_rtt: Option<Spanned<Period>>,
    min_gain: Option<Spanned<f64>>,
    queue: Option<Spanned<Period>>,
    idle_timeout: Option<Spanned<Period>>,
    max_connections: Option<Spanned<i64>>,
    #[serde(default)]
    early_accept: EarlyAccept,
    #[serde(default)]
    standing_queue: StandingQueue,
    #[serde(default)]
    class: Vec<RawClass>,
}

impl AccelerateConfig {
    /// Returns the defaults for these interfaces.
    pub(crate) fn between(inside: Vec<String>, outside: Vec<String>) -> AccelerateConfig {
        AccelerateConfig {
            inside,
            outside,
            inside_congestion: None,
            outside_congestion: None,
            to: Vec::new(),
            ports: Vec::new(),
            except: Vec::new(),
            min_rtt: DEFAULT_MIN_RTT,
            min_gain: DEFAULT_MIN_GAIN,
            queue: DEFAULT_QUEUE,
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            early_accept: EarlyAccept::Never,
            standing_queue: StandingQueue::Release,
            classes: Vec::new(),
        }
    }

    /// Returns the interfaces of both sides.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        self.inside.iter().chain(&self.outside).cloned().collect()
    }

    /// Returns the thresholds under which a connection is released.
    pub(crate) fn thresholds(&self) -> Thresholds {
        Thresholds {
            yields_at_queue: self.standing_queue == StandingQueue::Release,
            has_own_congestion: self.has_congestion_control(),
            ..Thresholds::for_gain(self.min_rtt, self.min_gain)
        }
    }

    /// Returns whether a side has a congestion control of its own.
    pub(crate) fn has_congestion_control(&self) -> bool {
        self.inside_congestion.is_some() || self.outside_congestion.is_some()
    }

    /// Returns the two sides: the key of each, which is the option's name, too, and its interfaces.
    pub(super) fn sides(&self) -> [(&'static str, &[String]); 2] {
        [("inside", &self.inside), ("outside", &self.outside)]
    }

    /// Complains about interfaces that cannot be the two sides of a node.
    pub(crate) fn complaint(&self) -> Option<rules::Complaint> {
        let complaint = |message: String, help| Some(rules::Complaint { message, help });
        for (side, names) in self.sides() {
            if names.is_empty() {
                return complaint(
                    format!("no interface is {side}"),
                    "name one, such as inside = \"eth1\", outside = \"eth0\"",
                );
            }
        }
        let all = self.interfaces();
        if let Some(name) = all.iter().find(|name| !rules::is_interface_name(name)) {
            return complaint(
                format!("`{name}` cannot be the name of an interface"),
                "`ip -br link` lists them",
            );
        }
        let twice = |name: &&String| all.iter().filter(|other| other == name).count() > 1;
        if let Some(name) = all.iter().find(twice) {
            return complaint(
                format!("`{name}` is named twice"),
                "an interface is inside or outside",
            );
        }
        None
    }

    /// Returns true if a rule is one of [`AccelerateConfig::rules`] for packets to this host itself.
    pub(crate) fn is_for_this_host(rule: &Rule) -> bool {
        rule.action == Action::Pass && rule.name.ends_with(TO_THIS_HOST)
    }

    /// Returns the rules that bring handshakes and taken-over connections to this process, around the host's `own`
    /// addresses.
    pub(crate) fn rules(&self, own: &[IpAddr]) -> Vec<Rule> {
        let own: Vec<Network> = own.iter().copied().map(Network::from).collect();
        let mut all = Vec::new();
        for interface in self.interfaces() {
            let mut pass = |what: &str, from: &[Network], to: &[Network]| {
                if !from.is_empty() || !to.is_empty() {
                    all.push(Rule {
                        name: rule_name(&format!("{interface} {what}")),
                        matching: Match {
                            interface: Some(interface.clone()),
                            from: from.to_vec(),
                            to: to.to_vec(),
                            flags: "any".parse().unwrap_or_default(),
                            ..Match::default()
                        },
                        action: Action::Pass,
                    });
                }
            };
            pass(TO_THIS_HOST, &[], &own);
            pass("excepted sources", &self.except, &[]);
            pass("excepted destinations", &[], &self.except);
            all.extend(handshake::rules(&interface, &interface, &self.to, &self.ports));
        }
        all
    }
}

impl Settler<'_> {
    /// Checks and converts the section.
    pub(super) fn accelerate(&mut self, raw: Raw, place: Range<usize>) -> AccelerateConfig {
        let default = AccelerateConfig::between(list(Some(raw.inside)), list(Some(raw.outside)));
        let second = Duration::from_secs(1);
        let config = AccelerateConfig {
            inside_congestion: self.congestion(raw.inside_congestion),
            outside_congestion: self.congestion(raw.outside_congestion),
            to: self.some_or_all(raw.to),
            ports: self.some_or_all(raw.ports),
            except: list(raw.except),
            min_rtt: self.period_in("min_rtt", raw.min_rtt, default.min_rtt, &rules::MIN_RTT),
            min_gain: self.gain(raw.min_gain),
            queue: self.period_in("queue", raw.queue, default.queue, &rules::QUEUE),
            idle_timeout: self.period(
                "idle_timeout",
                raw.idle_timeout,
                default.idle_timeout,
                second,
                365 * 86_400 * second,
            ),
            max_connections: self.count(
                "max_connections",
                raw.max_connections.as_ref(),
                default.max_connections,
                1 << 20,
            ),
            early_accept: raw.early_accept,
            standing_queue: raw.standing_queue,
            classes: self.classes(raw.class),
            ..default
        };
        if let Some(complaint) = config.complaint() {
            self.complain(place, complaint.message, complaint.help);
        }
        config
    }

    /// Returns the elements of a list without which all are meant.
    fn some_or_all<T>(&mut self, given: Option<Spanned<OneOrMany<T>>>) -> Vec<T> {
        let help = "name one, or leave the key out for all";
        given.map_or_else(Vec::new, |given| self.filled(given, help))
    }

    fn classes(&mut self, given: Vec<RawClass>) -> Vec<AccelerateClass> {
        let mut classes: Vec<AccelerateClass> = Vec::new();
        for class in given {
            if classes.iter().any(|known| known.name == *class.name.get_ref()) {
                let message = format!("there are two classes `{}`", class.name.get_ref());
                self.complain(class.name.span(), message, "give each its own name");
            }
            let networks = class.networks.span();
            let class = AccelerateClass {
                name: class.name.into_inner(),
                networks: list(Some(class.networks)),
            };
            if class.networks.is_empty() {
                let message = format!("class `{}` has no network", class.name);
                self.complain(
                    networks,
                    message,
                    "name one, such as networks = \"198.18.1.0/24\"",
                );
            }
            classes.push(class);
        }
        classes
    }

    fn gain(&mut self, given: Option<Spanned<f64>>) -> u32 {
        let Some(given) = given else {
            return DEFAULT_MIN_GAIN;
        };
        let percent = (given.get_ref() * 100.0).round();
        if !(100.0..=10_000.0).contains(&percent) {
            let message = format!("min_gain is out of range: {}", given.get_ref());
            self.complain(
                given.span(),
                message,
                "use 1.0 to 100.0: by how much the node must make a connection faster; 1.0 keeps it however near one end is",
            );
            return DEFAULT_MIN_GAIN;
        }
        percent as u32
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;
    use super::*;

    fn accelerate(section: &str) -> Result<AccelerateConfig, String> {
        let text = format!("[accelerate]\n{section}");
        match parse(Path::new("x.toml"), &text) {
            Ok(config) => Ok(config.accelerate.unwrap()),
            Err(wrong) => Err(wrong.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn the_smallest_section_has_all_defaults() {
        let read = accelerate("inside = \"eth1\"\noutside = [\"eth0\", \"eth2\"]").unwrap();
        let default = AccelerateConfig::between(vec!["eth1".into()], vec!["eth0".into(), "eth2".into()]);
        assert_eq!(read, default);
    }

    #[test]
    fn every_key_arrives() {
        let read = accelerate(
            "inside = \"a\"\noutside = \"b\"\ninside_congestion = \"reno\"\nto = \"198.18.0.0/15\"\nports = [\"80\", \"443\"]\n\
             except = \"198.18.9.0/24\"\nmin_rtt = \"20ms\"\nmin_gain = 1.5\nqueue = \"50ms\"\nidle_timeout = \"5m\"\nmax_connections = 9\nearly_accept = \"known\"\nstanding_queue = \"keep\"\n\
             [[accelerate.class]]\nname = \"gold\"\nnetworks = \"198.18.1.0/24\"",
        )
        .unwrap();
        assert_eq!((read.min_gain, read.max_connections), (150, 9));
        assert_eq!(
            (read.min_rtt, read.queue, read.idle_timeout.as_secs()),
            (Duration::from_millis(20), Duration::from_millis(50), 300)
        );
        assert_eq!(read.inside_congestion.as_deref(), Some("reno"));
        assert_eq!((read.to.len(), read.ports.len(), read.except.len()), (1, 2, 1));
        assert_eq!(read.early_accept, EarlyAccept::Known);
        assert!(!read.thresholds().yields_at_queue);
        assert_eq!(read.classes[0].name, "gold");
        let rules = read.rules(&["198.18.1.1".parse().unwrap()]);
        assert_eq!(rules.len(), 2 * (3 + 4));
        assert!(rules[..3].iter().all(|rule| rule.action == Action::Pass));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_remedy() {
        for (section, says) in [
            ("inside = \"a\"", "outside"),
            ("inside = []\noutside = \"b\"", "no interface is inside"),
            ("inside = \"a\"\noutside = \"a\"", "named twice"),
            ("inside = \"a/b\"\noutside = \"b\"", "ip -br link"),
            ("inside = \"a\"\noutside = \"b\"\nmin_gain = 0.99", "use 1.0"),
            (
                "inside = \"a\"\noutside = \"b\"\nqueue = \"0s\"",
                "queue is out of range",
            ),
            (
                "inside = \"a\"\noutside = \"b\"\nto = []",
                "x.toml:4:6: the list is empty",
            ),
            (
                "inside = \"a\"\noutside = \"b\"\nports = []",
                "leave the key out for all",
            ),
            (
                "inside = \"a\"\noutside = \"b\"\n[[accelerate.class]]\nname = \"gold\"\nnetworks = []",
                "has no network",
            ),
            (
                "inside = \"a\"\noutside = \"b\"\noutside_congestion = \"no such\"",
                "tcp_available_congestion_control",
            ),
        ] {
            let wrong = accelerate(section).unwrap_err();
            assert!(wrong.contains(says), "{section}: {wrong}");
        }
    }
}
