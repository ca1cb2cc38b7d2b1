//! Daemon under test: started in a namespace, queried, killed, restarted, and removed without a trace.

mod requests;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use longsplice_lab::{Namespace, Process};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{Config, SOON, Status, binary, eventually, patient};

/// Number of lines of the log that a failed test shows.
const LOG_LINES: usize = 60;

/// End of a program that was to fail.
#[derive(Debug)]
pub struct Exit {
    /// Its exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Its standard error.
    pub says: String,
}

/// Daemon with an instance name of its own. Dropping it kills it and removes its pins; in a failed test, the drop
/// prints the daemon's log.
#[derive(Debug)]
pub struct Daemon {
    instance: String,
    dir: TempDir,
    /// Words to run: a program before the daemon, if any, and the daemon's own words.
    prefix: Vec<String>,
    args: Vec<String>,
    process: Option<Process>,
    /// Processes that a successor has replaced, and that may still finish their connections.
    replaced: Vec<Process>,
    binary: PathBuf,
    starts: u32,
    guest: bool,
}

impl Daemon {
    /// Creates a daemon that is not started yet, with the words of its command line but for `--instance` and
    /// `--admin`.
    pub fn new(args: &[&str]) -> Daemon {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        Daemon {
            instance: format!("test-{}-{count}", std::process::id()),
            dir: tempfile::Builder::new()
                .prefix("longsplice-test-")
                .tempdir()
                .unwrap(),
            prefix: Vec::new(),
            args: args.iter().map(|s| (*s).to_owned()).collect(),
            process: None,
            replaced: Vec::new(),
            binary: binary::path().to_owned(),
            starts: 0,
            guest: false,
        }
    }

    /// Creates a daemon with this configuration, not started yet.
    pub fn of(config: &Config) -> Daemon {
        let mut daemon = Daemon::new(&[]);
        let file = config.write(daemon.dir.path());
        daemon.args = vec!["run".into(), "--config".into(), file.display().to_string()];
        daemon
    }

    /// Starts it through another program, such as `setpriv`.
    #[must_use]
    pub fn under(mut self, prefix: &[&str]) -> Daemon {
        self.prefix = prefix.iter().map(|s| (*s).to_owned()).collect();
        self
    }

    /// Gives it the name of another daemon, whose pins it then leaves alone.
    pub fn call_itself(&mut self, instance: &str) {
        self.instance = instance.to_owned();
        self.guest = true;
    }

