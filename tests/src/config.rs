//! The configuration file of a daemon under test.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// A configuration file in the making.
#[derive(Debug, Clone)]
pub struct Config {
    linger: &'static str,
    head: String,
    listeners: String,
}

impl Config {
    /// One whose records linger for one second only, and with no listener yet.
    pub fn new() -> Config {
        Config {
            linger: "1s",
            head: String::new(),
            listeners: String::new(),
        }
    }

    /// Has records outlive the close of their flow for so long.
    #[must_use]
    pub fn linger(mut self, period: &'static str) -> Config {
        self.linger = period;
        self
    }

    /// Adds a line of TOML to the settings of the whole.
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

    /// Adds a listener on port 8080 of all addresses of both families that intercepts what this table (without its
    /// braces) says, and connects to where it was going.
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

    /// Writes it into this folder; where it is then.
    pub(crate) fn write(&self, dir: &Path) -> PathBuf {
        let Config {
            linger,
            head,
            listeners,
        } = self;
        let file = dir.join("longsplice.toml");
        fs::write(&file, format!("linger = \"{linger}\"\n{head}{listeners}")).unwrap();
        file
    }
}

impl Default for Config {
    fn default() -> Self {
        Config::new()
    }
}
