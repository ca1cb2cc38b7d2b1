//! Runs the few tools that set up devices: `ip`, `ethtool`, `chrt`.

use std::process::{Command, Stdio};

use crate::Error;

/// Runs `prog` to its end.
///
/// # Errors
/// [`Error::Io`] when it cannot be started, [`Error::Tool`] when it reports a failure.
pub(crate) fn run(prog: &str, args: &[&str]) -> Result<(), Error> {
    let output = Command::new(prog)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io(format!("run {prog}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Tool {
        line: format!("{prog} {}", args.join(" ")),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Runs `ip` with the words of `line`: device names and addresses have no blanks in them.
pub(crate) fn ip(line: &str) -> Result<(), Error> {
    run("ip", &line.split_whitespace().collect::<Vec<_>>())
}
