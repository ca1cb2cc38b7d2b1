//! Runs curl and wget, in front of nginx and of Python's server.

use std::{fs, path::Path, process::Output};

use longsplice_lab::pattern::Pattern;
use longsplice_tests::switch::{Mode, Nginx, Python, Switch, content};

const LENGTHS: [usize; 7] = [0, 1, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

fn put_files(root: &Path) {
    for length in LENGTHS {
        fs::write(root.join(length.to_string()), content(length)).unwrap();
    }
    fs::write(root.join("text.txt"), "longsplice ".repeat(50_000)).unwrap();
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts nginx with these files, as the switch's server.
fn nginx_with_files(switch: &Switch) -> Nginx {
    let nginx = Nginx::start(&switch.net.server, switch.target());
    put_files(&nginx.root());
    nginx
}

#[track_caller]
fn get_files_on_one_connection(switch: &Switch) {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = LENGTHS.map(|n| n.to_string()).to_vec();
    let connects = switch.curl_files(&names, dir.path(), &[]);
    assert_eq!(connects, "1\n0\n0\n0\n0\n0\n0\n");
    assert_files(dir.path());
}

#[track_caller]
fn assert_files(dir: &Path) {
    for length in LENGTHS {
        let got = fs::read(dir.join(length.to_string())).unwrap();
        assert!(got == content(length), "{length}: {} bytes", got.len());
    }
}

#[test]
fn curl_gets_files_of_nginx_on_one_connection() {
    for mode in Mode::ALL {
        let switch = Switch::new("curl", mode);
        let nginx = nginx_with_files(&switch);
        get_files_on_one_connection(&switch);
        assert_eq!(nginx.log().len(), LENGTHS.len(), "{:?}", nginx.log());
    }
}

/// Clients are slow enough for each reply to be spliced while it passes.
#[test]
fn slow_clients_are_spliced() {
    for mode in Mode::ALL {
        let switch = Switch::new("slowly", mode);
        let _nginx = nginx_with_files(&switch);
        let url = switch.url("/10000000");
        for n in 1..=2 {
            let output = switch.curl(&["--fail", "--limit-rate", "8M", &url, &url]);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(output.stdout == content(10_000_000).repeat(2), "curl {n}");
        }
        let words = [
            "--no-config",
            "-nv",
            "--tries=1",
            "--limit-rate=8m",
            "-O",
            "-",
            &url,
        ];
        let output = switch.client("wget").args(words).output().unwrap();
        assert!(output.stdout == content(10_000_000), "wget");
        switch.assert_mode();
    }
}

#[test]
fn curl_gets_files_at_once() {
    for mode in Mode::ALL {
        let switch = Switch::new("parallel", mode);
        let _nginx = nginx_with_files(&switch);
        let url = switch.url("/100000?[1-60]");
        let dir = tempfile::tempdir().unwrap();
        let into = format!("{}/#1", dir.path().display());
        said(&switch.curl(&["--fail", "-Z", "--parallel-max", "12", "-o", &into, &url]));
        for n in 1..=60 {
            assert!(
                fs::read(dir.path().join(n.to_string())).unwrap() == content(100_000),
                "{n}"
            );
        }
    }
}

#[test]
fn curl_asks_in_other_ways() {
    for mode in Mode::ALL {
        let switch = Switch::new("ways", mode);
        let _nginx = nginx_with_files(&switch);
        let file = switch.url("/100000");
        let curl = |words: &[&str]| said(&switch.curl(words));
        // HTTP/1.0.
        assert!(switch.curl(&["-0", &file]).stdout == content(100_000));
        // HEAD, twice on one connection.
        let heads = curl(&[
            "-I",
            "-w",
            "%{num_connects}",
            &file,
            "--next",
            "-sS",
            "-I",
            "-w",
            "%{num_connects}",
            &file,
        ]);
        assert_eq!(heads.matches("Content-Length: 100000").count(), 2, "{heads}");
        assert!(heads.ends_with('0'), "{heads}");
        // A range.
        assert!(switch.curl(&["-r", "1000-1999", &file]).stdout == content(100_000)[1_000..2_000]);
        // 304.
        let etag = curl(&["-I", &file])
            .lines()
            .find_map(|l| l.strip_prefix("ETag: ").map(str::to_owned))
            .unwrap();
        let unless = format!("If-None-Match: {etag}");
        assert_eq!(
            curl(&["-w", "%{http_code} %{size_download}", "-H", &unless, &file]),
            "304 0"
        );
        // Compressed, and so in chunks.
        let text = switch.url("/text.txt");
        let reply = curl(&["--compressed", "-D", "-", &text]);
        assert!(reply.contains("Transfer-Encoding: chunked"), "{}", &reply[..300]);
        assert!(reply.ends_with(&"longsplice ".repeat(50_000)));
        // A missing file.
        assert_eq!(
            curl(&["-o", "/dev/null", "-w", "%{http_code}", &switch.url("/nothing")]),
            "404"
        );
    }
}

#[test]
fn wget_gets_files_of_nginx() {
    for mode in Mode::ALL {
        let switch = Switch::new("wget", mode);
        let _nginx = nginx_with_files(&switch);
        let dir = tempfile::tempdir().unwrap();
        let command = switch
            .client("wget")
            .args(["--no-config", "-nv", "--tries=1", "-T", "30", "-P"]);
        let urls = LENGTHS.map(|n| switch.url(&format!("/{n}")));
        said(&command.arg(dir.path()).args(urls).output().unwrap());
        assert_files(dir.path());
    }
}

#[test]
fn wget_mirrors_a_site() {
    for mode in Mode::ALL {
        let switch = Switch::new("mirror", mode);
        let nginx = Nginx::start(&switch.net.server, switch.target());
        let root = nginx.root();
        for n in 0..20 {
            fs::create_dir_all(root.join(format!("d{n}"))).unwrap();
            fs::write(root.join(format!("d{n}/a.bin")), content(5_000 * n)).unwrap();
            let next = (n + 1) % 20;
            let page = format!("<a href=\"a.bin\">a</a> <a href=\"/d{next}/page.html\">next</a>");
            fs::write(root.join(format!("d{n}/page.html")), page).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let words = [
            "--no-config",
            "-nv",
            "-r",
            "-l",
            "30",
            "-nH",
            "--tries=1",
            "-T",
            "30",
            "-P",
        ];
        let command = switch
            .client("wget")
            .args(words)
            .arg(dir.path())
            .args(["-e", "robots=off"]);
        said(&command.arg(switch.url("/d0/page.html")).output().unwrap());
        for n in 0..20 {
            assert!(
                fs::read(dir.path().join(format!("d{n}/a.bin"))).unwrap() == content(5_000 * n),
                "{n}"
            );
        }
    }
}

#[test]
fn curl_uploads_to_a_strict_server() {
    for mode in Mode::ALL {
        let switch = Switch::new("put", mode);
        let python = Python::start(&switch.net.server, switch.target(), "HTTP/1.1");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("body").display().to_string();
        let url = switch.url("/upload");
        for length in [0, 1, 100_000, 8_000_000] {
            fs::write(&file, content(length)).unwrap();
            let hash: String = Pattern::new(length as u64)
                .sha256(length as u64)
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            for more in [
                // By default curl sends Expect with a long body.
                &["-T", &file][..],
                &["-T", &file, "-H", "Transfer-Encoding: chunked"],
                &["-T", &file, "-H", "Expect: 100-continue"],
                &["-T", &file, "-H", "Expect:"],
                &["--data-binary", &format!("@{file}")],
                &["-0", "-T", &file],
            ] {
                // This curl never sends the end of an empty chunked body.
                if length == 0 && more.contains(&"Transfer-Encoding: chunked") {
                    continue;
                }
                let words = [&["--fail", url.as_str()], more].concat();
                let output = switch.curl(&words);
                let said = String::from_utf8_lossy(&output.stdout);
                let why = String::from_utf8_lossy(&output.stderr);
                assert_eq!(said, hash, "{mode:?}, {length} bytes, {more:?}: {why}");
            }
        }
        assert!(!python.log().contains("STRICT"), "{}", python.log());
    }
}

#[test]
fn a_server_of_http_1_0_behind_a_persistent_connection() {
    for mode in Mode::ALL {
        for version in ["HTTP/1.0", "HTTP/1.1"] {
            let switch = Switch::new("python", mode);
            let python = Python::start(&switch.net.server, switch.target(), version);
            put_files(&python.root());
            // The client's connection persists even if the server's closes.
            get_files_on_one_connection(&switch);
            assert!(!python.log().contains("STRICT"), "{}", python.log());
        }
    }
}
