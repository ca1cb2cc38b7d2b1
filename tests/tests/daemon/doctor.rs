//! `longsplice doctor` on this machine, with everything that it tries.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Command,
};

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

/// A tun has no hardware address.
#[test]
fn an_interface_without_a_hardware_address_is_named() {
    let script =
        "ip tuntap add dev bare mode tun && ip link set dev bare up && ip link set dev lo up && exec \"$@\"";
    let found = findings(&["unshare", "--net", "sh", "-c", script, "sh"]);
    let named = found.iter().find(|f| f["check"] == "interfaces").unwrap();
    assert_eq!(named["text"], "flows can be spliced over bare lo");
}

/// The comparison of tc and XDP translates real segments: its figures, or the lack of an ability, are the finding.
#[test]
fn segments_of_the_comparison_are_forwarded() {
    let findings = findings(&[]);
    let finding = findings.iter().find(|f| f["check"] == "xdp").unwrap();
    let text = finding["text"].as_str().unwrap();
    assert!(!text.contains("a test run failed"), "{text}");
}

/// Folder of pins, which is removed when this is dropped, however its test ends.
struct Pins(PathBuf);

impl Pins {
    /// Makes a folder of this name.
    fn new(name: &str) -> Pins {
        let path = Path::new("/sys/fs/bpf").join(name);
        // An earlier run with the number of this process may have been killed.
        let _ = fs::remove_dir(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Pins(path)
    }

    /// Gives it the name of a comparison by this process.
    fn rename(&mut self, process: u32) {
        let path = self.0.with_file_name(format!("longsplice-doctor:{process}"));
        fs::rename(&self.0, &path).unwrap();
        self.0 = path;
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A comparison that was interrupted leaves its pins to the next one. Those of a process that runs are its own.
#[test]
fn pins_of_an_interrupted_comparison_are_removed() {
    // No process has numbers as high as these.
    let beyond = (1 << 22) + 2 * std::process::id();
    let mut pins = ["left", "served"].map(|name| Pins::new(&format!("test-doctor-{beyond}-{name}")));
    // Other tests examine this machine, too: the folder has its lock before they can take it for one that was left.
    let lock = fs::File::open(&pins[1].0).unwrap();
    lock.try_lock().unwrap();
    for (process, pins) in (beyond + 1..).zip(&mut pins) {
        pins.rename(process);
    }
    findings(&[]);
    let are_there = pins.each_ref().map(|pins| pins.0.exists());
    assert_eq!(are_there, [false, true]);
}
