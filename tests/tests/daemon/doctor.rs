//! `longsplice doctor` on this machine, with everything that it tries.

use std::{fs, os::unix::fs::DirBuilderExt, path::PathBuf, process::Command};

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

/// A comparison that was interrupted leaves its pins to the next one. Those of a process that runs are its own.
#[test]
fn pins_of_an_interrupted_comparison_are_removed() {
    let make = |name: &str| {
        let path = PathBuf::from(format!("/sys/fs/bpf/longsplice-doctor:{name}"));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    };
    // No process has numbers as high as these.
    let (left, served) = (make("4194305"), make("4194306"));
    let lock = fs::File::open(&served).unwrap();
    lock.try_lock().unwrap();
    findings(&[]);
    let are_there = (left.exists(), served.exists());
    fs::remove_dir(&served).unwrap();
    let _ = fs::remove_dir(&left);
    assert_eq!(are_there, (false, true));
}
