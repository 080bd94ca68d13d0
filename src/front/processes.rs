//! Who started whom, as `/proc` tells it.

use rustix::process::Pid;
use std::collections::BTreeMap;
use std::fs;

/// The process above one that runs.
fn parent_of(pid: i32) -> Option<i32> {
    // `PID (NAME) STATE PARENT ...`, where a name may have brackets of its own.
    let told = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = told.rsplit(')').next()?.split_whitespace();
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    fields.next()?.parse().ok()
}

/// Whether a process started this one, or one above it.
pub(super) fn is_above(pid: Pid) -> bool {
    let own = i32::try_from(std::process::id()).ok();
    std::iter::successors(own, |pid| parent_of(*pid)).any(|above| above == pid.as_raw_nonzero().get())
}

/// The processes below this one that run.
pub(super) fn below() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
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
