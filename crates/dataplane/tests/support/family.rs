//! Selects the version of IP of a test binary's packets.

use longsplice_dataplane::Family;

/// Version of IP of all packets of a test binary: the same tables are compiled for both.
pub const FAMILY: Family = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"packets_v6" => Family::V6,
    _ => Family::V4,
};

/// Returns the first value for IPv4, and the second for IPv6.
pub const fn choose<T: Copy>(v4: T, v6: T) -> T {
    match FAMILY {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}
