//! Parses the mounts of a process.

/// A mount, as a line of /proc/PID/mountinfo tells it.
pub(crate) struct Mount<'t> {
    /// Number of its device, as MAJOR:MINOR.
    pub(crate) device: &'t str,
    /// Path within its file system that is mounted.
    pub(crate) root: &'t str,
    pub(crate) point: &'t str,
    /// Type of its file system.
    pub(crate) kind: &'t str,
    /// Options of its file system.
    pub(crate) options: &'t str,
}

/// Returns the mounts in their order: one covers those before it at its point.
pub(crate) fn mounts(mountinfo: &str) -> impl DoubleEndedIterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        // Format: ID PARENT DEVICE ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE OPTIONS (proc_pid_mountinfo(5)).
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' ').skip(2), right.split(' '));
        Some(Mount {
            device: left.next()?,
            root: left.next()?,
            point: left.next()?,
            kind: right.next()?,
            options: right.nth(1).unwrap_or_default(),
        })
    })
}
