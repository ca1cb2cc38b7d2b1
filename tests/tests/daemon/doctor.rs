//! `longsplice doctor` on this machine, with everything that it tries.

use std::process::Command;

use longsplice_tests::binary;

/// The comparison of tc and XDP translates real segments: its figures, or the lack of an ability, are the finding.
#[test]
fn segments_of_the_comparison_are_forwarded() {
    let output = Command::new(binary())
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|f| f["check"] == "xdp").unwrap();
    let text = finding["text"].as_str().unwrap();
    assert!(!text.contains("a test run failed"), "{text}");
}
