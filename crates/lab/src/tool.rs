//! Runs the few tools that set up devices: `ip`, `tc`, `ethtool`, `chrt`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::Error;

/// Runs `prog` to its end. Fails with [`Error::Io`] if it cannot be started, [`Error::Tool`] if it reports a failure.
pub(crate) fn run(prog: &str, args: &[&str]) -> Result<(), Error> {
    let output = Command::new(prog)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(format!("run {prog}")))?;
    succeeded(prog, args, &output)
}

/// Runs `ip` with the words of `line`: device names and addresses have no blanks in them.
pub(crate) fn ip(line: &str) -> Result<(), Error> {
    run("ip", &line.split_whitespace().collect::<Vec<_>>())
}

/// Runs `ip` once for all `lines`, each one without its first word. `options` stand before them: a namespace, a family.
pub(crate) fn ip_batch(options: &[&str], lines: &[String]) -> Result<(), Error> {
    if lines.is_empty() {
        return Ok(());
    }
    let args = [options, &["-batch", "-"]].concat();
    let failed = || Error::io("run ip");
    let mut child = Command::new("ip")
        .args(&args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed())?;
    if let Some(mut input) = child.stdin.take() {
        // A write fails only if `ip` has ended already, and its status and output say why.
        let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
    }
    let output = child.wait_with_output().map_err(failed())?;
    succeeded("ip", &args, &output)
}

/// Switches off offloads of a device.
pub(crate) fn switch_off(namespace: &str, device: &str, offloads: &[&str]) -> Result<(), Error> {
    let mut args = vec!["netns", "exec", namespace, "ethtool", "-K", device];
    args.extend(offloads.iter().flat_map(|offload| [*offload, "off"]));
    run("ip", &args)
}

/// Returns the failure that a program reports.
fn succeeded(prog: &str, args: &[&str], output: &Output) -> Result<(), Error> {
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Tool {
        line: format!("{prog} {}", args.join(" ")),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
