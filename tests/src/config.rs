//! Configuration file of a daemon under test.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Configuration file in the making.
#[derive(Debug, Clone)]
pub struct Config {
    record_ttl: &'static str,
    head: String,
    listeners: String,
}

impl Config {
    /// Creates a configuration with a `record_ttl` of one second, and without a listener.
    pub fn new() -> Config {
        Config {
            record_ttl: "1s",
            head: String::new(),
            listeners: String::new(),
        }
    }

    /// Sets the time for which records outlive the close of their flow.
    #[must_use]
    pub fn record_ttl(mut self, period: &'static str) -> Config {
        self.record_ttl = period;
        self
    }

    /// Adds a line of TOML to the global settings.
    #[must_use]
    pub fn set(mut self, line: &str) -> Config {
        self.head += line;
        self.head += "\n";
        self
    }

    /// Adds a line to the listener that was added last.
    #[must_use]
    pub fn with(mut self, line: &str) -> Config {
        self.listeners += line;
        self.listeners += "\n";
        self
    }

    /// Adds a listener on port 8080 of all addresses of both families. It intercepts the connections that this table
    /// (without its braces) selects, and connects to their original destination.
    #[must_use]
    pub fn intercepting(mut self, table: &str, splice: &str, detach: &str) -> Config {
        write!(
            self.listeners,
            "[[listener]]\nlisten = [\"0.0.0.0:8080\", \"[::]:8080\"]\nintercept = {{ {table} }}\nsplice = \"{splice}\"\n\
             detach = \"{detach}\"\n"
        )
        .unwrap();
        self
    }

    /// Adds a listener.
    #[must_use]
    pub fn listener(mut self, listen: SocketAddr, to: SocketAddr, splice: &str, detach: &str) -> Config {
        write!(
            self.listeners,
            "[[listener]]\nlisten = \"{listen}\"\nto = \"{to}\"\nsplice = \"{splice}\"\ndetach = \"{detach}\"\n"
        )
        .unwrap();
        self
    }

    /// Writes the file into this folder; returns its path.
    pub(crate) fn write(&self, dir: &Path) -> PathBuf {
        let Config {
            record_ttl,
            head,
            listeners,
        } = self;
        let file = dir.join("longsplice.toml");
        fs::write(&file, format!("record_ttl = \"{record_ttl}\"\n{head}{listeners}")).unwrap();
        file
    }
}

impl Default for Config {
    fn default() -> Self {
        Config::new()
    }
}
