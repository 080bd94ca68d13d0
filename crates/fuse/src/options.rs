//! The mount options of the FUSE front: the table they are listed from, and their meaning.

use super::mount::SUBTYPE;
pub use bimetal_base::options::OptionSpec;
use bimetal_base::{Error, Result};
use serde::Serialize;

const fn switch(name: &'static str, default: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec { name, value: None, default, help }
}

/// Every option the front itself understands; file systems add their own.
pub const OPTIONS: &[OptionSpec] = &[
    switch("ro", "rw", "refuse every change"),
    switch("rw", "rw", "allow changes"),
    switch(
        "root_only",
        "off",
        "only root may use the mount, and nothing checks permissions: creating, renaming and removing is a fifth faster",
    ),
    switch("allow_other", "on for root", "others than the one who mounted may use the mount"),
    switch("default_permissions", "on", "the kernel checks permissions and access control lists"),
    switch(
        "writeback",
        "off",
        "the kernel gathers small writes: many times faster for programs that keep files open, slower for small files; that the disk is full is \
         said by fsync only",
    ),
    switch("nosuid", "suid for root", "set-user-ID and set-group-ID bits have no effect"),
    switch("suid", "suid for root", "set-user-ID and set-group-ID bits have their effect"),
    switch("nodev", "dev for root", "device files cannot be opened"),
    switch("dev", "dev for root", "device files can be opened"),
    switch("noexec", "exec", "no file can be executed"),
    switch("exec", "exec", "files can be executed"),
    switch("noatime", "relatime", "reading leaves access times alone"),
    switch(
        "relatime",
        "relatime",
        "reading renews an access time that is not after the file's other times, or a day old",
    ),
    switch("strictatime", "relatime", "every read that the kernel asks for renews the access time"),
    switch("nodiratime", "off", "reading a directory leaves its access time alone"),
    switch("nofollow", "off", "the serving threads do not move to their clients' processor"),
    OptionSpec {
        name: "threads",
        value: Some("N"),
        default: "2",
        help: "threads that serve: all but one may wait for devices, at no cost to others",
    },
    OptionSpec {
        name: "fsname",
        value: Some("NAME"),
        default: "the device or file",
        help: "what `mount` and `df` show as the source",
    },
];

/// Which reads renew access times, as mount(8) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Atime {
    /// `noatime`.
    Never,
    /// `relatime`.
    Relative,
    /// `strictatime`.
    Always,
}

/// How to mount.
#[derive(Clone, Debug, Serialize)]
pub struct MountOptions {
    /// Refuse changes.
    pub read_only: bool,
    /// Let others than the one who mounts use it.
    pub allow_other: bool,
    /// Let the kernel check permissions.
    pub default_permissions: bool,
    /// Let the kernel gather writes.
    pub writeback: bool,
    /// Honour set-ID bits.
    pub suid: bool,
    /// Let device files be opened.
    pub dev: bool,
    /// Let files be executed.
    pub exec: bool,
    /// Which reads renew access times.
    pub atime: Atime,
    /// Directories have access times, too.
    pub diratime: bool,
    /// Move the serving threads to their clients' processor.
    pub follow: bool,
    /// Threads that serve.
    pub threads: usize,
    /// The source that `mount` shows.
    pub fsname: String,
    /// The type that the kernel shows, as `fuse.` and this.
    #[serde(skip)]
    pub subtype: &'static str,
}

impl MountOptions {
    /// The defaults: for root everyone may use the mount and the kernel checks permissions; for anyone else
    /// only they may, set-ID bits and devices have no effect.
    pub fn new(for_root: bool) -> Self {
        MountOptions {
            read_only: false,
            allow_other: for_root,
            default_permissions: true,
            writeback: false,
            suid: for_root,
            dev: for_root,
            exec: true,
            atime: Atime::Relative,
            diratime: true,
            follow: true,
            threads: 2,
            fsname: "bimetal".into(),
            subtype: SUBTYPE,
        }
    }

