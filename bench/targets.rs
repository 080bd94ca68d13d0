//! The file systems that are measured, each mounted once for all rounds.

use crate::Options;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const IMAGE_BYTES: u64 = 3 << 30;
const SSD_BYTES: u64 = 1 << 30;
const BIMETAL: &str = env!("CARGO_BIN_EXE_bimetal");

/// A mounted file system; dropping it unmounts what was mounted for it.
#[derive(Debug)]
pub struct Target {
    /// Its name in the report.
    pub name: String,
    /// Where it is mounted.
    pub path: PathBuf,
    /// The process that serves it, if one does.
    pub server: Option<u32>,
    ours: bool,
}

fn command(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|why| format!("{program}: {why}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
    }
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

/// An image with all its blocks on the host, so that no run pays for their allocation.
fn image(path: &Path, bytes: u64) -> Result<(), String> {
    let file = File::create(path).map_err(|why| format!("{}: {why}", path.display()))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
        .map_err(|why| format!("an image: {why}"))
}

/// The options of a target, by its name, and more.
fn mount_options(name: &str, more: Option<&str>) -> String {
    let mode = if name.ends_with("-root") { "root_only" } else { "rw" };
    [Some(mode), more].into_iter().flatten().collect::<Vec<_>>().join(",")
}

impl Target {
    /// Makes and mounts the file system `name` below `home`.
    pub fn set_up(name: &str, home: &Path, options: &Options) -> Result<Target, String> {
        let path = home.join(name);
        fs::create_dir(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        let place = text(&path)?;
        match name {
            "memfs-root" | "memfs" => {
                let options = mount_options(name, Some("prealloc=1GiB,size=8GiB"));
                Self::bimetal(&["mount", "-t", "memfs", "-o", &options, place])?;
            }
            "nfhybrid-root" | "nfhybrid" => {
                Self::nfhybrid(&path, &mount_options(name, options.nfhybrid_options.as_deref()))?;
            }
            "ext2" | "ext4" | "xfs" => Self::kernel(name, home, place)?,
            _ => return Err("there is no such target".into()),
        }
        let server = server_of(place);
        Ok(Target { name: name.into(), path, server, ours: true })
    }

    /// What someone else mounted, `NAME=DIR`.
    pub fn mounted(text: &str) -> Result<Target, String> {
        let (name, path) = text.split_once('=').ok_or_else(|| format!("'{text}' is not NAME=DIR"))?;
        Ok(Target { name: name.into(), path: path.into(), server: server_of(path), ours: false })
    }

    /// Waits until what earlier work left to be written is written, so that the next is not measured with it.
    pub fn settle(&self) {
        let behind = || {
            let status = command(BIMETAL, &["status", "--json", &self.path.to_string_lossy()]).ok()?;
            let status: serde_json::Value = serde_json::from_str(&status).ok()?;
            Some(status["operations"][0] != status["operations"][1])
        };
        for _ in 0..100 {
            if self.server.is_none() || behind() != Some(true) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        rustix::fs::sync();
    }

    fn bimetal(args: &[&str]) -> Result<(), String> {
        command(BIMETAL, args).map(drop)
    }

    fn nfhybrid(place: &Path, options: &str) -> Result<(), String> {
        let (ssd, disk) = (place.with_extension("ssd"), place.with_extension("disk"));
        image(&ssd, SSD_BYTES)?;
        image(&disk, IMAGE_BYTES)?;
        let halves = ["--ssd", text(&ssd)?, "--disk", text(&disk)?];
        Self::bimetal(&[&["mkfs", "nfhybrid", "--force"], &halves[..]].concat())?;
        Self::bimetal(&[&["mount"], &halves[..], &["-o", options, text(place)?]].concat())
    }

    fn kernel(kind: &str, home: &Path, place: &str) -> Result<(), String> {
        let file = home.join(format!("{kind}.img"));
        image(&file, IMAGE_BYTES)?;
        let file = text(&file)?;
        let quiet = if kind == "xfs" { "-q" } else { "-qF" };
        command(&format!("mkfs.{kind}"), &[quiet, file])?;
        command("mount", &["-t", kind, "-o", "loop", file, place]).map(drop)
    }
}

fn server_of(place: &str) -> Option<u32> {
    let status = command(BIMETAL, &["status", "--json", place]).ok()?;
    let status: serde_json::Value = serde_json::from_str(&status).ok()?;
    u32::try_from(status["front"]["pid"].as_u64()?).ok()
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        let place = self.path.to_string_lossy();
        let ended = match self.server {
            Some(_) => command(BIMETAL, &["umount", &place]),
            None => command("umount", &[&place]),
        };
        if let Err(why) = ended {
            eprintln!("{}: {why}", self.name);
        }
    }
}
