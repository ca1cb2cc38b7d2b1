//! Runs active checks: a task for each server connects at an interval, and may send an HTTP request.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use longsplice_core::proxy_protocol::{Header, Version};
use longsplice_engine::connect_plainly;
use longsplice_repair::options::set_reset_on_close;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time,
};
use tokio_util::task::AbortOnDropHandle;

use super::server::{Server, ServerId};
use crate::{
    config::{HealthConfig, Probe, Statuses, UpstreamConfig},
    resources::Resources,
};

/// Limits the bytes that are read of a reply: a status line and its fields are shorter.
const LONGEST_HEAD: usize = 16 << 10;
const MOST_FIELDS: usize = 128;

/// Running checks of an upstream's servers.
#[derive(Debug, Default)]
pub(super) struct Checks {
    running: HashMap<ServerId, (Settings, AbortOnDropHandle<()>)>,
}

/// Settings that a running check was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    health: HealthConfig,
    /// Version of the header that precedes a check, as it precedes a client's bytes.
    send_proxy: Option<Version>,
}

impl Checks {
    /// Checks exactly these servers from now on, as the configuration says. A check with the same settings goes on;
    /// all others stop.
    pub(super) fn configure<'a>(
        &mut self,
        config: &UpstreamConfig,
        servers: impl Iterator<Item = &'a Arc<Server>>,
        report: impl Fn(&Server, Result<(), String>) + Clone + Send + 'static,
    ) {
        let mut before = std::mem::take(&mut self.running);
        let Some(health) = &config.health else { return };
        let settings = Settings {
            health: health.clone(),
            send_proxy: config.send_proxy,
        };
        self.running.extend(servers.map(|server| {
            let running = before.remove(&server.id()).filter(|(by, _)| *by == settings);
            let check = running.unwrap_or_else(|| {
                let task = watch(server, &settings, report.clone());
                (settings.clone(), task)
            });
            (server.id(), check)
        }));
    }
}

/// Checks a server until the returned task is dropped, and reports each result.
fn watch(
    server: &Arc<Server>,
    settings: &Settings,
    report: impl Fn(&Server, Result<(), String>) + Send + 'static,
) -> AbortOnDropHandle<()> {
    let (server, health) = (Arc::clone(server), settings.health.clone());
    // The proxy makes this connection for itself: the header names no client.
    let header = settings
        .send_proxy
        .map(|version| Header::new(version, None).write());
    let header = header.unwrap_or_default();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            // Wait for a descriptor outside the timeout: a lack of descriptors is no fault of the server.
            let descriptor = Resources::of_this_process().upkeep(1).await;
            let checked = time::timeout(health.timeout, probe(&server, &health.probe, &header)).await;
            let result = checked.unwrap_or_else(|_| Err(format!("nothing came within {:?}", health.timeout)));
            drop(descriptor);
            report(&server, result);
            time::sleep(jittered(health.interval)).await;
        }
    }))
}

/// Returns 0.9 to 1.1 times the interval, so that the checks of several servers and proxies do not stay in step.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}

async fn probe(server: &Server, probe: &Probe, header: &[u8]) -> Result<(), String> {
    let address = server.address();
    let connected = connect_plainly(address).await;
    let mut stream = connected.map_err(|error| format!("cannot connect: {error}"))?;
    let broken = |error: io::Error| format!("the connection broke: {error}");
    stream.write_all(header).await.map_err(broken)?;
    let Probe::Http { path, host, status } = probe else {
        // Close with a FIN instead of a reset: nothing was sent that the server has to answer.
        let _ = set_reset_on_close(&stream, false);
        return Ok(());
    };
    let host = host.clone().unwrap_or_else(|| address.to_string());
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: longsplice-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let code = read_status(&mut stream).await?;
    let _ = set_reset_on_close(&stream, false);
    judge(code, status)
}

fn judge(code: u16, good: &Statuses) -> Result<(), String> {
    match good.contains(code) {
        true => Ok(()),
        false => Err(format!("its status is {code}, not one of {good}")),
    }
}

/// Reads replies until a final one; 1xx replies may come before it (RFC 9110 section 15.2).
async fn read_status(stream: &mut TcpStream) -> Result<u16, String> {
    let mut head = Vec::with_capacity(1024);
    loop {
        match final_status(&head) {
            Ok(Some(code)) => return Ok(code),
            Ok(None) if head.len() >= LONGEST_HEAD => return Err("the head of its reply is too long".into()),
            Ok(None) => {}
            Err(error) => return Err(format!("what it sent is no reply: {error}")),
        }
        let read = stream.read_buf(&mut head).await;
        if read.map_err(|error| format!("the connection broke: {error}"))? == 0 {
            return Err("it closed the connection without a reply".into());
        }
    }
}

/// Returns the status of the first final reply, or `None` if its head is incomplete.
fn final_status(mut bytes: &[u8]) -> Result<Option<u16>, httparse::Error> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut reply = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(length) = reply.parse(bytes)? else {
            return Ok(None);
        };
        match reply.code {
            Some(code) if code < 200 => bytes = bytes.get(length..).unwrap_or_default(),
            code => return Ok(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_reply_counts_however_it_is_cut() {
        let reply =
            b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.0 204 No Content\r\nA: b\r\n\r\nrest";
        let end = reply.len() - 4;
        for cut in 0..reply.len() {
            let expected = (cut >= end).then_some(204);
            assert_eq!(final_status(&reply[..cut]), Ok(expected), "{cut}");
        }
        assert!(final_status(b"SSH-2.0-OpenSSH\r\n").is_err());
    }

    #[test]
    fn jitter_stays_near() {
        let interval = Duration::from_secs(10);
        for _ in 0..1000 {
            let one = jittered(interval);
            assert!((9.0..=11.0).contains(&one.as_secs_f64()), "{one:?}");
        }
    }
}
