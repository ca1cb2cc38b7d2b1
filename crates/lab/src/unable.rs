//! Reports tests that cannot run on this machine.

use std::{env, fs::OpenOptions, io::Write, thread};

/// Name of the variable that names the file to which [`not_run`] appends a line for each test.
const FILE: &str = "LONGSPLICE_NOT_RUN";

/// Reports that the calling test could not be run on this machine, and `why`; the test then returns.
///
/// The harness of the standard library counts a test that returns as passed. So the report goes to the file that
/// `LONGSPLICE_NOT_RUN` names, and `scripts/test.sh` subtracts it from the tests that passed.
///
/// # Panics
///
/// Without that file: a check that was not made must not look like one that passed. Also if the file cannot be written.
pub fn not_run(why: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let Some(file) = env::var_os(FILE) else {
        panic!("{test} cannot be run here: {why} (name a file in {FILE} to have this counted as not run)");
    };
    let mut file = OpenOptions::new()
        .append(true)
        .open(&file)
        .unwrap_or_else(|e| panic!("{FILE}: {}: {e}", file.display()));
    // Use one write, because other tests append at the same time.
    file.write_all(format!("{test}: {why}\n").as_bytes())
        .unwrap_or_else(|e| panic!("{FILE}: {e}"));
    eprintln!("{test} is not run: {why}");
}
