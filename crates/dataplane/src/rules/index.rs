//! Tells which entries of a set a packet may fit, by the values of single bytes of the packet. So a packet is compared
//! with hardly any other entry, however many there are.

use crate::skel::rule_types::{ls_rule, ls_rule_bits, ls_rule_byte as B};

/// Number of values of a byte.
const VALUES: usize = 256;

/// Returns the entries for each value of each byte: `ls_rules.bits` of bpf/rules_abi.h.
pub(super) fn bits(rules: &[ls_rule]) -> Vec<ls_rule_bits> {
    let mut all = vec![ls_rule_bits::default(); B::LS_B_COUNT.0 as usize * VALUES];
    for (place, bits) in all.iter_mut().enumerate() {
        let (byte, value) = (B((place / VALUES) as u32), (place % VALUES) as u8);
        for (n, rule) in rules.iter().enumerate() {
            if let Some(word) = bits.word.get_mut(n / 64)
                && may_fit(rule, byte, value)
            {
                *word |= 1 << (n % 64);
            }
        }
    }
    all
}

/// Returns whether a packet with this value of a byte may fit the entry.
fn may_fit(rule: &ls_rule, byte: B, value: u8) -> bool {
    match byte {
        B::LS_B_FLAGS => value & rule.flags_mask == rule.flags,
        B::LS_B_SPORT_HIGH => is_high_byte(value, rule.sport_min, rule.sport_max),
        B::LS_B_SPORT_LOW => is_low_byte(value, rule.sport_min, rule.sport_max),
        B::LS_B_DPORT_HIGH => is_high_byte(value, rule.dport_min, rule.dport_max),
        B::LS_B_DPORT_LOW => is_low_byte(value, rule.dport_min, rule.dport_max),
        B::LS_B_SADDR => is_last_byte(value, rule.saddr, rule.smask),
        B::LS_B_DADDR => is_last_byte(value, rule.daddr, rule.dmask),
        B::LS_B_IFINDEX => rule.ifindex == 0 || rule.ifindex.to_le_bytes()[0] == value,
        _ => true,
    }
}

/// Returns whether a port of this range may have this high byte.
fn is_high_byte(value: u8, min: u16, max: u16) -> bool {
    (min >> 8..=max >> 8).contains(&value.into())
}

/// Returns whether a port of this range may have this low byte.
fn is_low_byte(value: u8, min: u16, max: u16) -> bool {
    min >> 8 != max >> 8 || (min & 0xff..=max & 0xff).contains(&value.into())
}

/// Returns whether an address of this network may end with this byte. The halves are in network byte order.
fn is_last_byte(value: u8, address: [u64; 2], mask: [u64; 2]) -> bool {
    let [address, mask] = [address, mask].map(|[_, half]| half.to_ne_bytes()[7]);
    (value ^ address) & mask == 0
}
