use std::fs;

use crate::{
    config::{Config, Diagnostic, parse},
    tls::testing,
};

/// Parses a listener with these lines, from a folder that holds the certificates `a` and `b`.
fn listener(protocol: &str, lines: &str) -> Result<Config, Vec<Diagnostic>> {
    let dir = tempfile::tempdir().unwrap();
    testing::write(dir.path(), "a", &["a.example"]);
    testing::write(dir.path(), "b", &["b.example"]);
    fs::write(dir.path().join("empty"), "").unwrap();
    let text = format!(
        "[[listener]]\nlisten = \":8443\"\nto = \"192.0.2.1:80\"\nprotocol = \"{protocol}\"\n{lines}\n"
    );
    parse(&dir.path().join("x.toml"), &text)
}

#[test]
fn certificates_are_found_beside_the_file() {
    let one = listener("tcp", "[listener.tls]\ncertificate = \"a.pem\"\nkey = \"a.key\"").unwrap();
    let tls = one.listeners[0].tls.as_ref().unwrap();
    assert_eq!(tls.certificates.len(), 1);
    assert!(tls.certificates[0].key.is_absolute());
    assert!(tls.alpn.is_empty());
    let several = listener(
        "http",
        "[listener.tls]\ncertificates = [{ certificate = \"b.pem\", key = \"b.key\" }, { certificate = \"a.pem\", key = \"a.key\" }]",
    )
    .unwrap();
    let tls = several.listeners[0].tls.as_ref().unwrap();
    let files: Vec<_> = tls
        .certificates
        .iter()
        .filter_map(|c| c.key.file_name())
        .collect();
    assert_eq!(files, ["b.key", "a.key"]);
    assert_eq!(tls.alpn, ["http/1.1", "http/1.0"]);
    let shown = crate::show::config(&several);
    assert!(shown.contains("offers http/1.1, http/1.0 by ALPN"), "{shown}");
    let other = listener(
        "tcp",
        "tls = { certificate = \"a.pem\", key = \"a.key\", alpn = [\"imap\"] }",
    )
    .unwrap();
    assert_eq!(other.listeners[0].tls.as_ref().unwrap().alpn, ["imap"]);
}

#[test]
fn what_cannot_be_meant_is_shown_with_its_place_and_the_remedy() {
    let pair = "certificate = \"a.pem\", key = \"a.key\"";
    for (protocol, table, place, says) in [
        ("tcp", String::new(), "tls = {", "there is none"),
        ("tcp", "key = \"a.key\"".into(), "tls = {", "there is none"),
        ("tcp", "certificates = []".into(), "tls = {", "there is none"),
        (
            "tcp",
            "certificate = \"none.pem\", key = \"a.key\"".into(),
            "\"none.pem\"",
            "No such file",
        ),
        (
            "tcp",
            "certificate = \"a.pem\", key = \"none\"".into(),
            "\"none\"",
            "No such file",
        ),
        (
            "tcp",
            "certificate = \"empty\", key = \"a.key\"".into(),
            "\"empty\"",
            "BEGIN CERTIFICATE",
        ),
        (
            "tcp",
            "certificate = \"a.pem\"".into(),
            "\"a.pem\"",
            "key = names the file",
        ),
        (
            "tcp",
            "certificate = \"a.pem\", key = \"b.key\"".into(),
            "\"b.key\"",
            "not that of the certificate",
        ),
        (
            "tcp",
            format!("{pair}, certificates = [{{ {pair} }}]"),
            "[{",
            "both `certificate` and",
        ),
        ("tls", pair.into(), "{ cert", "leave [listener.tls] out"),
        (
            "http",
            format!("{pair}, alpn = [\"h2\"]"),
            "\"h2\"",
            "h2 passes with protocol = \"tls\"",
        ),
        (
            "tcp",
            format!("{pair}, alpn = [\"HTTP/2\"]"),
            "\"HTTP/2\"",
            "write \"h2\"",
        ),
        ("tcp", format!("{pair}, alpn = [\"\"]"), "\"\"", "1 to 255 bytes"),
        (
            "tcp",
            format!("{pair}, alpn = [\"x\", \"x\"]"),
            "\"x\"",
            "there twice",
        ),
        ("tcp", format!("{pair}, password = \"x\""), "password", "unknown"),
    ] {
        let line = format!("tls = {{ {table} }}");
        let wrong = listener(protocol, &line).map(drop).expect_err(&line);
        let text = wrong.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains(says), "{line}: {text}");
        assert!(wrong.iter().all(|d| d.line() == 5), "{line}: {text}");
        let caret = text.lines().nth(2).and_then(|l| l.find('^')).unwrap();
        let marked = text.lines().nth(1).and_then(|l| l.get(caret..)).unwrap();
        assert!(
            marked.starts_with(place.trim_start_matches("tls = ")),
            "{line}: {text}"
        );
    }
}
