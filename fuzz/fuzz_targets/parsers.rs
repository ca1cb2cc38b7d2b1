//! Texts of others that core parses: policies and rules of the configuration, and reserved ports of the kernel.
#![no_main]

use longsplice_core::{
    policy::{DetachPolicy, SplicePolicy, parse_bytes, parse_duration},
    ports::ReservedPorts,
    rules::{Flags, Network, Ports},
};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = parse_duration(text);
    let _ = parse_bytes(text);
    // A parsed value must survive a round trip through text.
    if let Ok(policy) = text.parse::<SplicePolicy>() {
        assert_eq!(policy.to_string().parse().ok(), Some(policy), "{text:?}");
    }
    if let Ok(policy) = text.parse::<DetachPolicy>() {
        assert_eq!(policy.to_string().parse().ok(), Some(policy), "{text:?}");
    }
    if let Ok(network) = text.parse::<Network>() {
        assert_eq!(network.to_string().parse().ok(), Some(network), "{text:?}");
    }
    if let Ok(ports) = text.parse::<Ports>() {
        assert_eq!(ports.to_string().parse().ok(), Some(ports), "{text:?}");
    }
    if let Ok(flags) = text.parse::<Flags>() {
        assert_eq!(flags.to_string().parse().ok(), Some(flags), "{text:?}");
    }
    if let Ok(ports) = text.parse::<ReservedPorts>() {
        assert_eq!(ports.to_string().parse().ok(), Some(ports), "{text:?}");
    }
});
