//! The machine that is examined.

use std::{fs, io, path::Path, process::Command};

use longsplice_engine::measure::{self, SegmentCost};
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use crate::address::PortRange;

/// A network interface.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// What its headers are, as `ARPHRD_…`.
    pub kind: u16,
    /// Whether it is administratively up.
    pub up: bool,
}

/// What the checks may ask of a machine.
pub trait Env {
    /// The text of a file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Whether there is such a file.
    fn exists(&self, path: &str) -> bool;
    /// Where a symbolic link leads.
    fn link(&self, path: &str) -> io::Result<String>;
    /// The interfaces of this network namespace, sorted by name.
    fn interfaces(&self) -> Vec<Interface>;
    /// What a command prints.
    fn run(&self, program: &str, args: &[&str]) -> io::Result<String>;
    /// Whether a socket can be put into repair mode; if not, what the system said.
    fn probe_repair(&self) -> Result<(), String>;
    /// The source ports that are to be used, where known.
    fn source_ports(&self) -> Option<PortRange>;
    /// What a segment costs at tc and in XDP; if that could not be measured, why.
    fn segment_cost(&self) -> Result<SegmentCost, String>;
    /// Whether an interface's driver has XDP that redirects, as far as is known.
    fn has_native_xdp(&self, interface: &str) -> bool;

    /// A file that holds one value.
    fn value(&self, path: &str) -> io::Result<String> {
        self.read(path).map(|text| text.trim().to_owned())
    }
}

/// This machine.
#[derive(Debug)]
pub struct Machine {
    source_ports: Option<PortRange>,
}

impl Machine {
    /// The machine that this process runs on, and the source ports that are planned.
    pub fn here(source_ports: Option<PortRange>) -> Self {
        Machine { source_ports }
    }
}

impl Env for Machine {
    fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(path)
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn link(&self, path: &str) -> io::Result<String> {
        fs::read_link(path).map(|p| p.to_string_lossy().into_owned())
    }

    /// By netlink, through getifaddrs(3): /sys/class/net shows the namespace in which /sys was mounted, which after
    /// `nsenter --net` is another.
    fn interfaces(&self) -> Vec<Interface> {
        let Ok(addresses) = nix::ifaddrs::getifaddrs() else {
            return Vec::new();
        };
        let link = |a: nix::ifaddrs::InterfaceAddress| {
            let kind = a.address?.as_link_addr()?.hatype();
            Some(Interface {
                name: a.interface_name,
                kind,
                up: a.flags.contains(InterfaceFlags::IFF_UP),
            })
        };
        let mut all: Vec<_> = addresses.filter_map(link).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn run(&self, program: &str, args: &[&str]) -> io::Result<String> {
        let output = Command::new(program).args(args).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("{program}: {}", output.status)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn probe_repair(&self) -> Result<(), String> {
        longsplice_repair::probe_repair().map_err(|e| e.to_string())
    }

    fn source_ports(&self) -> Option<PortRange> {
        self.source_ports
    }

    fn segment_cost(&self) -> Result<SegmentCost, String> {
        let instance = format!("doctor-{}", std::process::id());
        measure::segment_cost(&instance).map_err(|e| e.to_string())
    }

    fn has_native_xdp(&self, interface: &str) -> bool {
        if_nametoindex(interface).is_ok_and(measure::has_native_xdp)
    }
}
