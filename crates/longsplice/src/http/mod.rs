//! HTTP in control mode: requests are read here, replies are spliced.

use crate::{
    client::Client,
    listener::{Open, Settings},
};

/// Serves a client's requests until its connection ends; `settings` are those of its first request, later ones have those that
/// [`crate::listener::Service::settings`] answers then.
pub async fn serve(client: Client, settings: &Settings, open: &Open) {
    let _ = open;
    tracing::warn!(listener = settings.listener.name, peer = %client.peer, "protocol http is not in this version");
}
