//! The version of IP that a program's packets are of.

use longsplice_dataplane::Family;

/// The version of IP of all that a test binary sends: the same tables are compiled for both.
pub const FAMILY: Family = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"packets_v6" => Family::V6,
    _ => Family::V4,
};

/// What stands here for IPv4, and here for IPv6.
pub const fn choose<T: Copy>(v4: T, v6: T) -> T {
    match FAMILY {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}
