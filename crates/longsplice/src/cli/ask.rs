//! Asks a running daemon: `flows`, `status`, `splice`, `unsplice`, `kill` and `reload`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use longsplice_engine::FlowId;
use serde::de::DeserializeOwned;

use super::{
    Failure,
    args::{Ask, Common},
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

pub(super) fn splice(id: FlowId, admin: Option<&Path>, common: &Common) -> Result<ExitCode, Failure> {
    request("POST", &format!("/flows/{id}/splice"), "", admin, common)?;
    print(&format!(
        "flow {id} is spliced: new segments pass by the daemon, which delivers what it still has\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn unsplice(id: FlowId, admin: Option<&Path>, common: &Common) -> Result<ExitCode, Failure> {
    request("POST", &format!("/flows/{id}/unsplice"), "", admin, common)?;
    print(&format!(
        "flow {id} comes back to the relay, and stays there; `longsplice splice {id}` splices it again\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn kill(id: FlowId, admin: Option<&Path>, common: &Common) -> Result<ExitCode, Failure> {
    request("POST", &format!("/flows/{id}/kill"), "", admin, common)?;
    print(&format!("flow {id} ends: both its ends are reset\n"))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reload(admin: Option<&Path>, common: &Common) -> Result<ExitCode, Failure> {
    let body = request("POST", "/reload", "", admin, common)?;
    let strange = |e: serde_json::Error| Failure::runtime(ClientError::Strange(e.to_string()));
    print(&show::reloaded(&serde_json::from_str(&body).map_err(strange)?))?;
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
        show(serde_json::from_str(&body).map_err(|e| Failure::runtime(ClientError::Strange(e.to_string())))?)
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
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
