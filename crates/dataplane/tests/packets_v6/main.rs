//! Runs the tables of `packets` once more, over IPv6: the support code looks at this binary's name.

#![allow(unreachable_pub)]

#[path = "../packets/main.rs"]
mod packets;

use packets::support;
