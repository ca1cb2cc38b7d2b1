//! Runs a daemon: `run` and `forward`.

use std::{ops::RangeInclusive, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use longsplice_engine::SplicerConfig;

use super::{
    Failure,
    args::{Accelerate, Common, Forward, Run},
};
use crate::{
    config::{
        self, AccelerateClass, AccelerateConfig, Config, DEFAULT_CONNECT_TIMEOUT, DEFAULT_SHUTDOWN_TIMEOUT,
        ListenerConfig, LogConfig, LogLevel, Period, rules,
    },
    daemon::{self, Outcome},
    logging,
    reload::Load,
};

pub(super) fn run(args: Run, common: &Common) -> Result<ExitCode, Failure> {
    let admin = args.admin.map(absolute).transpose()?;
    // Make the path absolute, so that it names the same file at each reload.
    let path = std::path::absolute(&args.config).unwrap_or_else(|_| args.config.clone());
    let common = common.clone();
    // Options of the command line override the file, whenever it is read.
    let over = move |config: Config| Config {
        instance: common.instance.clone().unwrap_or(config.instance),
        require_splice: args.require_splice || config.require_splice,
        shutdown: args.on_shutdown.unwrap_or(config.shutdown),
        admin: admin.clone().or(config.admin),
        log: common.log(config.log),
        ..config
    };
    let config = over(config::load(&args.config).map_err(Failure::usage)?);
    serve(
        config,
        Some(Arc::new(move || Ok(over(config::load(&path)?)))),
        args.replace,
    )
}

pub(super) fn forward(args: Forward, common: &Common) -> Result<ExitCode, Failure> {
    let replace = args.replace;
    serve_arguments(forward_config(args, common), common, replace)
}

/// Converts the arguments into a configuration, with the checks of a file.
fn forward_config(args: Forward, common: &Common) -> Result<Config, String> {
    let mut listen = Vec::new();
    for address in args.listen {
        let address = address.0;
        let clash = listen
            .iter()
            .find_map(|earlier| rules::overlap(address, *earlier));
        let clash = clash.or_else(|| rules::in_source_ports(address, args.source_ports?));
        let clash = clash.or_else(|| {
            args.to
                .iter()
                .find_map(|to| rules::connects_to_itself(address, to))
        });
        if let Some(clash) = clash {
            return Err(clash);
        }
        listen.push(address);
    }
    let name = listen.first().map(ToString::to_string).unwrap_or_default();
    let default = SplicerConfig::default();
    let max_flows = args.max_flows.unwrap_or(default.max_flows);
    let idle_timeout = args.idle_timeout.map_or(default.idle_timeout, |p| p.0);
    at_least_a_second("--idle-timeout", Some(idle_timeout))?;
    let relay_idle = args.relay_idle_timeout.map(|p| p.0);
    at_least_a_second("--relay-idle-timeout", relay_idle)?;
    let connect_timeout = within(
        "--connect-timeout",
        args.connect_timeout,
        DEFAULT_CONNECT_TIMEOUT,
        &rules::CONNECT_TIMEOUT,
    )?;
    let unsplice = args.unsplice.unwrap_or_default();
    if let Some(rules::Complaint { message, help }) = rules::unsplice(args.splice, unsplice) {
        return Err(format!("--{message}\n{help}"));
    }
    let interfaces = (!args.interface.is_empty()).then_some(args.interface);
    for name in &args.xdp {
        if let Some(rules::Complaint { message, help }) = rules::xdp(name, interfaces.as_deref()) {
            return Err(format!("--xdp: {message}\n{help}"));
        }
    }
    if let Some(rules::Complaint { message, help }) = args.congestion.as_deref().and_then(rules::congestion) {
        return Err(format!("--congestion: {message}\n{help}"));
    }
    Ok(Config {
        instance: common.instance.clone().unwrap_or_default(),
        admin: args.admin,
        splicer: SplicerConfig {
            interfaces,
            xdp: args.xdp,
            xdp_mode: args.xdp_mode,
            max_flows,
            max_dormant: config::usual_max_dormant(max_flows),
            source_ports: args.source_ports.map(Into::into),
            idle_timeout,
            ..default
        },
        memory: args.memory.unwrap_or_default(),
        require_splice: args.require_splice,
        shutdown: args.on_shutdown,
        shutdown_timeout: args.shutdown_timeout.map_or(DEFAULT_SHUTDOWN_TIMEOUT, |p| p.0),
        listeners: vec![ListenerConfig {
            name,
            listen,
            to: args.to,
            splice: args.splice,
            detach: args.detach,
            unsplice,
            rate_limit: args.rate_limit.unwrap_or_default(),
            idle: config::idle_policy(relay_idle, args.keepalive),
            connect_timeout,
            congestion: args.congestion,
            ..ListenerConfig::default()
        }],
        ..Config::default()
    })
}

pub(super) fn accelerate(args: Accelerate, common: &Common) -> Result<ExitCode, Failure> {
    let replace = args.replace;
    serve_arguments(accelerate_config(args, common), common, replace)
}

/// Runs a daemon whose configuration the arguments are.
fn serve_arguments(
    config: Result<Config, String>,
    common: &Common,
    replace: bool,
) -> Result<ExitCode, Failure> {
    let config = config.map_err(Failure::Usage)?;
    let admin = config.admin.map(absolute).transpose()?;
    let log = common.log(config.log);
    serve(Config { admin, log, ..config }, None, replace)
}

/// Returns the given duration or the default, unless it lies outside of the range that a file may name.
fn within(
    option: &str,
    given: Option<Period>,
    default: Duration,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, String> {
    let Some(given) = given else { return Ok(default) };
    if range.contains(&given.0) {
        return Ok(given.0);
    }
    let (least, most) = (Period(*range.start()), Period(*range.end()));
    Err(format!("{option} {given} is out of range: use {least} to {most}"))
}

fn at_least_a_second(option: &str, given: Option<Duration>) -> Result<(), String> {
    match given.filter(|time| *time < Duration::from_secs(1)) {
        Some(short) => Err(format!("{option} {} is too short: use 1s or more", Period(short))),
        None => Ok(()),
    }
}

/// Converts the arguments into a configuration, with the checks of a file.
fn accelerate_config(args: Accelerate, common: &Common) -> Result<Config, String> {
    let idle = args.idle_timeout.map(|p| p.0);
    at_least_a_second("--idle-timeout", idle)?;
    let default = AccelerateConfig::between(args.inside, args.outside);
    let accelerate = AccelerateConfig {
        inside_congestion: args.inside_congestion,
        outside_congestion: args.outside_congestion,
        to: args.to,
        ports: args.port,
        except: args.except,
        min_rtt: within("--min-rtt", args.min_rtt, default.min_rtt, &rules::MIN_RTT)?,
        min_gain: args
            .min_gain
            .map_or(default.min_gain, |gain| (gain * 100.0).round() as u32),
        queue: within("--queue", args.queue, default.queue, &rules::QUEUE)?,
        idle_timeout: idle.unwrap_or(default.idle_timeout),
        max_connections: args.max_connections.unwrap_or(default.max_connections),
        early_accept: args.early_accept,
        standing_queue: args.standing_queue,
        classes: match args.prefer.is_empty() {
            true => Vec::new(),
            false => vec![AccelerateClass {
                name: "preferred".to_owned(),
                networks: args.prefer,
            }],
        },
        ..default
    };
    let names = [&accelerate.inside_congestion, &accelerate.outside_congestion];
    let wrong = names
        .into_iter()
        .flatten()
        .find_map(|name| rules::congestion(name));
    if let Some(rules::Complaint { message, help }) = wrong.or_else(|| accelerate.complaint()) {
        return Err(format!("{message}\n{help}"));
    }
    Ok(Config {
        instance: common.instance.clone().unwrap_or_default(),
        admin: args.admin,
        memory: args.memory.unwrap_or_default(),
        require_splice: true,
        shutdown_timeout: args.shutdown_timeout.map_or(DEFAULT_SHUTDOWN_TIMEOUT, |p| p.0),
        accelerate: Some(accelerate),
        ..Config::default()
    })
}

fn serve(config: Config, load: Option<Load>, replace: bool) -> Result<ExitCode, Failure> {
    logging::start(config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("longsplice")
        .build()
        .map_err(|e| Failure::runtime(format!("cannot start the threads: {e}")))?;
    let outcome = runtime.block_on(daemon::run(config, load, replace));
    // Do not wait for threads that look names up: no task needs the result any more.
    runtime.shutdown_background();
    match outcome.map_err(Failure::runtime)? {
        Outcome::Clean => Ok(ExitCode::SUCCESS),
        Outcome::Hurried => Err(Failure::runtime("ended at once, at a second signal")),
    }
}

fn absolute(path: PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(&path).map_err(|e| Failure::usage(format!("--admin {}: {e}", path.display())))
}

impl Common {
    /// Returns the settings of the log: those of the file, but for what the command line names.
    fn log(&self, file: LogConfig) -> LogConfig {
        let level = match (self.verbose, self.quiet) {
            (0, 0) => file.level,
            (1, _) => LogLevel::Debug,
            (2.., _) => LogLevel::Trace,
            (_, 1) => LogLevel::Warn,
            (_, 2..) => LogLevel::Error,
        };
        LogConfig {
            level,
            format: self.log_format.unwrap_or(file.format),
            ..file
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        cli::args::{Cli, Command},
        config::MemoryLimit,
    };

    fn config(line: &str) -> Result<Config, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
        match cli.command {
            Command::Forward(forward) => forward_config(*forward, &cli.common),
            Command::Accelerate(accelerate) => accelerate_config(*accelerate, &cli.common),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_smallest_real_use() {
        let c = config("longsplice forward --listen 0.0.0.0:8080 --to 127.0.0.1:8000").unwrap();
        assert_eq!(c.instance.as_str(), "default");
        assert_eq!(c.splicer_config().interfaces, None);
        let l = &c.listeners[0];
        assert_eq!(
            (l.splice.to_string(), l.detach.to_string()),
            ("auto".into(), "after=1s".into())
        );
    }

    #[test]
    fn every_option_arrives() {
        let c = config(
            "longsplice forward --listen :80 --listen [::]:80 --to a:1 --to b:2 --splice after=4096 --detach never \
             --unsplice data=client,after=1m --rate-limit server=1MB/s,burst=64KiB \
             --interface eth0 --interface lo --source-ports 20000-20009 --idle-timeout 5m --max-flows 9 \
             --instance x --admin /tmp/x --on-shutdown end --require-splice --memory 64MiB --shutdown-timeout 1s --congestion reno -v --log-format json",
        )
        .unwrap();
        let s = c.splicer_config();
        assert_eq!(s.instance, "x");
        assert_eq!(s.interfaces, Some(vec!["eth0".into(), "lo".into()]));
        assert_eq!(
            (s.source_ports, s.max_flows, s.max_dormant),
            (Some(20_000..=20_009), 9, 9)
        );
        assert_eq!(
            (s.idle_timeout, c.shutdown_timeout),
            (Duration::from_secs(300), Duration::from_secs(1))
        );
        assert!(c.require_splice);
        assert_eq!(c.memory, MemoryLimit::Bytes(64 << 20));
        let l = &c.listeners[0];
        assert_eq!((l.listen.len(), l.to.len()), (2, 2));
        assert_eq!(l.congestion.as_deref(), Some("reno"));
        assert_eq!(l.unsplice.to_string(), "data=client,after=60s");
        assert_eq!(l.rate_limit.to_string(), "server=1000000B/s,burst=65536");
    }

    #[test]
    fn an_accelerators_durations_have_the_ranges_of_a_file() {
        for (rest, says) in [
            ("--queue 0s", "--queue 0s is out of range: use 1ms to 10s"),
            ("--queue 11s", "--queue 11s is out of range"),
            ("--min-rtt 2m", "out of range: use 0s to 1m"),
        ] {
            let e = config(&format!("longsplice accelerate --inside a --outside b {rest}")).unwrap_err();
            assert!(e.contains(says), "{rest}: {e}");
        }
        let least = config("longsplice accelerate --inside a --outside b --queue 1ms --min-rtt 0s").unwrap();
        let accelerate = least.accelerate.unwrap();
        assert_eq!(
            (accelerate.queue, accelerate.min_rtt),
            (Duration::from_millis(1), Duration::ZERO)
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_remedy() {
        for (rest, says) in [
            (
                "--listen :80 --to a:1 --connect-timeout 0s",
                "--connect-timeout 0s is out of range: use 1ms to 10m",
            ),
            ("--to a:1", "--listen <ADDR>"),
            ("--listen :80 --to a", "has no port: write a:PORT"),
            ("--listen :80 --to a:1 --splice soon", "after=BYTES"),
            ("--listen :80 --to 127.0.0.1:80", "would forward to itself"),
            ("--listen :80 --listen :80 --to a:1", "listened on twice"),
            (
                "--listen :80 --to a:1 --source-ports 1-100",
                "lies in source_ports",
            ),
            ("--listen :80 --to a:1 --instance A", "cannot name an instance"),
            ("--listen :80 --to a:1 --idle-timeout 0s", "too short"),
            ("--listen :80 --to a:1 --interface a/b", "ip -br link"),
            (
                "--listen :80 --to a:1 --congestion re/no",
                "tcp_available_congestion_control",
            ),
            ("--listen :80 --to a:1 --max-flows 0", "1..=67108864"),
            ("--listen :80 --to a:1 --unsplice closed", "bytes=server:1MiB"),
            ("--listen :80 --to a:1 --rate-limit 10MB", "such as 10MB/s"),
            ("--listen :80 --to a:1 --unsplice after=0s", "use 1ms or more"),
            (
                "--listen :80 --to a:1 --splice never --unsplice data",
                "--unsplice data=client,data=server is useless",
            ),
        ] {
            let e = config(&format!("longsplice forward {rest}")).unwrap_err();
            assert!(e.contains(says), "{rest}: {e}");
        }
    }
}
