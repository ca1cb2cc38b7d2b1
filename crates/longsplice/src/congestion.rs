//! Sets the configured congestion control of a leg.

use std::{
    collections::BTreeSet,
    io::{self, ErrorKind},
    os::fd::AsFd,
};

use longsplice_repair::options;
use parking_lot::Mutex;

/// Names that the kernel refused, and for which a warning was written. All come from configurations.
static REFUSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Sets the congestion control of a socket; `None` leaves the kernel's choice. Writes one warning for each name that
/// this kernel refuses; the connection goes on without it.
pub(crate) fn set(socket: impl AsFd, name: Option<&str>) -> io::Result<()> {
    let Some(name) = name else {
        return Ok(());
    };
    options::set_congestion_control(socket, name)
        .map_err(io::Error::from)
        .inspect_err(|error| note(name, error))
}

fn note(name: &str, error: &io::Error) {
    let remedy = match error.kind() {
        ErrorKind::NotFound => {
            "the kernel has none of this name: net.ipv4.tcp_available_congestion_control lists those loaded, `modprobe tcp_NAME` loads others"
        }
        ErrorKind::PermissionDenied => {
            "it needs CAP_NET_ADMIN, or the name in net.ipv4.tcp_allowed_congestion_control"
        }
        // The socket may have ended meanwhile.
        _ => return tracing::debug!(name, %error, "the congestion control could not be set"),
    };
    let is_first = REFUSED.lock().insert(name.to_owned());
    if is_first {
        tracing::warn!(%error, "no connection gets the congestion control `{name}`, and the kernel's own stays: {remedy}");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_name_is_set_and_an_unknown_one_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = options::congestion_control(&socket).unwrap();
        set(&socket, None).unwrap();
        let refused = set(&socket, Some("nosuchcontrol")).unwrap_err();
        assert!(matches!(
            refused.kind(),
            ErrorKind::NotFound | ErrorKind::PermissionDenied
        ));
        assert_eq!(options::congestion_control(&socket).unwrap(), before);
        set(&socket, Some("reno")).unwrap();
        assert_eq!(options::congestion_control(&socket).unwrap(), "reno");
    }
}
