//! `bimetal mount`: a file system becomes a directory.

use crate::front::daemon::{self, Messages, Side};
use crate::front::fuse::{Mount, MountOptions, OPTIONS, Place, Unmount, Unmounter};
use crate::front::kinds::volume::{self, Access, VolumeArgs};
use crate::front::memory::preallocate;
use crate::front::signals;
use crate::front::stack::args::StackArgs;
use crate::fs::FileSystem;
use crate::options::nearest;
use crate::{Error, Result};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  bimetal mount --ssd ssd.img --disk disk.img /mnt
  bimetal mount --disk disk.img /mnt                    the SSD is lost: from the disk alone
  bimetal mount --without-ssd --disk disk.img /mnt      the same after a crash; drops what only the SSD's log holds
  bimetal mount --stack hybrid.toml /mnt                what the file says: devices, options, page cache
  bimetal mount -t memfs -o size=1GiB,root_only /mnt
`bimetal list mount-option` shows what -o takes.";

/// Mount a file system on a directory
///
/// Returns when the mount works, and leaves a server in the background; if it cannot be mounted, it says why and
/// ends with 1. The mount ends by `bimetal umount`, `umount`, or a SIGTERM to the server.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct MountVerb {
    #[command(flatten)]
    volume: VolumeArgs,
    #[command(flatten)]
    stack: StackArgs,
    /// Mount options
    #[arg(short = 'o', long = "options", value_name = "OPTION[=VALUE]", value_delimiter = ',')]
    options: Vec<String>,
    /// Serve from this process, with messages to standard error, until the mount ends
    #[arg(short, long)]
    foreground: bool,
    /// Append the server's messages to this file; without it those of a server in the background go to the system's log (syslog,
    /// the journal)
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    log: Option<PathBuf>,
    /// The directory to mount on
    mountpoint: PathBuf,
}

/// Options of mount(8) that promise what is not kept here, and what keeps it.
const NOT_KEPT: [(&str, &str); 2] = [
    (
        "sync",
        "not every change is written through to a medium here; programs ask for it with fsync or O_SYNC",
    ),
    ("dirsync", "changes of directories are not written through here; an fsync of the directory does it"),
];

/// The mount option that passes over those that there are not: what `mount -s` becomes.
pub(super) const SLOPPY: &str = "sloppy";

/// Options of ext4's, which a line of fstab has from before the disk half was one (mount(8), ext4(5)).
const OF_EXT4: [&str; 50] = [
    "abort",
    "acl",
    "auto_da_alloc",
    "barrier",
    "block_validity",
    "bsddf",
    "bsdgroups",
    "commit",
    "data",
    "data_err",
    "dax",
    "debug",
    "delalloc",
    "dioread_lock",
    "dioread_nolock",
    "discard",
    "errors",
    "grpid",
    "grpjquota",
    "i_version",
    "init_itable",
    "inode_readahead_blks",
    "inlinecrypt",
    "journal_async_commit",
    "journal_checksum",
    "journal_dev",
    "journal_ioprio",
    "journal_path",
    "max_batch_time",
    "max_dir_size_kb",
    "mb_optimize_scan",
    "min_batch_time",
    "minixdf",
    "noload",
    "nombcache",
    "nouid32",
    "oldalloc",
    "norecovery",
    "orlov",
    "prjquota",
    "quota",
    "resgid",
    "resuid",
    "sb",
    "stripe",
    "sysvgroups",
    "user_xattr",
    "usrjquota",
    "usrquota",
    "grpquota",
];

/// The refusal of a mount option that is none of those there are.
pub(super) fn strange<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Error {
    let positive = name.strip_prefix("no").unwrap_or(name);
    if OF_EXT4.iter().any(|option| *option == name || *option == positive) {
        return Error::invalid(format!(
            "mount option {name}: it is an option of ext4's, which says nothing here, though the disk half is one; leave it out"
        ));
    }
    Error::invalid(match nearest(name, known.clone()) {
        Some(near) => {
            format!(
                "mount option {name}: there is none; did you mean {near}? `bimetal list mount-option` shows all"
            )
        }
        None => {
            let known = known.collect::<Vec<_>>().join(", ");
            format!("mount option {name}: there is none; there are {known}")
        }
    })
}

