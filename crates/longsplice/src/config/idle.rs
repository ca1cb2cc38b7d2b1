//! Reads `relay_idle_timeout` and `keepalive`, for relayed connections without traffic.

use std::{str::FromStr, time::Duration};

use longsplice_engine::{IdlePolicy, Keepalive, ParseKeepaliveError};

/// Default time that a relayed connection may be idle.
pub(crate) const DEFAULT_RELAY_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Probing of idle connections: `off`, or the text of a [`Keepalive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeepaliveSetting(pub Option<Keepalive>);

impl Default for KeepaliveSetting {
    fn default() -> Self {
        KeepaliveSetting(Some(Keepalive::default()))
    }
}

impl FromStr for KeepaliveSetting {
    type Err = ParseKeepaliveError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "off" => Ok(KeepaliveSetting(None)),
            text => text.parse().map(|keepalive| KeepaliveSetting(Some(keepalive))),
        }
    }
}

longsplice_core::from_text!(KeepaliveSetting);

/// Combines both settings; `None` means the default.
pub(crate) fn idle_policy(limit: Option<Duration>, keepalive: Option<KeepaliveSetting>) -> IdlePolicy {
    IdlePolicy {
        limit: Some(limit.unwrap_or(DEFAULT_RELAY_IDLE_TIMEOUT)),
        keepalive: keepalive.unwrap_or_default().0,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::parse;

    #[test]
    fn both_keys_are_read_and_have_defaults() {
        let idle = |keys: &str| {
            let text = format!("[[listener]]\nlisten = \"127.0.0.1:1\"\nto = \"127.0.0.1:2\"\n{keys}");
            parse(Path::new("t"), &text).map(|config| config.listeners[0].idle)
        };
        let text = |keys: &str| {
            let idle = idle(keys).unwrap();
            let keepalive = idle.keepalive.map_or("off".to_owned(), |k| k.to_string());
            (idle.limit.unwrap().as_secs(), keepalive)
        };
        assert_eq!(text(""), (3600, "idle=120s,interval=15s,probes=4".into()));
        let keys = "relay_idle_timeout = \"5s\"\nkeepalive = \"idle=3s,probes=2\"";
        assert_eq!(text(keys), (5, "idle=3s,interval=15s,probes=2".into()));
        assert_eq!(text("keepalive = \"off\"").1, "off");
        for (keys, remedy) in [
            ("relay_idle_timeout = \"10ms\"", "use 1s to 365d"),
            ("keepalive = \"on\"", "use idle=DURATION"),
            ("keepalive = \"idle=10h\"", "use idle=DURATION"),
        ] {
            let wrong = idle(keys).unwrap_err();
            assert!(wrong[0].to_string().contains(remedy), "{}", wrong[0]);
        }
    }
}
