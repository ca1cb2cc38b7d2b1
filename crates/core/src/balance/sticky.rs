//! Names servers in cookies.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Returns a name for a server of an upstream, in 16 hexadecimal digits: the same on every switch and after every
/// restart, as long as both names stay. It does not show the address, but it is no secret: a client that guesses the
/// names can compute it.
pub fn sticky_id(upstream: &str, server: &str) -> String {
    let mut hasher = SipHasher13::new_with_keys(1, 0);
    for part in [upstream, server] {
        // The lengths keep "ab" and "c" apart from "a" and "bc".
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part.as_bytes());
    }
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_apart_and_stay_the_same() {
        assert_eq!(sticky_id("web", "one"), sticky_id("web", "one"));
        assert_ne!(sticky_id("web", "one"), sticky_id("web", "two"));
        assert_ne!(sticky_id("web", "one"), sticky_id("we", "bone"));
        // The name must be the same on every machine and in every version, or sessions break at an upgrade.
        assert_eq!(sticky_id("web", "127.0.0.1:9001").len(), 16);
    }
}
