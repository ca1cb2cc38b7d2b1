//! Runs curl, as a client.

use longsplice_lab::Namespace;

/// Runs curl in this namespace with these words of its command line. Returns its output, including that of
/// `-w`.
///
/// # Panics
/// Panics when curl fails, or takes longer than half a minute.
pub fn curl(namespace: &Namespace, words: &[&str]) -> Vec<u8> {
    let output = namespace
        .command("curl")
        .args(["-sS", "--max-time", "30", "--noproxy", "*"])
        .args(words)
        .output()
        .unwrap();
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "curl {words:?}: {}: {says}",
        output.status
    );
    output.stdout
}