    /// [`new`](Self::new) for whoever runs this.
    pub fn for_me() -> Self {
        Self::new(rustix::process::geteuid().is_root())
    }

    /// The fastest way to serve root alone: see `root_only`.
    pub fn root_only(mut self) -> Self {
        self.allow_other = false;
        self.default_permissions = false;
        self
    }

    /// The options about access times, for a file system that keeps them itself: the kernel leaves that to it.
    pub fn access_times(&self) -> Vec<String> {
        let renew = match self.atime {
            Atime::Never => "noatime",
            Atime::Relative => "relatime",
            Atime::Always => "strictatime",
        };
        let dirs = (!self.diratime).then_some("nodiratime");
        std::iter::once(renew).chain(dirs).map(String::from).collect()
    }

    /// Takes in one option, `name` or `name=value`; `false` if it is not one of [`OPTIONS`].
    pub fn apply(&mut self, option: &str) -> Result<bool> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let Some(spec) = OPTIONS.iter().find(|spec| spec.name == name) else { return Ok(false) };
        match (spec.value, value) {
            (Some(wanted), None) => {
                return Err(Error::invalid(format!("mount option {name} needs a value: {name}={wanted}")));
            }
            (Some(wanted), Some("")) => {
                return Err(Error::invalid(format!(
                    "mount option {name} has an empty value: {name}={wanted}"
                )));
            }
            (None, Some(_)) => return Err(Error::invalid(format!("mount option {name} takes no value"))),
            _ => {}
        }
        self.set(name, value.unwrap_or_default())?;
        Ok(true)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "ro" | "rw" => self.read_only = name == "ro",
            "root_only" => *self = self.clone().root_only(),
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.default_permissions = true,
            "writeback" => self.writeback = true,
            "suid" | "nosuid" => self.suid = name == "suid",
            "dev" | "nodev" => self.dev = name == "dev",
            "exec" | "noexec" => self.exec = name == "exec",
            "noatime" => self.atime = Atime::Never,
            "relatime" => self.atime = Atime::Relative,
            "strictatime" => self.atime = Atime::Always,
            "nodiratime" => self.diratime = false,
            "nofollow" => self.follow = false,
            "fsname" => self.fsname = value.into(),
            "threads" => {
                let count = value.parse().ok().filter(|count| (1..=64).contains(count));
                self.threads = count.ok_or_else(|| {
                    Error::invalid(format!("mount option threads: '{value}' is not a number from 1 to 64"))
                })?;
            }
            _ => unreachable!("every option of the table has a meaning"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_option_has_a_meaning() {
        for spec in OPTIONS {
            let text = spec.value.map_or(spec.name.to_string(), |_| format!("{}=8", spec.name));
            assert!(MountOptions::new(true).apply(&text).unwrap(), "{text}");
        }
    }

    #[test]
    fn a_wrong_value_names_the_option_and_what_it_takes() {
        let mut options = MountOptions::new(true);
        for (text, part) in
            [("threads", "threads=N"), ("ro=1", "no value"), ("threads=0", "1 to 64"), ("fsname=", "fsname=")]
        {
            assert!(options.apply(text).unwrap_err().to_string().contains(part), "{text}");
        }
        assert!(!options.apply("lag=5s").unwrap());
    }

    #[test]
    fn the_last_word_about_access_times_counts() {
        let mut options = MountOptions::new(true);
        assert_eq!(options.access_times(), ["relatime"]);
        for text in ["noatime", "strictatime", "nodiratime"] {
            assert!(options.apply(text).unwrap());
        }
        assert_eq!(options.access_times(), ["strictatime", "nodiratime"]);
    }

    #[test]
    fn root_only_turns_both_checks_off_and_others_start_safe() {
        let root = MountOptions::new(true).root_only();
        assert!(!root.allow_other && !root.default_permissions);
        let other = MountOptions::new(false);
        assert!(other.default_permissions && !other.allow_other && !other.suid && !other.dev);
    }
}
