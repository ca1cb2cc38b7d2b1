//! Switches forwarding on the loopback, in both families: route look-ups of the kernel half need it
//! (docs/decisions/0003). No other interface changes, and no packet is forwarded because of it.

use std::{fs, io, path::PathBuf};

use crate::error::Error;

const V4: &str = "/proc/sys/net/ipv4/conf/lo/forwarding";
const V6: &str = "/proc/sys/net/ipv6/conf/lo/forwarding";

/// Sysctl of each family, and its bit in the map `meta`.
const SYSCTLS: [(&str, u32); 2] = [(V4, 1), (V6, 2)];

/// List of the routes of IPv6.
const ROUTES: &str = "/proc/thread-self/net/ipv6_route";

/// `RTF_DEFAULT` and `RTF_ADDRCONF` (linux/ipv6_route.h): a router advertised the route.
const ADVERTISED: u32 = 0x0001_0000 | 0x0004_0000;

/// Returns the families for which it is on already, a bit for each.
pub(crate) fn found() -> u32 {
    let on = |path| fs::read_to_string(path).is_ok_and(|value| value.trim() == "1");
    SYSCTLS
        .iter()
        .filter(|(path, _)| on(path))
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// Switches it on if it is off; a machine without IPv6 has no such sysctl.
pub(crate) fn keep() -> Result<(), Error> {
    for (path, _) in SYSCTLS {
        let fail = |e| {
            let what = "which route look-ups need; set it from where /proc/sys can be written";
            Error::from_io(format!("cannot set {path} to 1, {what}"), e)
        };
        match fs::read_to_string(path) {
            Ok(value) if value.trim() == "1" => {}
            Ok(_) => {
                let _spared = (path == V6).then(Spared::routes);
                fs::write(path, "1").map_err(fail)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && path == V6 => {}
            Err(e) => return Err(fail(e)),
        }
    }
    Ok(())
}

/// Switches it off if it was off before.
pub(crate) fn restore(found: u32) {
    for (path, _) in SYSCTLS.iter().filter(|(_, bit)| found & bit == 0) {
        let _ = fs::write(path, "0");
    }
}

/// Keeps default routes that routers advertised, for as long as it lives. The kernel removes them all when forwarding is
/// switched on for any interface (`rt6_purge_dflt_routers`), and the host would be cut off until the next advertisement.
/// It spares those of an interface whose `accept_ra` is 2; without forwarding, that means the same as 1.
#[derive(Debug)]
struct Spared(Vec<(PathBuf, String)>);

impl Spared {
    fn routes() -> Spared {
        let routes = fs::read_to_string(ROUTES).unwrap_or_default();
        let accept = |device| PathBuf::from(format!("/proc/sys/net/ipv6/conf/{device}/accept_ra"));
        let set = |path: PathBuf| {
            let before = fs::read_to_string(&path).ok()?;
            fs::write(&path, "2").ok()?;
            Some((path, before))
        };
        Spared(
            advertised(&routes)
                .into_iter()
                .map(accept)
                .filter_map(set)
                .collect(),
        )
    }
}

impl Drop for Spared {
    fn drop(&mut self) {
        for (path, before) in self.0.drain(..).rev() {
            let _ = fs::write(path, before.trim());
        }
    }
}

/// Returns the devices of advertised default routes.
fn advertised(routes: &str) -> Vec<&str> {
    routes.lines().filter_map(advertised_on).collect()
}

/// Returns a line's device, if it is such a route. A line has destination, its length, source, its length, next hop,
/// metric, two counts, flags, device.
fn advertised_on(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[destination, length, .., flags, device] = words.as_slice() else {
        return None;
    };
    let default = length == "00" && destination.bytes().all(|b| b == b'0');
    let flags = u32::from_str_radix(flags, 16).ok()?;
    (default && flags & ADVERTISED != 0).then_some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_advertised_default_routes_are_spared() {
        const ANY: &str = "00000000000000000000000000000000";
        const NET: &str = "20010db8000000000000000000000000";
        const ROUTER: &str = "fe800000000000000000000000000001";
        let line = |to, length, flags, device| {
            format!("{to} {length} {ANY} 00 {ROUTER} 00000400 00000001 00000000 {flags} {device:>8}\n")
        };
        let routes = [
            line(ANY, "00", "00450003", "eth0"),
            line(ANY, "00", "00000003", "static"),
            line(NET, "40", "00440001", "prefix"),
            line(ANY, "00", "00200200", "lo"),
            line(ANY, "00", "00450003", "eth1.7"),
            "nonsense\n".to_owned(),
        ];
        assert_eq!(advertised(&routes.concat()), ["eth0", "eth1.7"]);
    }
}
