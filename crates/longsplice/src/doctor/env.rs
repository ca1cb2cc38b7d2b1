//! Abstracts the machine that is examined.

use std::{fs, io, path::Path, process::Command};

use longsplice_engine::{
    NetworkInterface, ProgramsBefore,
    measure::{self, SegmentCost},
    notrack,
};
use nix::net::if_::if_nametoindex;
use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::address::PortRange;

/// First part of the names of instances of measurements: a colon is in no name that a user can give.
const PREFIX: &str = "doctor:";

/// Reason that no costs were measured.
#[derive(Debug, Clone)]
pub(crate) enum Unmeasured {
    /// The programs cannot be loaded: nothing can be spliced.
    Refused(String),
    /// The measurement failed otherwise.
    Failed(String),
}

/// Queries that the checks send to a machine.
pub(crate) trait Env {
    /// Returns the text of a file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Returns whether the file exists.
    fn exists(&self, path: &str) -> bool;
    /// Checks whether this process may write a file, or make files in a directory. Fails with the error of the system.
    fn probe_write(&self, path: &str) -> io::Result<()>;
    /// Returns the target of a symbolic link.
    fn link(&self, path: &str) -> io::Result<String>;
    /// Returns the interfaces of this network namespace, sorted by name.
    fn interfaces(&self) -> Vec<NetworkInterface>;
    /// Returns the output of a command.
    fn run(&self, program: &str, args: &[&str]) -> io::Result<String>;
    /// Checks whether a socket can be put into repair mode. Fails with the error of the system.
    fn probe_repair(&self) -> Result<(), String>;
    /// Checks whether nftables can be used. Fails with the error of the system.
    fn probe_nftables(&self) -> Result<(), String>;
    /// Returns the planned source ports, if they are known.
    fn source_ports(&self) -> Option<PortRange>;
    /// Returns the cost of a segment at tc and in XDP. Fails with the reason why it could not be measured.
    fn segment_cost(&self) -> Result<SegmentCost, Unmeasured>;
    /// Returns whether an interface's driver is known to support XDP with redirects.
    fn has_native_xdp(&self, interface: &str) -> bool;

    /// Returns which programs of others stand before ours; `None` if ours stand on no interface.
    fn programs_before(&self) -> Option<ProgramsBefore>;

    /// Returns the size of a page, the unit of `tcp_mem`, in bytes.
    fn page_size(&self) -> u64;

    /// Returns the trimmed text of a file that holds one value.
    fn value(&self, path: &str) -> io::Result<String> {
        self.read(path).map(|text| text.trim().to_owned())
    }
}

/// The machine that this process runs on.
#[derive(Debug)]
pub(crate) struct Machine {
    source_ports: Option<PortRange>,
}

impl Machine {
    /// Returns this machine, with the planned source ports.
    pub(crate) fn here(source_ports: Option<PortRange>) -> Self {
        Machine { source_ports }
    }
}

impl Env for Machine {
    fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(path)
    }

    fn page_size(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn probe_write(&self, path: &str) -> io::Result<()> {
        Ok(accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)?)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        fs::read_link(path).map(|p| p.to_string_lossy().into_owned())
    }

    fn interfaces(&self) -> Vec<NetworkInterface> {
        let mut all = interfaces().unwrap_or_default();
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

    fn probe_nftables(&self) -> Result<(), String> {
        notrack::probe().map_err(|e| e.to_string())
    }

    fn source_ports(&self) -> Option<PortRange> {
        self.source_ports
    }

    fn segment_cost(&self) -> Result<SegmentCost, Unmeasured> {
        measure::segment_cost(PREFIX).map_err(|error| match error.is_refusal() {
            true => Unmeasured::Refused(error.to_string()),
            false => Unmeasured::Failed(error.to_string()),
        })
    }

    fn has_native_xdp(&self, interface: &str) -> bool {
        if_nametoindex(interface).is_ok_and(measure::has_native_xdp)
    }

    fn programs_before(&self) -> Option<ProgramsBefore> {
        longsplice_engine::programs_before_instances()
    }
}

/// Asks the kernel for the interfaces of this network namespace.
fn interfaces() -> io::Result<Vec<NetworkInterface>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(NetworkInterface::list())
}
