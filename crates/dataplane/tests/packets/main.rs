//! Runs tables of packets through the tc programs, and compares every byte. One file for each behavior. Needs root; each
//! test is in a network namespace of its own and leaves no pin behind.

// The modules of one test binary share items by `pub`.
#![allow(unreachable_pub)]

#[allow(dead_code)] // not every binary uses everything
#[path = "../support/mod.rs"]
pub(crate) mod support;

mod adoption;
mod alone;
mod bad_input;
mod checksums;
mod demote;
mod drain;
mod ending;
mod exits;
mod extensions;
mod families;
mod fin;
mod forged;
mod fragments;
mod freeze;
mod icmp;
mod identity;
mod inject;
mod inspect;
mod limits;
mod lists;
mod mapped;
mod moves;
mod options;
mod order;
mod parked;
mod rate;
mod routes;
mod signals;
mod spoilt;
mod stack;
mod super_packets;
mod table;
mod through;
mod too_big;
mod track;
mod translation;
mod trap_in_drain;
mod traps;
mod undrain;
mod vlan;
mod wake;
mod windows;
mod wire;
mod withhold;
mod xdp;
mod xdp_links;
