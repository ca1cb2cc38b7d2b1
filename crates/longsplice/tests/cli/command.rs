//! Tests the command line without a daemon: help, versions, files, exit codes, error messages.

use std::path::{Path, PathBuf};

use crate::common::{ask, examples, instance, own_address};

#[test]
fn the_version_and_the_help_are_shown() {
    let (code, out, _) = ask(&["--version"]);
    assert_eq!(
        (code, out.trim()),
        (0, concat!("longsplice ", env!("CARGO_PKG_VERSION")))
    );
    for command in [
        "run", "forward", "check", "flows", "status", "doctor", "splice", "unsplice", "rules",
    ] {
        let (code, out, _) = ask(&[command, "--help"]);
        assert_eq!(code, 0);
        assert!(
            out.contains("Example: longsplice ") && out.contains("--instance"),
            "{out}"
        );
    }
}

#[test]
fn wrong_usage_ends_with_2_and_the_remedy() {
    for (args, says) in [
        (&["forward", "--listen", ":80"][..], "--to <HOST:PORT>"),
        (
            &["forward", "--listen", "localhost:80", "--to", "a:1"],
            "a listener takes an address",
        ),
        (
            &["forward", "--listen", ":80", "--to", "a:1", "--detach", "after=5"],
            "after=DURATION",
        ),
        (&["status", "--instance", "No"], "cannot name an instance"),
        (
            &["run", "--config", "/nonexistent.toml"],
            "cannot read /nonexistent.toml",
        ),
        (&["rules"], "load"),
        (
            &["rules", "load", "/nonexistent.toml"],
            "cannot read /nonexistent.toml",
        ),
        (&["splice", "x"], "invalid digit"),
        (&["unsplice", "x"], "invalid digit"),
        (
            &[
                "forward",
                "--listen",
                ":80",
                "--to",
                "a:1",
                "--unsplice",
                "data=me",
            ],
            "data=SIDE:BYTES",
        ),
        (
            &[
                "forward",
                "--listen",
                ":80",
                "--to",
                "a:1",
                "--splice",
                "never",
                "--unsplice",
                "data",
            ],
            "leave unsplice out",
        ),
        (&["flow"], "flows"),
    ] {
        let (code, _, err) = ask(args);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(says), "{err}");
    }
}

#[test]
fn the_examples_are_good() {
    let files = examples();
    assert!(!files.is_empty());
    let dir = tempfile::tempdir().unwrap();
    for file in files {
        let file = with_certificate(&file, dir.path());
        let (code, out, err) = ask(&["check", file.to_str().unwrap()]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains(": good\n"), "{out}");
    }
}

/// Copies the file, with the certificate of `dir` in place of a user's, which is not on this machine.
fn with_certificate(file: &Path, dir: &Path) -> PathBuf {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["www.example".to_owned()];
    let certificate = rcgen::CertificateParams::new(names)
        .unwrap()
        .self_signed(&key)
        .unwrap();
    std::fs::write(dir.join("www.example.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("www.example.key"), key.serialize_pem()).unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let copy = dir.join(file.file_name().unwrap());
    std::fs::write(&copy, text.replace("/etc/longsplice", dir.to_str().unwrap())).unwrap();
    copy
}

#[test]
fn check_points_at_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    std::fs::write(&file, "[[listener]]\nlisten = \":80\"\nto = \"127.0.0.1\"\n").unwrap();
    let path = file.to_str().unwrap();
    let expected = format!(
        "{path}:3:6: `127.0.0.1` has no port: write 127.0.0.1:PORT\n   3 | to = \"127.0.0.1\"\n     |      ^^^^^^^^^^^\n"
    );
    assert_eq!(ask(&["check", path]), (2, String::new(), expected));
    let (code, _, err) = ask(&["run", "--config", path]);
    assert_eq!(code, 2);
    assert!(err.contains(":3:6: "), "{err}");
}

/// The daemon can open each path that is good. `check` itself creates no file.
#[test]
fn check_looks_where_the_access_log_is_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::write(dir.path().join("there"), "").unwrap();
    let path = file.to_str().unwrap();
    let listen = own_address();
    for (log, says) in [
        ("folder", Some("name a file in it")),
        ("none/a.log", Some("make its folder first")),
        ("there/a.log", Some("name a folder before the file")),
        ("there", None),
        ("folder/a.log", None),
    ] {
        let text =
            format!("[access_log]\npath = \"{log}\"\n[[listener]]\nlisten = \"{listen}\"\nto = \"a:1\"\n");
        std::fs::write(&file, text).unwrap();
        let (code, out, err) = ask(&["check", path]);
        let Some(says) = says else {
            assert_eq!((code, err.as_str()), (0, ""), "{log}: {out}");
            continue;
        };
        assert_eq!((code, out.as_str()), (2, ""), "{log}: {err}");
        let begin = format!("cannot open the access log {}", dir.path().join(log).display());
        let line = err.lines().next().unwrap();
        let message = line
            .strip_prefix(&format!("{path}:2:8: "))
            .unwrap_or_else(|| panic!("{log}: {err}"));
        assert!(
            message.starts_with(&begin) && message.contains(says),
            "{log}: {err}"
        );
        // The daemon says so, too.
        let (code, _, said) = ask(&["run", "--config", path, "--instance", &instance("log")]);
        assert!(code == 1 && said.contains(message), "{log}: {said}");
    }
    assert!(!dir.path().join("folder/a.log").exists());
}

#[test]
fn check_says_when_connections_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    let text = "[[listener]]\nlisten = \":80\"\nto = \"a:1\"\nunsplice = \"bytes=client:0,idle=2m\"\n";
    std::fs::write(&file, text).unwrap();
    let (code, out, err) = ask(&["check", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("splice auto, detach after=1s, unsplice data=client,idle=120s\n"),
        "{out}"
    );
}

#[test]
fn where_no_daemon_runs_it_is_said_and_that_its_flows_run_on() {
    let name = instance("absent");
    for args in [
        &["status"][..],
        &["status", "--json"],
        &["flows"],
        &["splice", "1"],
        &["unsplice", "1"],
    ] {
        let (code, out, err) = ask(&[args, &["--instance", &name]].concat());
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(
            err.contains(&format!("no daemon of instance `{name}` is running")),
            "{err}"
        );
        assert!(
            err.contains("run on in the kernel") && err.contains("longsplice run"),
            "{err}"
        );
    }
}

#[test]
fn doctor_says_in_words_and_in_json_what_is_there() {
    let (code, out, err) = ask(&["doctor"]);
    assert!(code == 0 || code == 1, "{err}");
    assert!(out.contains("kernel ") && out.contains("capabilities "), "{out}");
    let (_, out, _) = ask(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(report["splice_available"].is_boolean());
    assert!(report["findings"].as_array().unwrap().len() >= 10);
}
