//! Runs git over HTTP: its own protocol with `git http-backend`, and plain files.

use std::{fs, path::Path, process::Output};

use longsplice_tests::switch::{Mode, Nginx, Python, Switch, content};

#[track_caller]
fn said(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Runs git in a folder, in the client's node, without any other configuration.
#[track_caller]
fn git(switch: &Switch, folder: &Path, words: &[&str]) -> String {
    let command = switch.client("git").arg("-C").arg(folder).args(words);
    let command = command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_AUTHOR_NAME", "author")
        .env("GIT_AUTHOR_EMAIL", "author@example.org")
        .env("GIT_COMMITTER_NAME", "author")
        .env("GIT_COMMITTER_EMAIL", "author@example.org");
    said(&command.output().unwrap())
}

/// Makes a repository of some megabytes in `root/repo.git` that accepts pushes.
fn repository(switch: &Switch, root: &Path) {
    let work = tempfile::tempdir().unwrap();
    git(switch, work.path(), &["init", "-q", "-b", "main"]);
    for n in 1..40 {
        fs::write(work.path().join(format!("f{n}")), content(n * 3_001)).unwrap();
        git(switch, work.path(), &["add", "-A"]);
        git(
            switch,
            work.path(),
            &["commit", "-q", "-m", &format!("commit {n}")],
        );
    }
    git(
        switch,
        root,
        &[
            "clone",
            "-q",
            "--bare",
            &work.path().display().to_string(),
            "repo.git",
        ],
    );
    let bare = root.join("repo.git");
    git(switch, &bare, &["config", "http.receivepack", "true"]);
    git(switch, &bare, &["update-server-info"]);
}

#[test]
fn a_clone_and_a_push_over_smart_http() {
    for mode in Mode::ALL {
        let switch = Switch::new("git", mode);
        let python = Python::start(&switch.net.server, switch.target(), "HTTP/1.1");
        repository(&switch, &python.root());
        let dir = tempfile::tempdir().unwrap();
        git(
            &switch,
            dir.path(),
            &["clone", "-q", &switch.url("/git/repo.git"), "copy"],
        );
        let copy = dir.path().join("copy");
        git(&switch, &copy, &["fsck", "--full"]);
        let bare = python.root().join("repo.git");
        assert_eq!(
            git(&switch, &copy, &["rev-parse", "HEAD"]),
            git(&switch, &bare, &["rev-parse", "main"])
        );
        // More than git sends in one piece, so it sends chunks.
        fs::write(copy.join("large"), content(4_000_000)).unwrap();
        git(&switch, &copy, &["add", "-A"]);
        git(&switch, &copy, &["commit", "-q", "-m", "large"]);
        git(&switch, &copy, &["push", "-q", "origin", "main"]);
        assert_eq!(
            git(&switch, &copy, &["rev-parse", "HEAD"]),
            git(&switch, &bare, &["rev-parse", "main"])
        );
        git(&switch, &bare, &["fsck", "--full"]);
        assert!(!python.log().contains("STRICT"), "{}", python.log());
    }
}

#[test]
fn a_clone_of_plain_files() {
    for mode in Mode::ALL {
        let switch = Switch::new("dumb", mode);
        let nginx = Nginx::start(&switch.net.server, switch.target());
        repository(&switch, &nginx.root());
        let dir = tempfile::tempdir().unwrap();
        git(
            &switch,
            dir.path(),
            &["clone", "-q", &switch.url("/repo.git"), "copy"],
        );
        let (copy, bare) = (dir.path().join("copy"), nginx.root().join("repo.git"));
        git(&switch, &copy, &["fsck", "--full"]);
        assert_eq!(
            git(&switch, &copy, &["rev-parse", "HEAD"]),
            git(&switch, &bare, &["rev-parse", "main"])
        );
    }
}
