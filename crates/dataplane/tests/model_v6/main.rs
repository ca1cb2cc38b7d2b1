//! Runs the comparison of `model` once more, over IPv6: the support code looks at this binary's name.

#![allow(unreachable_pub)]

#[path = "../model/main.rs"]
mod model;

use model::{both, convert, expect, generate, support};
