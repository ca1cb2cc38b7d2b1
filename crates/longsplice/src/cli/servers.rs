//! Runs `servers`, `servers drain` and `servers ready` on a running daemon.

use std::process::ExitCode;

use super::{
    Failure,
    args::{Ask, Common, Server, Servers},
    ask::{answer, request},
    print,
};
use crate::{
    admin::{
        client::ClientError,
        servers::{Concerned, Which},
    },
    show,
    upstream::UpstreamStatus,
};

pub(super) fn servers(what: Option<Servers>, ask: &Ask, common: &Common) -> Result<ExitCode, Failure> {
    match what {
        None => list(ask, common),
        Some(_) if ask.json => Err(Failure::Usage("`--json` is for the list only".into())),
        Some(Servers::Drain(server)) => drain(&server, true, ask, common),
        Some(Servers::Ready(server)) => drain(&server, false, ask, common),
    }
}

fn list(ask: &Ask, common: &Common) -> Result<ExitCode, Failure> {
    let body = request("GET", "/servers", "", ask.admin.as_deref(), common)?;
    answer(ask, body, |upstreams: Vec<UpstreamStatus>| {
        show::upstreams(&upstreams)
    })
}

fn drain(server: &Server, drain: bool, ask: &Ask, common: &Common) -> Result<ExitCode, Failure> {
    // The name of a server contains no slash.
    let Some((upstream, name)) = server.name.rsplit_once('/') else {
        return Err(Failure::Usage(format!(
            "`{}` names no server: write UPSTREAM/SERVER (`longsplice servers` shows them)",
            server.name
        )));
    };
    let which = Which {
        upstream: upstream.to_owned(),
        server: name.to_owned(),
    };
    let body = serde_json::to_string(&which).map_err(Failure::runtime)?;
    let path = if drain { "/servers/drain" } else { "/servers/ready" };
    // `--admin` may stand before the subcommand, too.
    let place = server.admin.as_deref().or(ask.admin.as_deref());
    let answered = request("POST", path, &body, place, common)?;
    let concerned: Concerned =
        serde_json::from_str(&answered).map_err(|e| Failure::runtime(ClientError::Strange(e.to_string())))?;
    let subject = match concerned.servers {
        1 => format!("{} takes", server.name),
        n => format!("{} ({n} servers) takes", server.name),
    };
    print(&match drain {
        true => format!(
            "{subject} no new connections and requests; those under way go on (`longsplice servers` shows how many; `longsplice servers ready` ends it)\n"
        ),
        false => format!("{subject} connections and requests again\n"),
    })?;
    Ok(ExitCode::SUCCESS)
}
