//! HTTP inside TLS that is terminated here: routed, kept alive, and in control mode under any `splice`.

use std::{
    fs,
    io::{Read, Write},
    process::Stdio,
};

use longsplice_lab::Process;
use longsplice_tests::{
    Certificate, SOON, eventually,
    switch::{Backend, Mode, More, Switch, content},
};
use tempfile::TempDir;

const HTTP: &str = "forwarded = [\"x-forwarded-proto\", \"x-forwarded-for\"]";
const ROUTE: &str = "[[listener.route]]\nname = \"second\"\npath_prefix = \"/second/\"\nupstream = \"second\"\n\
                     [[upstream]]\nname = \"second\"\nservers = [\"@SECOND@\"]\n";

struct Terminating {
    switch: Switch,
    servers: [Backend; 2],
    certificate: Certificate,
    dir: TempDir,
}

impl Terminating {
    fn new(name: &str) -> Terminating {
        let dir = tempfile::tempdir().unwrap();
        let certificate = Certificate::write(dir.path(), "a", &["a.example"]);
        let tables = format!("{}\n{ROUTE}", certificate.listener_table());
        let more = More {
            http: HTTP,
            tables: &tables,
            ..More::default()
        };
        let switch = Switch::with(name, Mode::Detached, more);
        let servers = [0, 1].map(|n| Backend::start(&switch.net.server, switch.server(n)));
        Terminating {
            switch,
            servers,
            certificate,
            dir,
        }
    }

    /// Runs curl with these words, `@` in them replaced by the URL of the switch; returns its output.
    fn curl(&self, words: &[&str]) -> Vec<u8> {
        let to = format!("a.example:443:{}", self.switch.front());
        let ca = self.certificate.certificate.display().to_string();
        let words: Vec<String> = words
            .iter()
            .map(|w| w.replace('@', "https://a.example"))
            .collect();
        let mut all = vec!["--fail", "--cacert", &ca, "--connect-to", &to];
        all.extend(words.iter().map(String::as_str));
        let output = self.switch.curl(&all);
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "curl {words:?}: {says}");
        output.stdout
    }
}

#[test]
fn requests_are_routed_one_by_one_and_nothing_is_spliced() {
    let t = Terminating::new("https");
    let got = t.curl(&[
        "-w",
        "%{num_connects}",
        "@/length/100000",
        "@/second/a",
        "@/chunked/300000",
        "@/length/3",
    ]);
    let expected = [
        &content(100_000)[..],
        b"1ok0",
        &content(300_000),
        b"0",
        &content(3),
        b"0",
    ]
    .concat();
    assert!(got == expected, "{} of {} bytes", got.len(), expected.len());
    let seen = t.servers.each_ref().map(Backend::take_seen);
    assert_eq!(seen.each_ref().map(Vec::len), [3, 1]);
    for seen in seen.concat() {
        assert_eq!(seen.field("X-Forwarded-Proto"), Some("https"), "{}", seen.head);
        let client = t.switch.net.client_addr.to_string();
        assert_eq!(seen.field("X-Forwarded-For"), Some(&*client), "{}", seen.head);
    }
    // Send bodies with and without a length, and one that waits for the server's 100.
    let file = t.dir.path().join("body");
    fs::write(&file, content(1_000_000)).unwrap();
    let file = file.display().to_string();
    for more in [
        &["-H", "Expect:"][..],
        &["-H", "Transfer-Encoding: chunked"],
        &["-H", "Expect: 100-continue"],
    ] {
        let got = t.curl(&[&["-T", &file, "@/echo"], more].concat());
        assert!(got == content(1_000_000), "{more:?}");
    }
    let status = t.switch.daemon.status();
    assert_eq!(status.spliced_total, 0, "{status:?}");
}

/// Interactive client: encrypts its input, decrypts its output.
struct Living {
    _process: Process,
    input: std::process::ChildStdin,
    output: std::process::ChildStdout,
}

impl Living {
    fn connect(switch: &Switch) -> Living {
        // The death of `timeout` must end `openssl`, too.
        let process = switch
            .client("timeout")
            .args(["60", "setpriv", "--pdeathsig", "KILL"])
            .args(["openssl", "s_client", "-quiet", "-connect"])
            .arg(switch.front().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Living {
            input: process.take_stdin().unwrap(),
            output: process.take_stdout().unwrap(),
            _process: process,
        }
    }

    /// Requests so many bytes on its one connection.
    fn get(&mut self, length: usize) {
        write!(
            self.input,
            "GET /length/{length} HTTP/1.1\r\nHost: a.example\r\n\r\n"
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.output.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", head.escape_ascii());
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).unwrap();
        assert!(body == content(length));
    }
}

#[test]
fn a_session_lives_on_when_its_certificate_is_replaced() {
    let mut t = Terminating::new("renewed");
    let mut living = Living::connect(&t.switch);
    living.get(1_000);
    let old = t.certificate.pem.clone();
    t.certificate = Certificate::write(t.dir.path(), "a", &["a.example"]);
    assert_ne!(t.certificate.pem, old);
    let to = format!("a.example:443:{}", t.switch.front());
    let ca = t.certificate.certificate.display().to_string();
    let url = "https://a.example/length/5";
    // Trust only the new one.
    eventually("the new certificate", SOON, || {
        let got = t.switch.curl(&["--cacert", &ca, "--connect-to", &to, url]);
        (got.stdout == content(5)).then_some(())
    });
    living.get(1_000);
}

/// A TLS stream buffers more than its socket takes, and must flush it before the daemon waits for the next request.
#[test]
fn a_slow_client_gets_the_end_of_its_reply() {
    let t = Terminating::new("tlsslow");
    // Make the sockets take little at a time.
    let net = &t.switch.net;
    for (node, key) in [(&net.client, "rmem"), (&net.forwarder, "wmem")] {
        node.sysctl(&format!("net.ipv4.tcp_{key}"), "4096 16384 16384")
            .unwrap();
    }
    let mut living = Living::connect(&t.switch);
    for n in 0..40 {
        living.get(120_000 + 7_000 * n);
    }
}