impl MountVerb {
    pub fn run(mut self) -> Result<ExitCode> {
        if let Some(stack) = self.stack.one()? {
            let options = super::stack::to_mount(&stack, &mut self.volume)?;
            // What the command line says comes later, and so counts.
            self.options.splice(0..0, options);
        }
        check_place(&self.mountpoint)?;
        let (front, own) = self.sort_options()?;
        if self.foreground {
            self.start(&front, &own).map_err(|why| self.volume.misnamed(why))?.wait()?;
            return Ok(ExitCode::SUCCESS);
        }
        match daemon::split()? {
            Side::Parent(child) => child.wait()?,
            Side::Child(parent) => match self.start_in_background(&front, &own) {
                Err(why) => parent.failed(&why),
                Ok((mount, messages)) => {
                    let (place, source) = (self.mountpoint.display(), &front.fsname);
                    tracing::info!("{source} is mounted on {place}");
                    parent.ready(messages)?;
                    if let Err(why) = mount.wait() {
                        tracing::error!("{source} is not mounted on {place} any more, and {why}");
                        return Ok(ExitCode::FAILURE);
                    }
                    tracing::info!("{source} is not mounted on {place} any more; everything is written");
                }
            },
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What of `-o` is the front's, and what the file system's.
    fn sort_options(&self) -> Result<(MountOptions, Vec<String>)> {
        let mut front = MountOptions::for_me();
        front.fsname = self.volume.source();
        let kind = self.volume.kind()?;
        let options = kind.options;
        let mut own = Vec::new();
        let given = joined_lists(&self.options);
        let is_sloppy = given.iter().any(|option| option == SLOPPY);
        for option in given.iter().filter(|option| *option != SLOPPY) {
            let name = option.split_once('=').map_or(option.as_str(), |(name, _)| name);
            let is_front = front.apply(option)?;
            let is_own = options.iter().any(|spec| spec.name == name);
            if let Some((_, why)) = NOT_KEPT.iter().find(|(not_kept, _)| *not_kept == name) {
                return Err(Error::invalid(format!("mount option {name}: {why}; leave it out")));
            }
            if !is_front && !is_own && !is_sloppy {
                return Err(strange(name, OPTIONS.iter().chain(options).map(|spec| spec.name)));
            }
            if is_own {
                own.push(option.clone());
            }
        }
        if kind.access_times {
            own.extend(front.access_times());
        }
        Ok((front, own))
    }

    fn start_in_background(&self, front: &MountOptions, own: &[String]) -> Result<(Mount, Messages)> {
        let messages = Messages::open(self.log.as_deref())?;
        match self.start(front, own) {
            Ok(mount) => Ok((mount, messages)),
            Err(why) => {
                messages.take_back();
                // Its place was given back by then.
                Err(self.volume.misnamed(why))
            }
        }
    }

    /// All that can refuse a mount comes before the volume is written to: the volume is looked at and its recovery tried
    /// in memory, then the kernel mounts, then the volume is opened, then served.
    fn start(&self, front: &MountOptions, own: &[String]) -> Result<Mount> {
        let signals = signals::hold()?;
        let access = if front.read_only { Access::Read } else { Access::Write };
        let prepared = volume::prepare(&self.volume, access, own)?;
        if access == Access::Write {
            preallocate(usize::try_from(prepared.memory_ahead()).unwrap_or(usize::MAX));
        }
        let place = Place::take(&self.mountpoint, front)?;
        let (fs, devices) = prepared.begin()?;
        let fs: Arc<dyn FileSystem> = fs.into();
        let mount = place.serve(devices, fs.clone()).inspect_err(|_| {
            // It was opened for nothing; what it says about closing matters less than why.
            let _ = fs.shutdown();
        })?;
        let unmounter = mount.unmounter();
        let place = mount.mountpoint().to_path_buf();
        let mut before = false;
        signals.watch(move |signal| {
            end_on_signal(signal, &place, &unmounter, &*fs, before);
            before = true;
        })?;
        Ok(mount)
    }
}

/// `-o lag=5s,64MiB` comes apart at its comma: a size or a time by itself belongs to the option before it. No option begins with a
/// digit, and empty members of a list are none.
pub(super) fn joined_lists(options: &[String]) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for option in options.iter().filter(|option| !option.is_empty()) {
        match joined.last_mut() {
            Some(last)
                if last.starts_with("lag=") && option.starts_with(|first: char| first.is_ascii_digit()) =>
            {
                *last = format!("{last},{option}");
            }
            _ => joined.push(option.clone()),
        }
    }
    joined
}

/// The first signal takes the mount away and leaves those who still use it their time; the next one ends at once,
/// with everything written out. Where nobody is served any more, that is being done, and whoever waits is told how it went.
fn end_on_signal(signal: &str, place: &Path, unmounter: &Unmounter, fs: &dyn FileSystem, again: bool) {
    let place = place.display();
    if !unmounter.is_alive() {
        tracing::info!("{signal}: {place} is unmounted already; this ends when everything is written out");
        return;
    }
    if again {
        tracing::warn!("{signal} again: leaving programs that still use {place}");
        let synced = fs.sync();
        if let Err(why) = &synced {
            tracing::error!("writing everything out: {why}");
        }
        std::process::exit(1);
    }
    tracing::info!("{signal}: unmounting {place}");
    if unmounter.unmount(Unmount::IfIdle).is_ok() {
        return;
    }
    tracing::warn!("{place} is in use; it goes when its users end, or at the next signal");
    let detached = unmounter.unmount(Unmount::Lazily).and_then(|()| fs.sync());
    if let Err(why) = detached {
        tracing::error!("unmounting {place}: {why}");
    }
}

/// Refuses the root of all, which a mount would cover with whatever is in it.
fn check_place(place: &Path) -> Result<()> {
    match place.canonicalize() {
        Ok(whole) if whole.parent().is_none() => Err(Error::invalid(format!(
            "{}: a mount there would cover everything; name a directory below /",
            place.display()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_mounted_over_the_root_of_all() {
        for place in ["/", "/..", "/proc/.."] {
            let why = check_place(Path::new(place)).unwrap_err().to_string();
            assert!(why.contains("would cover everything"), "{place}: {why}");
        }
        check_place(Path::new("/tmp")).unwrap();
        check_place(Path::new("/nonexistent")).unwrap();
    }

    #[test]
    fn a_size_or_a_time_after_lag_belongs_to_it_and_empty_members_of_a_list_are_none() {
        for (given, joined) in [
            ("lag=5s,64MiB,ro", &["lag=5s,64MiB", "ro"][..]),
            ("lag=64MiB,5s", &["lag=64MiB,5s"]),
            ("lag=20s,", &["lag=20s"]),
            (",ro,,lag=1s,,2MiB,", &["ro", "lag=1s,2MiB"]),
            ("", &[]),
        ] {
            let members: Vec<String> = given.split(',').map(String::from).collect();
            assert_eq!(joined_lists(&members), joined, "{given}");
        }
    }
}
