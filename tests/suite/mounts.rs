//! Mounts for tests: made by the real command, taken away whatever happens.

use crate::guard::err;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The command under test.
pub fn bimetal() -> Command {
    Command::new(env!("CARGO_BIN_EXE_bimetal"))
}

/// Copies the command under test. Another program does it: what another test's thread is about to run would hold a file of ours
/// open for writing from its fork until its exec, and nobody could run it meanwhile.
pub fn copy_program(to: &Path) {
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_bimetal")).arg(to).status().unwrap().success());
}

/// Runs a command that unmounts, again for some seconds while the place is in use: what another test's thread is about to run
/// holds this test's files open from its fork until its exec.
pub fn once_free(command: &mut Command) -> Output {
    let mut run = || command.output().expect("the command runs");
    let is_busy = |done: &Output| !done.status.success() && err(done).contains("busy");
    for _ in 0..200 {
        let done = run();
        if !is_busy(&done) {
            return done;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    run()
}

/// Leaves the test with a message where there is no FUSE.
macro_rules! need_fuse {
    () => {
        if let Some(why) = $crate::mounts::no_fuse() {
            return $crate::mounts::skip(&why);
        }
    };
}
pub(crate) use need_fuse;

/// Why FUSE cannot be used here, if it cannot.
pub fn no_fuse() -> Option<String> {
    match fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) if rustix::process::geteuid().is_root() => None,
        Ok(_) => Some("not root".into()),
        Err(why) => Some(format!("/dev/fuse: {why}")),
    }
}

/// Says that a test does nothing, and why.
pub fn skip(why: &str) {
    println!("skipped: {why}");
}

/// A mount in a directory of its own.
pub struct Mounted {
    home: TempDir,
    place: PathBuf,
}

impl Mounted {
    /// Mounts with the given arguments of `bimetal mount`.
    pub fn new(args: &[&str]) -> Mounted {
        let home = tempfile::tempdir().expect("a temporary directory");
        let place = home.path().join("mnt");
        fs::create_dir(&place).expect("a mount point");
        let mounted = bimetal().arg("mount").args(args).arg(&place).output().expect("the command runs");
        assert!(mounted.status.success(), "mount {args:?}: {}", String::from_utf8_lossy(&mounted.stderr));
        Mounted { home, place }
    }

    /// An empty memfs with these mount options.
    pub fn memfs(options: &str) -> Mounted {
        Mounted::new(&["-t", "memfs", "-o", options])
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.place
    }

    /// A directory beside the mount, on the host.
    pub fn scratch(&self) -> &Path {
        self.home.path()
    }

    /// The status, as the command shows it.
    pub fn status(&self) -> serde_json::Value {
        let shown = bimetal().args(["status", "--json"]).arg(&self.place).output().expect("the command runs");
        serde_json::from_slice(&shown.stdout).expect("a status")
    }

    /// Unmounts, and waits for the server to end.
    pub fn unmount(&self) -> Output {
        once_free(bimetal().arg("umount").arg(&self.place))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.unmount().status.success() {
            // Not mounted any more, or in use by something that a failed test left behind.
            let _ = Command::new("umount").args(["-q", "-f", "-l"]).arg(&self.place).status();
        }
    }
}
