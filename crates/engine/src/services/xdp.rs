//! Tracks the interfaces with the XDP program (papers' IP/FWD): those that the configuration names, while they are
//! watched.

use std::collections::HashMap;

use longsplice_dataplane::{Dataplane, XdpMode};
use parking_lot::Mutex;

use crate::api::SplicerConfig;

/// State of XDP on a watched interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is not named, or has no XDP support: its segments are translated at tc.
    Off,
    /// It has the program. The value is true if frames may leave by it from XDP, and `None` before that was checked.
    On(Option<bool>),
}

/// XDP state of the watched interfaces, by interface number.
#[derive(Debug, Default)]
pub(crate) struct FastPath {
    states: Mutex<States>,
    /// Held while `states` change, so that readers of `states` do not wait while programs are loaded.
    changing: Mutex<()>,
}

type States = HashMap<u32, (String, State)>;

impl FastPath {
    /// Attaches and detaches XDP after interfaces have changed.
    pub(crate) fn follow(&self, plane: &Dataplane, config: &SplicerConfig, watched: &HashMap<u32, String>) {
        let _one = self.changing.lock();
        let mut states = self.states.lock().clone();
        // tc was detached from interfaces that are not watched any more, and XDP with it.
        states.retain(|index, _| watched.contains_key(index));
        for (&index, name) in watched {
            let named = config.xdp.contains(name);
            states
                .entry(index)
                .or_insert_with(|| (name.clone(), begin(plane, index, name, named, config.xdp_mode)));
        }
        look(&mut states, plane, config.xdp_mode);
        *self.states.lock() = states;
        for name in config
            .xdp
            .iter()
            .filter(|name| !watched.values().any(|w| w == *name))
        {
            tracing::debug!(
                interface = name,
                "not watched (down, or no route leads there): without XDP"
            );
        }
    }

    /// Checks once more if drivers still take frames from XDP. The kernel sends no notification that we receive, such as
    /// when the other end of a veth pair turns GRO off.
    pub(crate) fn look_again(&self, plane: &Dataplane, mode: XdpMode) {
        let _one = self.changing.lock();
        let mut states = self.states.lock().clone();
        look(&mut states, plane, mode);
        *self.states.lock() = states;
    }

    /// Returns the names of the interfaces that have the program, sorted.
    pub(crate) fn interfaces(&self) -> Vec<String> {
        let states = self.states.lock();
        let on = states.values().filter(|(_, state)| matches!(state, State::On(_)));
        let mut names: Vec<String> = on.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }
}

/// Returns the first state of an interface that is watched from now on.
fn begin(plane: &Dataplane, index: u32, name: &str, named: bool, mode: XdpMode) -> State {
    if !named {
        // A predecessor may have attached XDP here.
        plane.detach_xdp(index);
        return State::Off;
    }
    match plane.attach_xdp(index, mode) {
        Ok(()) => {
            tracing::info!(interface = name, %mode, "detached flows are translated in XDP");
            State::On(None)
        }
        Err(error) => {
            plane.detach_xdp(index);
            tracing::warn!(interface = name, %mode, %error, "no XDP there: its segments are translated at tc");
            State::Off
        }
    }
}

fn look(states: &mut States, plane: &Dataplane, mode: XdpMode) {
    for (&index, (name, state)) in states {
        if let State::On(before) = *state {
            *state = State::On(exit(plane, index, name, before, mode));
        }
    }
}

/// Returns true if frames may leave by an interface from XDP now; logs a change.
fn exit(plane: &Dataplane, index: u32, name: &str, before: Option<bool>, mode: XdpMode) -> Option<bool> {
    let open = match plane.open_exit(index, mode) {
        Ok(open) => open,
        Err(error) => {
            tracing::warn!(interface = name, %error, "nothing leaves there from XDP");
            false
        }
    };
    match (before == Some(open), open) {
        (true, _) => {}
        (false, true) => tracing::debug!(interface = name, "takes frames from XDP"),
        (false, false) => tracing::warn!(
            interface = name,
            "takes no frames from XDP (on veth, GRO must be on at the other end): what leaves there is translated at tc"
        ),
    }
    Some(open)
}