    /// Adds words to its command line, from its next start on.
    pub fn add_args(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(|s| (*s).to_owned()));
    }

    /// Returns the folder of its configuration, log and admin socket.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the name of the instance.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns the folder of its pins, if it has any.
    pub fn pins(&self) -> PathBuf {
        Path::new("/sys/fs/bpf").join(format!("longsplice-{}", self.instance))
    }

    /// Returns the folders of the pins of all its generations.
    pub fn generations(&self) -> Vec<PathBuf> {
        let name = format!("longsplice-{}", self.instance);
        let is_its = |path: &PathBuf| {
            let rest = path
                .file_name()
                .and_then(|n| n.to_str())
                .and_then(|n| n.strip_prefix(&name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', '~']))
        };
        let entries = fs::read_dir("/sys/fs/bpf").into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(is_its).collect()
    }

    /// Starts it in `namespace` and waits until it serves.
    pub fn start(&mut self, namespace: &Namespace) {
        self.spawn(namespace);
        eventually("the daemon to serve", SOON, || {
            let running = self.process().is_running();
            assert!(running, "the daemon ended at once:\n{}", self.log());
            self.get("/status").is_some().then_some(())
        });
    }

    /// Starts it in conditions under which it cannot serve, and waits for its end.
    pub fn start_in_vain(&mut self, namespace: &Namespace) -> Exit {
        self.spawn(namespace);
        let status = self.process().wait(patient(SOON)).unwrap().expect("it ends");
        let says = self.log();
        self.process = None;
        Exit {
            code: status.code(),
            says,
        }
    }

    /// Starts a successor that replaces it, and waits until that serves.
    pub fn replace(&mut self, namespace: &Namespace) {
        let successor = self.begin_replace(namespace);
        self.replaced_by(successor);
    }

    /// Starts a successor that replaces it.
    pub fn begin_replace(&mut self, namespace: &Namespace) -> Process {
        let old = self.process.take();
        self.spawn_with(namespace, &["--replace"]);
        std::mem::replace(&mut self.process, old).expect("it was started")
    }

    /// Waits until this successor serves.
    pub fn replaced_by(&mut self, successor: Process) {
        let old = self.process.replace(successor).expect("it runs");
        let before = old.pid();
        self.replaced.push(old);
        eventually("the successor to serve", SOON, || {
            let running = self.process().is_running();
            assert!(running, "the successor ended at once:\n{}", self.log());
            // The old process may end with a request that it has accepted.
            let pid = self.answer::<Status>("/status")?.pid;
            assert!(
                pid == before || pid == self.pid(),
                "another process serves: {pid}"
            );
            (pid == self.pid()).then_some(())
        });
    }

    /// Starts a successor that cannot serve, waits for its end, and leaves this process in its place.
    pub fn replace_in_vain(&mut self, namespace: &Namespace, hurry: impl FnOnce(&Daemon)) -> Exit {
        let old = self.process.take();
        self.spawn_with(namespace, &["--replace"]);
        hurry(self);
        let status = self.process().wait(patient(SOON)).unwrap().expect("it ends");
        let exit = Exit {
            code: status.code(),
            says: self.log(),
        };
        self.process = old;
        exit
    }

    /// Kills the processes that were replaced, with SIGKILL.
    pub fn kill_replaced(&mut self) {
        self.replaced.clear();
    }

    /// Waits until the processes that were replaced have ended, and returns their exit codes.
    pub fn join_replaced(&mut self) -> Vec<Option<i32>> {
        let end = |process: Process| process.wait(patient(SOON)).unwrap().expect("it ends").code();
        self.replaced.drain(..).map(end).collect()
    }

    /// Runs another build of the daemon, from its next start on.
    pub fn use_binary(&mut self, binary: &Path) {
        self.binary = binary.to_owned();
    }

    /// Starts it and kills it as soon as `condition` holds; it must hold before the daemon serves for long.
    pub fn start_until(&mut self, namespace: &Namespace, condition: impl Fn(&Daemon) -> bool) {
        self.spawn(namespace);
        let limit = std::time::Instant::now() + patient(SOON);
        // Look without a pause: the moment is short.
        while !condition(self) {
            assert!(
                std::time::Instant::now() < limit,
                "waited in vain:\n{}",
                self.log()
            );
        }
        self.kill();
    }

    fn spawn(&mut self, namespace: &Namespace) {
        assert!(self.process.is_none(), "it runs already");
        self.spawn_with(namespace, &[]);
    }

    fn spawn_with(&mut self, namespace: &Namespace, more: &[&str]) {
        self.starts += 1;
        let mut words = self.prefix.clone();
        words.push(self.binary.display().to_string());
        words.extend(self.args.clone());
        words.extend(more.iter().map(|s| (*s).to_owned()));
        let command = namespace
            .command(&words[0])
            .args(&words[1..])
            .args(["--instance", &self.instance, "-v", "--admin"])
            .arg(self.admin())
            .log_to(self.log_path(self.starts))
            .unwrap();
        self.process = Some(command.spawn().unwrap());
    }

    fn admin(&self) -> PathBuf {
        self.dir().join("admin.sock")
    }

    fn log_path(&self, start: u32) -> PathBuf {
        self.dir().join(format!("log-{start}"))
    }

    fn log_of(&self, start: u32) -> String {
        fs::read_to_string(self.log_path(start)).unwrap_or_default()
    }

    /// Returns its log since its last start.
    pub fn log(&self) -> String {
        self.log_of(self.starts)
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it was started")
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Returns a size of its process's memory, in KiB, by the name that it has in `/proc/PID/status`.
    pub fn memory_kib(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let prefix = format!("{name}:");
        let size = status.lines().find_map(|line| line.strip_prefix(&prefix));
        let size = size.unwrap_or_else(|| panic!("no {name} in {status}"));
        size.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Writes another configuration, for its next start or reload.
    pub fn reconfigure(&self, config: &Config) {
        config.write(self.dir.path());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process().kill(signal).unwrap();
    }

    /// Ends it at once, with SIGKILL.
    pub fn kill(&mut self) {
        // The guard kills the process and waits for it.
        drop(self.process.take());
    }

    /// Sends SIGTERM, and does not wait.
    pub fn terminate(&self) {
        self.process().kill(Signal::TERM).unwrap();
    }

    /// Waits for its end after [`Daemon::terminate`], and returns its exit code.
    pub fn join(&mut self) -> Option<i32> {
        let status = self.process().wait(patient(SOON)).unwrap().expect("it ends");
        self.process = None;
        status.code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            self.show();
        }
        drop(self.process.take());
        self.replaced.clear();
        if !self.guest {
            remove_pins(&self.pins());
            for dir in self.generations() {
                remove_pins(&dir);
            }
            // A killed daemon leaves its lock file. (A daemon ignores a lock whose file has lost its name.)
            let lock = format!("{}.lock", self.instance);
            let _ = fs::remove_file(Path::new("/run/longsplice").join(lock));
        }
    }
}

impl Daemon {
    fn show(&self) {
        // The latest failure may still be on its way to the log.
        thread::sleep(Duration::from_millis(300));
        for start in 1..=self.starts {
            let log = self.log_of(start);
            // The loader logs much, none of which is about connections.
            let lines: Vec<&str> = log.lines().filter(|l| !l.contains(" libbpf: ")).collect();
            eprintln!(
                "--- start {start} of the daemon logged {} lines, first those above DEBUG, then the last:",
                lines.len()
            );
            let (earlier, last) = lines.split_at(lines.len().saturating_sub(LOG_LINES));
            let about_all = earlier.iter().filter(|line| !line.contains(" DEBUG "));
            for line in about_all.take(LOG_LINES).chain(last) {
                eprintln!("{line}");
            }
        }
        for path in ["/status", "/flows"] {
            let answer = self.get(path).unwrap_or_else(|| "no answer".into());
            eprintln!("--- {path}: {answer}");
        }
    }
}

/// Removes the pins, links before maps, as the daemon itself does.
pub(crate) fn remove_pins(root: &Path) {
    for dir in [root.join("links"), root.to_owned()] {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        let _ = fs::remove_dir(&dir);
    }
}
