//! `longsplice doctor` on this machine, with everything that it tries.

use std::process::Command;

use longsplice_tests::binary;

/// Returns the findings of `doctor`, run through another program.
fn findings(under: &[&str]) -> Vec<serde_json::Value> {
    let words = [under, &[binary().to_str().unwrap(), "doctor", "--json"][..]].concat();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["findings"].as_array().unwrap().clone()
}

#[test]
fn what_is_mounted_read_only_is_missing() {
    let script = "mount --bind /sys/fs/bpf /sys/fs/bpf && mount -o remount,ro,bind /sys/fs/bpf && \
                  echo 0 > /proc/sys/net/ipv4/conf/lo/forwarding && \
                  mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$@\"";
    let found = findings(&["unshare", "--mount", "--net", "sh", "-c", script, "sh"]);
    for check in ["bpffs", "lo-forwarding"] {
        let finding = found.iter().find(|f| f["check"] == check).unwrap();
        let text = finding["text"].as_str().unwrap();
        assert_eq!(finding["verdict"], "missing", "{finding}");
        assert!(text.contains("Read-only file system"), "{text}");
    }
}

/// The comparison of tc and XDP translates real segments: its figures, or the lack of an ability, are the finding.
#[test]
fn segments_of_the_comparison_are_forwarded() {
    let findings = findings(&[]);
    let finding = findings.iter().find(|f| f["check"] == "xdp").unwrap();
    let text = finding["text"].as_str().unwrap();
    assert!(!text.contains("a test run failed"), "{text}");
}
