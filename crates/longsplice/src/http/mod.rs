//! HTTP in control mode: requests are read here, replies are spliced.

use crate::{
    client::Client,
    listener::{Service, Settings},
};

/// Serves a client's requests until its connection ends.
pub async fn serve(client: Client, settings: &Settings, service: &Service) {
    let _ = service;
    tracing::warn!(listener = settings.listener.name, peer = %client.peer, "protocol http is not in this version");
}
