//! Who started whom, and who is stopped, as `/proc` tells it.

use rustix::process::Pid;
use std::collections::BTreeMap;
use std::fs;

/// The state of a process, as proc(5) has it, and the process above it.
fn state_of(pid: i32) -> Option<(char, i32)> {
    // `PID (NAME) STATE PARENT ...`, where a name may have brackets of its own.
    let told = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = told.rsplit(')').next()?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

/// The process above one that runs.
fn parent_of(pid: i32) -> Option<i32> {
    state_of(pid).filter(|(state, _)| !matches!(state, 'Z' | 'X')).map(|(_, parent)| parent)
}

/// The numbers of all processes.
pub(super) fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process was stopped by a signal or a debugger, and goes on with another.
pub(super) fn is_stopped(pid: i32) -> bool {
    state_of(pid).is_some_and(|(state, _)| matches!(state, 'T' | 't'))
}

/// The processes that serve FUSE mounts and are stopped, as far as they may be looked at.
pub(super) fn stopped_servers() -> Vec<i32> {
    let serves = |pid: &i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut leads = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        leads.any(|path| path.ends_with("fuse") && path.starts_with("/dev"))
    };
    all().filter(|pid| is_stopped(*pid) && serves(pid)).collect()
}

/// Whether a process started this one, or one above it.
pub(super) fn is_above(pid: Pid) -> bool {
    let own = i32::try_from(std::process::id()).ok();
    std::iter::successors(own, |pid| parent_of(*pid)).any(|above| above == pid.as_raw_nonzero().get())
}

/// The processes below this one that run.
pub(super) fn below() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in all() {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut todo) = (Vec::new(), vec![std::process::id() as i32]);
    while let Some(next) = todo.pop().map(|pid| children.remove(&pid).unwrap_or_default()) {
        todo.extend(&next);
        found.extend(next.into_iter().filter_map(Pid::from_raw));
    }
    found
}
