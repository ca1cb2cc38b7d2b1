//! Selects the versions of IP of a test binary's packets.

use longsplice_dataplane::{Family, Side};

/// Version of IP of each leg: the same tables are compiled for several.
const FAMILIES: [Family; 2] = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"packets_v6" | b"model_v6" => [Family::V6; 2],
    b"model_across" => [Family::V4, Family::V6],
    _ => [Family::V4; 2],
};

/// Version of IP of the client's leg: of all packets of most test binaries.
pub const FAMILY: Family = FAMILIES[0];

/// Returns the version of IP of a side's leg.
pub const fn family_of(side: Side) -> Family {
    FAMILIES[side as usize]
}

/// Returns true if the legs have different ones.
pub fn is_across() -> bool {
    FAMILIES[0] != FAMILIES[1]
}

/// Returns the first value for IPv4, and the second for IPv6.
pub const fn choose<T: Copy>(v4: T, v6: T) -> T {
    pick(FAMILY, v4, v6)
}

/// Returns the first value on a leg of IPv4, and the second on one of IPv6.
pub const fn choose_at<T: Copy>(side: Side, v4: T, v6: T) -> T {
    pick(family_of(side), v4, v6)
}

const fn pick<T: Copy>(family: Family, v4: T, v6: T) -> T {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}
