//! Connections that are spliced and come back, end to end, as both ends see them, over links and hosts of all kinds.
//! One behaviour a file.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod accelerate;
mod accelerate_firewall;
mod accelerate_paths;
mod accelerate_semantics;
mod alike;
mod auto;
mod bare;
mod blind;
mod capture;
mod clsact;
mod cycles;
mod devices;
mod differential;
mod families;
mod firewall;
mod fragments;
mod half_close;
mod handshake;
mod interface_down;
mod interoperability;
mod ipv6;
mod kill_connect;
mod layered;
mod layouts;
mod library;
mod links;
mod local;
mod local_unsplice;
mod many_records;
mod options;
mod oracle;
mod other_server;
mod pmtu;
mod ports;
mod ports_again;
mod promises;
mod rate;
mod request_reply;
mod reset;
mod routes;
mod sigkill;
mod slots;
mod slow_reader;
mod splice_under_load;
mod spoilt;
mod steering;
mod stray;
mod syn;
mod tiny_buffers;
mod unsplice;
mod vanish;
mod withheld;
mod xdp;
