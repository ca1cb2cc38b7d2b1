//! Asks a running daemon: `flows`, `status`, `splice`, `unsplice`, `kill` and `reload`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use longsplice_engine::FlowId;
use serde::de::DeserializeOwned;

use super::{
    Failure,
    args::{Ask, Common, Connection},
    print,
};
use crate::{
    admin::{
        Listed, Places, Status,
        client::{self, ClientError},
    },
    instance::InstanceName,
    show,
};

pub(super) fn flows(ask: &Ask, common: &Common) -> Result<ExitCode, Failure> {
    let body = request("GET", "/flows", "", ask.admin.as_deref(), common)?;
    answer(ask, body, |flows: Vec<Listed>| show::flows(&flows))
}

pub(super) fn status(ask: &Ask, common: &Common) -> Result<ExitCode, Failure> {
    let body = request("GET", "/status", "", ask.admin.as_deref(), common)?;
    answer(ask, body, |status: Status| show::status(&status))
}

pub(super) fn splice(connection: &Connection, common: &Common) -> Result<ExitCode, Failure> {
    let done = "is spliced: new segments pass by the daemon, which delivers what it still has";
    change("splice", connection, done, common)
}

pub(super) fn unsplice(connection: &Connection, common: &Common) -> Result<ExitCode, Failure> {
    change("unsplice", connection, &unspliced(connection.id), common)
}

/// Tells what becomes of a connection that is taken back. The daemon does not say whether a session of HTTP has it.
fn unspliced(id: FlowId) -> String {
    format!(
        "comes back, and stays relayed; `longsplice splice {id}` splices it again (a reply of `protocol = \"http\"`: its \
         session relays the rest of it, and it is listed no more)"
    )
}

pub(super) fn kill(connection: &Connection, common: &Common) -> Result<ExitCode, Failure> {
    change("kill", connection, "ends: both its ends are reset", common)
}

/// Asks for a change of a connection, and tells what was done.
fn change(verb: &str, of: &Connection, done: &str, common: &Common) -> Result<ExitCode, Failure> {
    let path = format!("/flows/{}/{verb}", of.id);
    request("POST", &path, "", of.admin.as_deref(), common)?;
    print(&format!("flow {} {done}\n", of.id))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reload(admin: Option<&Path>, common: &Common) -> Result<ExitCode, Failure> {
    let body = request("POST", "/reload", "", admin, common)?;
    print(&show::reloaded(&parse(&body)?))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the daemon's answer: unchanged for programs, explained for users.
pub(super) fn answer<T: DeserializeOwned>(
    ask: &Ask,
    body: String,
    show: impl FnOnce(T) -> String,
) -> Result<ExitCode, Failure> {
    let text = if ask.json {
        body + "\n"
    } else {
        show(parse(&body)?)
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the daemon's answer.
fn parse<T: DeserializeOwned>(body: &str) -> Result<T, Failure> {
    serde_json::from_str(body).map_err(|e| Failure::runtime(ClientError::Strange(e.to_string())))
}

/// Sends a request to the daemon of the instance, and returns the body of the answer.
pub(super) fn request(
    method: &str,
    path: &str,
    body: &str,
    admin: Option<&Path>,
    common: &Common,
) -> Result<String, Failure> {
    let instance = common.instance.clone().unwrap_or_default();
    let places = Places::of_this_user();
    let asked = client::request(&places, &instance, admin, method, path, body);
    asked.map_err(|e| match e {
        ClientError::NotRunning { .. } => Failure::Runtime(format!("{e}\n{}", when_none_runs(&instance))),
        e => Failure::runtime(e),
    })
}

/// Returns a hint for the user: the flows of a daemon that has died are not gone.
fn when_none_runs(instance: &InstanceName) -> String {
    let named = match instance == &InstanceName::default() {
        true => String::new(),
        false => format!(" --instance {instance}"),
    };
    let start = format!("`longsplice run{named} --config FILE` or `longsplice forward{named} …`");
    let pins = PathBuf::from(format!("/sys/fs/bpf/longsplice-{instance}"));
    if pins.exists() {
        return format!(
            "Its predecessor's flows run on in the kernel ({}): a daemon started with {start} adopts them.",
            pins.display()
        );
    }
    format!(
        "Flows that it had spliced, if any, run on in the kernel, and the next daemon adopts them: start one with {start}.\n\
         `--instance NAME` asks another one."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_http_is_not_said_to_be_spliced_again() {
        let text = unspliced(FlowId(17));
        let (others, reply) = text.split_once("(a reply of `protocol = \"http\"`:").unwrap();
        assert!(others.contains("`longsplice splice 17`"), "{text}");
        assert!(
            reply.contains("relays the rest") && !reply.contains("splice 17"),
            "{text}"
        );
    }
}
