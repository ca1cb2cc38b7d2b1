//! Runs `check --explain`: tells which route a request would take.

mod request;

use std::process::ExitCode;

use longsplice_core::route::{Action, Facts};

use self::request::Asked;
use super::{Failure, args::Check, complain, print};
use crate::{
    config::{self, Config, ListenerConfig, Protocol},
    http::{admit, ends_here},
    show::{self, Destination, Explained},
};

pub(super) fn explain(request: &str, args: &Check) -> Result<ExitCode, Failure> {
    let [file] = args.files.as_slice() else {
        return Err(Failure::usage(
            "--explain asks one file: name the one that the request is for",
        ));
    };
    let config = match config::load(file) {
        Ok(config) => config,
        Err(e) => {
            complain(&e.to_string());
            return Ok(ExitCode::from(2));
        }
    };
    let asked = Asked::read(request, &args.header).map_err(Failure::Usage)?;
    let listener = listener(&config, &asked, args.listener.as_deref()).map_err(Failure::Usage)?;
    let explained = explained(&config, listener, &asked, args).map_err(Failure::Usage)?;
    let text = if args.json {
        serde_json::to_string_pretty(&explained).map_err(Failure::runtime)? + "\n"
    } else {
        show::explained(&explained)
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the listener that the request arrives at.
fn listener<'c>(config: &'c Config, asked: &Asked, name: Option<&str>) -> Result<&'c ListenerConfig, String> {
    let all = &config.listeners;
    if let Some(name) = name {
        let known = || all.iter().map(|l| l.name.as_str()).collect::<Vec<_>>().join(", ");
        let named = all.iter().find(|l| l.name == name);
        return named.ok_or_else(|| format!("there is no listener `{name}`; there are: {}", known()));
    }
    if let [only] = all.as_slice() {
        return Ok(only);
    }
    let fits: Vec<_> = all.iter().filter(|l| listens_for(l, asked)).collect();
    match fits.as_slice() {
        [only] => Ok(only),
        [] => Err(format!(
            "no listener has the port of {}: say which is meant, with --listener {}",
            asked.url(),
            names(all.iter())
        )),
        several => Err(format!(
            "{} listeners could be meant by {}: say which, with --listener {}",
            several.len(),
            asked.url(),
            names(several.iter().copied())
        )),
    }
}

fn names<'c>(all: impl Iterator<Item = &'c ListenerConfig>) -> String {
    let quoted = |l: &ListenerConfig| match l.name.contains(|c: char| c.is_whitespace() || c == '\'') {
        true => format!("{:?}", l.name),
        false => l.name.clone(),
    };
    all.map(quoted).collect::<Vec<_>>().join(" or ")
}

/// Returns whether the URL could lead to this listener.
fn listens_for(listener: &ListenerConfig, asked: &Asked) -> bool {
    let here = |at: &std::net::SocketAddr| {
        let address = asked.address();
        at.port() == asked.port()
            && (at.ip().is_unspecified() || address.is_none_or(|address| address == at.ip()))
    };
    let taken = |intercept: &config::InterceptConfig| {
        intercept.ports.is_empty()
            || intercept
                .ports
                .iter()
                .any(|p| (p.min()..=p.max()).contains(&asked.port()))
    };
    listener.listen.iter().any(here) || listener.intercept.as_ref().is_some_and(taken)
}

fn explained(
    config: &Config,
    listener: &ListenerConfig,
    asked: &Asked,
    args: &Check,
) -> Result<Explained, String> {
    let reads_http = listener.protocol == Protocol::Http;
    let reads_tls = listener.protocol == Protocol::Tls || listener.tls.is_some();
    if !reads_tls && (args.sni.is_some() || !args.alpn.is_empty()) {
        return Err(format!(
            "listener {} reads no TLS: leave --sni and --alpn out",
            listener.name
        ));
    }
    let mut head = reads_http.then(|| asked.head()).transpose()?;
    // Admit the head first, in the order of a session.
    let admitted = head.as_mut().map(|head| admit(&listener.http, head)).transpose();
    let mut facts = match &head {
        Some(head) => Facts::of_request(args.client, head),
        None => Facts::of_client(args.client),
    };
    let alpn: Vec<Vec<u8>> = args.alpn.iter().map(|p| p.clone().into_bytes()).collect();
    if reads_tls {
        facts.sni = args.sni.as_deref().or(asked.name_for_sni());
        facts.alpn = &alpn;
    }
    let mut explained = Explained {
        listener: listener.name.clone(),
        protocol: listener.protocol,
        seen: show::Seen::of(&facts),
        read_as: None,
        refused: None,
        route: None,
        routes: Vec::new(),
        destination: Destination::Status(400),
    };
    let other_paths = match admitted {
        Ok(paths) => paths.unwrap_or_default(),
        Err(why) => {
            explained.refused = Some(why.to_string());
            return Ok(explained);
        }
    };
    facts.other_paths = &other_paths;
    let explanation = listener.routes.explain(&facts);
    let read_as = listener.routes.reading(&facts).path;
    explained.read_as = read_as.filter(|path| facts.path != Some(path)).map(str::to_owned);
    let won = explanation.winner.and_then(|n| listener.routes.routes().get(n));
    explained.route = won.map(|route| route.name.clone());
    explained.routes = explanation.routes;
    let last_hop = head.as_ref().and_then(ends_here);
    explained.destination = match (won.map(|route| &route.action), last_hop) {
        (Some(Action::Status(status)), _) => Destination::Status(*status),
        (Some(Action::Redirect(to)), _) => Destination::Redirect(match &head {
            Some(head) => to.location(&head.target()),
            None => to.to_string(),
        }),
        (_, Some(status)) => Destination::Status(status),
        (Some(Action::Upstream(name)), _) => upstream(config, name),
        (Some(Action::Original), _) => Destination::Original,
        (None, _) => otherwise(config, listener),
    };
    Ok(explained)
}

/// Returns the destination of requests that no route takes.
fn otherwise(config: &Config, listener: &ListenerConfig) -> Destination {
    match &listener.upstream {
        Some(name) => upstream(config, name),
        None if listener.to.is_empty() => Destination::Original,
        None => Destination::Targets(listener.to.iter().map(ToString::to_string).collect()),
    }
}

fn upstream(config: &Config, name: &str) -> Destination {
    let found = config.upstreams.iter().find(|u| u.name == name);
    Destination::Upstream {
        name: name.to_owned(),
        balance: found.map(|u| u.balance.to_string()).unwrap_or_default(),
        servers: found.map_or(Vec::new(), |u| u.servers.iter().map(show::Place::of).collect()),
    }
}
