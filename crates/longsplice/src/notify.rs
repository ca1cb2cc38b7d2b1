//! Tells systemd that the daemon is ready, reloading or stopping, if systemd asks for it (`Type=notify`).

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// Sends one state, such as `READY=1`. The lack of a receiver is the usual case, and no error.
pub(crate) fn notify(state: &str) {
    if let Err(error) = send(state) {
        tracing::debug!(%error, state, "systemd was not told");
    }
}

/// Announces the beginning of a reload; `READY=1` announces its end, even if it failed.
pub(crate) fn notify_reloading() {
    let micros = longsplice_engine::monotonic() / 1000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

fn send(state: &str) -> io::Result<()> {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
