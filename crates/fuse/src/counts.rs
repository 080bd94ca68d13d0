//! How many requests of each kind a mount served: the first thing to look at when a program is slow.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! kinds {
    ($($kind:ident $name:literal,)*) => {
        /// The kinds of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Op { $(#[doc = $name] $kind,)* }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

kinds! {
    Lookup "lookup",
    Forget "forget",
    Getattr "getattr",
    Setattr "setattr",
    Readlink "readlink",
    Create "create",
    Mknod "mknod",
    Mkdir "mkdir",
    Symlink "symlink",
    Unlink "unlink",
    Rmdir "rmdir",
    Rename "rename",
    Link "link",
    Read "read",
    Write "write",
    Release "release",
    Fsync "fsync",
    Readdir "readdir",
    Readdirplus "readdirplus",
    Statfs "statfs",
    Getxattr "getxattr",
    Setxattr "setxattr",
    Listxattr "listxattr",
    Removexattr "removexattr",
    Fallocate "fallocate",
    Lseek "lseek",
    Other "other",
}

impl Op {
    /// The name in reports and logs.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// One number a kind.
#[derive(Debug)]
pub(super) struct Counts {
    counts: [AtomicU64; NAMES.len()],
    /// Bytes that programs wrote through the mount.
    pub written_bytes: AtomicU64,
    /// Requests whose answer had to wait for a device.
    pub waited: AtomicU64,
    /// Requests that met a bug.
    pub panics: AtomicU64,
}

impl Counts {
    pub fn new() -> Self {
        let counts = [const { AtomicU64::new(0) }; NAMES.len()];
        let zero = || AtomicU64::new(0);
        Counts { counts, written_bytes: zero(), waited: zero(), panics: zero() }
    }

    pub fn add(&self, op: Op) {
        self.counts[op as usize].fetch_add(1, Relaxed);
    }

    /// The numbers that are not zero, by name.
    pub fn show(&self) -> serde_json::Map<String, serde_json::Value> {
        let counted = NAMES.iter().zip(&self.counts).map(|(name, count)| (*name, count.load(Relaxed)));
        counted
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.to_string(), count.into()))
            .collect()
    }
}
