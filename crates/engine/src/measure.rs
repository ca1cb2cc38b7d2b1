//! Measures the cost of a segment on this machine: runs the programs over two flows of their own (BPF_PROG_RUN), in a
//! network namespace of their own, and touches nothing else.

mod flows;
mod place;

use std::{io, net::IpAddr};

use longsplice_dataplane::{
    Context, Dataplane, Error as PlaneError, Hook, Options, XdpError, XdpMode, remove_unserved,
};

/// Translations in a row. A segment has more than 32 hops left in each: XDP leaves others to tc.
const REPEAT: u32 = 220;
/// Number of rows, of which the median counts: a tenth of a second, or less.
const ROWS: usize = 400;

/// Cost of one segment with timestamps in a program alone, in nanoseconds: the median of rows of 220. The kernel's work
/// before and after it (an sk_buff for tc, none for XDP) is not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentCost {
    /// Cost at tc.
    pub tc: u32,
    /// Cost in XDP.
    pub xdp: u32,
}

/// Reason that the measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The namespace, or the veth pair in it, could not be made.
    #[error("no place to measure: {0}")]
    Place(String),
    /// The kernel half could not be loaded.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// XDP could not be attached.
    #[error("XDP: {0}")]
    Xdp(#[from] XdpError),
    /// A program could not be run, or did something else.
    #[error("a test run failed: {0}")]
    Run(#[from] io::Error),
}

impl MeasureError {
    /// Returns true if this kernel cannot run the programs: nothing can be spliced.
    pub fn is_refusal(&self) -> bool {
        matches!(self, MeasureError::Plane(PlaneError::Unsupported { .. }))
    }
}

/// Measures the cost, which takes about a second, most of it to load the programs. Makes and removes pins of an instance
/// whose name begins with `prefix`, as no other instance's may: what interrupted measurements have left is removed. Needs the privileges of splicing, and /sys/fs/bpf mounted.
///
/// # Errors
/// Returns the step that failed; nothing is left behind.
pub fn segment_cost(prefix: &str) -> Result<SegmentCost, MeasureError> {
    remove_unserved(prefix);
    let instance = format!("{prefix}{}", std::process::id());
    // The namespace is the thread's, and ends with it.
    let measured = std::thread::spawn(move || in_place(&instance)).join();
    measured.unwrap_or_else(|_| Err(MeasureError::Place("the measuring thread panicked".into())))
}

/// Returns true if an interface's driver has XDP that redirects, as far as the kernel reports.
pub fn has_native_xdp(ifindex: u32) -> bool {
    XdpMode::is_native_on(ifindex)
}

/// Removes the pins when it is dropped.
struct Guard(Dataplane);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.remove();
    }
}

fn in_place(instance: &str) -> Result<SegmentCost, MeasureError> {
    let place = place::make(flows::ENDS.map(IpAddr::from)).map_err(MeasureError::Place)?;
    let options = Options {
        instance: instance.to_owned(),
        max_flows: 2,
        max_slots: 1,
    };
    let (plane, _) = Dataplane::open(&options)?;
    let plane = Guard(plane);
    flows::install(&plane.0)?;
    // The other end takes frames from XDP once it has a program.
    plane.0.attach_xdp(place.far, XdpMode::Native)?;
    if !plane.0.open_exit(place.near, XdpMode::Native)? {
        return Err(MeasureError::Place(
            "its veth pair takes no frames from XDP".into(),
        ));
    }
    let cost = |hook, counter| median(&plane.0, hook, counter, place.near);
    Ok(SegmentCost {
        tc: cost(Hook::Ingress, "forwarded")?,
        xdp: cost(Hook::Xdp, "forwarded_xdp")?,
    })
}

fn median(plane: &Dataplane, hook: Hook, counter: &str, ifindex: u32) -> io::Result<u32> {
    let context = Context {
        ifindex,
        ..Context::default()
    };
    let count = || plane.verdicts().get(counter).copied().unwrap_or_default();
    let before = count();
    let rows = (0..ROWS).map(|_| plane.run_in(hook, &flows::segment(place::MAC), context, REPEAT));
    let mut all: Vec<u32> = rows
        .map(|ran| ran.map(|r| r.nanoseconds))
        .collect::<io::Result<_>>()?;
    if count() - before != u64::from(REPEAT) * ROWS as u64 {
        return Err(io::Error::other(format!(
            "not every segment was {counter}: {:?}",
            plane.verdicts()
        )));
    }
    all.sort_unstable();
    Ok(all.get(ROWS / 2).copied().unwrap_or_default())
}
