//! Guards addresses that an intercepting listener connects to only if they are named: services there take this host for
//! their owner.

use std::net::IpAddr;

use longsplice_engine::rules::Network;

/// Guarded networks: link-local ones (RFC 3927, RFC 4291 section 2.5.6), among them the metadata service of most
/// clouds, and metadata services at other addresses (Alibaba, Azure, Oracle; Google over IPv6). AWS has its services in
/// fd00:ec2::/32: its metadata are at ::254, the credentials of a pod at ::23.
const ON_THE_WIRE: [&str; 7] = [
    "169.254.0.0/16",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fe80::/10",
    "fd00:ec2::/32",
    "fd20:ce::254",
];

/// Guarded addresses of this host itself: no packet on the wire is addressed to them, but a PROXY header can name them.
const OF_THIS_HOST: [&str; 4] = ["0.0.0.0/8", "127.0.0.0/8", "::", "::1"];

fn networks(texts: &'static [&str]) -> impl Iterator<Item = Network> {
    texts.iter().filter_map(|text| text.parse().ok())
}

/// Returns the guarded networks that `to` covers without naming them; an empty `to` covers all.
pub(super) fn covered(to: &[Network]) -> Vec<Network> {
    networks(&ON_THE_WIRE)
        .filter(|guarded| to.is_empty() || to.iter().any(|to| to != guarded && to.contains_network(*guarded)))
        .collect()
}

/// Returns the networks of `to` that name a guarded network, or a part of one.
pub(super) fn named(to: &[Network]) -> Vec<Network> {
    let is_named = |to: &Network| networks(&ON_THE_WIRE).any(|guarded| guarded.contains_network(*to));
    to.iter().copied().filter(is_named).collect()
}

/// Returns whether an intercepted client's connection to this address is not forwarded; `to` are the networks that the
/// listener names.
pub(super) fn is_guarded(address: IpAddr, to: &[Network]) -> bool {
    let address = address.to_canonical();
    let mut guarded = networks(&ON_THE_WIRE).chain(networks(&OF_THIS_HOST));
    let is_named = |guarded: Network| {
        let mut naming = to.iter().filter(|to| guarded.contains_network(**to));
        naming.any(|to| to.contains(address))
    };
    guarded.any(|guarded| guarded.contains(address) && !is_named(guarded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_is_guarded() {
        assert_eq!(
            (networks(&ON_THE_WIRE).count(), networks(&OF_THIS_HOST).count()),
            (ON_THE_WIRE.len(), OF_THIS_HOST.len()),
            "each is a network"
        );
        let list = |texts: &[&str]| -> Vec<Network> { texts.iter().map(|t| t.parse().unwrap()).collect() };
        let guarded = |address: &str, to: &[&str]| is_guarded(address.parse().unwrap(), &list(to));
        for address in [
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.1.1",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "127.0.0.1",
            "::",
        ] {
            assert!(
                guarded(address, &[]) && guarded(address, &["0.0.0.0/0", "::/0"]),
                "{address}"
            );
        }
        assert!(!guarded("198.18.0.1", &[]) && !guarded("2001:db8::1", &[]));
        let one = &["0.0.0.0/0", "169.254.169.254"];
        assert!(!guarded("169.254.169.254", one) && guarded("169.254.169.253", one));
        assert_eq!(covered(&[]).len(), ON_THE_WIRE.len());
        assert_eq!(covered(&list(&["198.18.0.0/15"])), []);
        assert_eq!(
            covered(&list(&["168.0.0.0/8", "fe80::/10"])),
            list(&["168.63.129.16"])
        );
        assert_eq!(named(&list(one)), list(&["169.254.169.254"]));
        assert_eq!(
            named(&list(&["fe80::/10", "198.18.0.0/15"])),
            list(&["fe80::/10"])
        );
    }
}
