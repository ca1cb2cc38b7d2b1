//! Names the points at which programs are attached, and the order of programs at one.

/// Point at which a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Sees packets of the peers.
    Ingress,
    /// Sees packets of our own sockets.
    Egress,
    /// Sees packets of the peers before there is an sk_buff: segments of detached flows (IP/FWD).
    Xdp,
}

/// Position of a program among those of its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Before the others: packets of our flows concern no other program.
    First,
    /// Behind the others.
    Last,
}
