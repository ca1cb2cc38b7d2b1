//! Bytes of an Ethernet frame that the emulator reads or changes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of an Ethernet header without a VLAN tag; the laboratory uses none.
const HEADER: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];

/// Flips one bit of the packet in the frame, `bit` modulo the number of its bits. Returns false, and changes nothing,
/// for an ARP or empty packet: ARP has no checksum, so its receiver would accept the damage and the link would be dead
/// for a while.
pub(super) fn flip(frame: &mut [u8], bit: u64) -> bool {
    let Some((header, payload)) = frame.split_at_mut_checked(HEADER) else {
        return false;
    };
    if header[12..] == ETHERTYPE_ARP || payload.is_empty() {
        return false;
    }
    let bit = bit % (payload.len() as u64 * 8);
    payload[(bit / 8) as usize] ^= 1 << (bit % 8);
    true
}

/// Returns the destination of the IP packet in the frame; `None` for any other frame.
pub(super) fn destination(frame: &[u8]) -> Option<IpAddr> {
    let (header, packet) = frame.split_at_checked(HEADER)?;
    match [header[12], header[13]] {
        ETHERTYPE_IPV4 => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        ETHERTYPE_IPV6 => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// Addresses the frame to a device.
pub(super) fn address_to(frame: &mut [u8], mac: [u8; 6]) {
    if let Some(destination) = frame.first_chunk_mut() {
        *destination = mac;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_behind_the_ethernet_header_is_flipped() {
        for bit in [0, 7, 8, 799, 800, u64::MAX] {
            let mut frame = [0; HEADER + 100];
            assert!(flip(&mut frame, bit));
            assert!(frame[..HEADER].iter().all(|byte| *byte == 0));
            let ones: u32 = frame.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(ones, 1, "{bit}");
        }
        assert!(!flip(&mut [0; HEADER], 3), "nothing to change");
        let mut arp = [0; HEADER + 28];
        arp[12..14].copy_from_slice(&ETHERTYPE_ARP);
        assert!(!flip(&mut arp, 3) && arp[HEADER..].iter().all(|byte| *byte == 0));
        assert!(!flip(&mut [0; 3], 3));
    }

    #[test]
    fn destinations_are_those_of_ip_packets() {
        let mut frame = [0; HEADER + 40];
        assert_eq!(destination(&frame), None, "neither family");
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4);
        frame[HEADER + 16..HEADER + 20].copy_from_slice(&[198, 18, 0, 7]);
        assert_eq!(destination(&frame), "198.18.0.7".parse().ok());
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV6);
        frame[HEADER + 24..].copy_from_slice(&"2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(destination(&frame), "2001:db8::7".parse().ok());
        assert_eq!(destination(&frame[..HEADER + 39]), None, "cut off");
        assert_eq!(destination(&frame[..5]), None);
    }

    #[test]
    fn a_frame_is_addressed_in_its_first_bytes() {
        let mut frame = [0; HEADER];
        address_to(&mut frame, [1, 2, 3, 4, 5, 6]);
        assert_eq!(frame[..8], [1, 2, 3, 4, 5, 6, 0, 0]);
        address_to(&mut [0; 5], [1; 6]);
    }
}
