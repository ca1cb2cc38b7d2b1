//! Verified traffic: connections that send a pattern of their own in both directions, at once or by turns, and whose
//! every byte is checked on arrival.
//!
//! A client begins each stream with a small header that describes the connection; the server does its part of it.
//! When both are in this process, as in tests, the outcome holds the reports of both.

mod board;
mod end;
mod exchange;
mod gaps;
mod header;
mod outcome;
mod pace;
mod progress;
mod receive;
mod send;
mod server;
mod side;
mod spec;
mod tcp_info;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit, setrlimit};

pub use exchange::{ExchangeTime, Exchanges};
pub use gaps::LONG_GAP;
pub use outcome::{ConnectionOutcome, EndReport, Failure, Gap, Outcome};
pub use server::TrafficServer;
pub use spec::{Close, ConnectionSpec, Pause, TrafficSpec, Transfer};

use crate::random::mix;
use crate::{Error, Namespace, monotonic_ns};
use end::STACK;
use side::Side;
use spec::Job;

/// Time for which a client waits for the server's report on a connection that no server has read a header of.
const GRACE: Duration = Duration::from_secs(1);

/// Client's end of verified traffic.
#[derive(Debug)]
pub struct Traffic;

impl Traffic {
    /// Runs the connections from `namespace` to `to`, and waits for all to end. They must arrive, possibly through a
    /// forwarder, at a [`TrafficServer`] of this process.
    ///
    /// # Errors
    /// [`Error::Io`] when the namespace cannot be entered. A failed connection is no error of this function: see
    /// [`Outcome::failures`].
    pub fn run(namespace: &Namespace, to: SocketAddr, spec: &TrafficSpec) -> Result<Outcome, Error> {
        let jobs = jobs(spec);
        let mut outcome = namespace.run(|| drive(to, &jobs, spec))?;
        let ended = Instant::now();
        for (job, connection) in jobs.iter().zip(&mut outcome.connections) {
            let silent = || EndReport {
                failure: Some(Failure::Silent),
                ..EndReport::default()
            };
            // The server notices a lost connection only after a stall of its own.
            let patience = job.spec.stall * 2;
            connection.server = Some(board::take(job.id, ended, patience, GRACE).unwrap_or_else(silent));
        }
        Ok(outcome)
    }

    /// Runs the connections from the namespace of the calling thread to a server in any process.
    pub fn drive(to: SocketAddr, spec: &TrafficSpec) -> Outcome {
        drive(to, &jobs(spec), spec)
    }
}

fn jobs(spec: &TrafficSpec) -> Vec<Job> {
    let job = |(number, spec_of_one): (usize, &ConnectionSpec)| Job {
        id: board::new_id(),
        seed: mix(spec.seed ^ mix(number as u64)),
        spec: spec_of_one.clone().settled(),
    };
    spec.connections.iter().enumerate().map(job).collect()
}

/// Runs the clients' ends of `jobs`, which were made from `spec`.
fn drive(to: SocketAddr, jobs: &[Job], spec: &TrafficSpec) -> Outcome {
    raise_file_limit();
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(vec![ConnectionOutcome::default(); jobs.len()]);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else { return };
            let outcome = connect_and_run(to, job);
            outcomes.lock()[number] = outcome;
        }
    };
    thread::scope(|scope| {
        // This thread is one of the clients.
        for _ in 1..spec.parallel.min(jobs.len()) {
            let thread = thread::Builder::new().name("lab-client".into()).stack_size(STACK);
            if thread.spawn_scoped(scope, work).is_err() {
                // Run fewer connections at a time.
                break;
            }
        }
        work();
    });
    Outcome {
        seed: spec.seed,
        connections: outcomes.into_inner(),
        duration_us: start.elapsed().as_micros() as u64,
    }
}

fn connect_and_run(to: SocketAddr, job: &Job) -> ConnectionOutcome {
    let began_ns = monotonic_ns();
    let connected = connect(to, job);
    let connect_us = (monotonic_ns() - began_ns) / 1000;
    let client = match connected {
        Ok(stream) => end::run(&stream, Side::Client, job),
        Err(error) => EndReport {
            failure: Some(Failure::Connect(error.to_string())),
            ..EndReport::default()
        },
    };
    ConnectionOutcome {
        began_ns,
        connect_us,
        client,
        server: None,
    }
}

fn connect(to: SocketAddr, job: &Job) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, job.spec.stall)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(job.spec.stall))?;
    stream.write_all(&header::encode(job)?)?;
    Ok(stream)
}

/// Raises the soft limit of open files to the hard one: the usual limit of 1,024 is that of select(2).
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Raising the soft limit up to the hard one is always permitted.
    let _ = setrlimit(Resource::Nofile, limit);
}
