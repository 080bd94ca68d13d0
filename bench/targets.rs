//! The file systems that are measured, each mounted once for all rounds.

use crate::Options;
use crate::media::{BIMETAL, Disk, DiskKind, Loop, command, ssd_image, text};
use crate::meter::{self, Meters};
use std::fs;
use std::path::{Path, PathBuf};

/// All targets, in the order of the report; those that end in `-disk` need a disk that is no image.
pub const ALL: &str = "memfs-root,memfs,ext2,ext4,xfs,ext2-disk,ext4-disk,xfs-disk,nfhybrid-root,nfhybrid";

/// Where images are made.
#[derive(Clone, Copy, Debug)]
pub struct Homes<'a> {
    /// The mount points, the SSDs, and disks that are images like them.
    pub all: &'a Path,
    /// The images of disks: in memory where the disk is simulated, so that its time is the model's, and what the host
    /// writes for it does not delay the SSDs, which are on the host's own disk.
    pub disks: &'a Path,
}

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
    /// What the kernel's file systems lie on, and whether that is the disk. In the order they have to go.
    device: Option<(Loop, bool)>,
    _disk: Option<Disk>,
    _ssd: Option<Loop>,
}

/// The options of a target, by its name, and more.
fn mount_options(name: &str, more: Option<&str>) -> String {
    let mode = if name.ends_with("-root") { "root_only" } else { "rw" };
    [Some(mode), more].into_iter().flatten().collect::<Vec<_>>().join(",")
}

impl Target {
    /// Makes and mounts the file system `name` below its homes.
    pub fn set_up(name: &str, homes: Homes<'_>, options: &Options) -> Result<Target, String> {
        let path = homes.all.join(name);
        fs::create_dir(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        let place = text(&path)?.to_string();
        let mut target = Target {
            name: name.into(),
            path,
            server: None,
            ours: false,
            device: None,
            _disk: None,
            _ssd: None,
        };
        match name {
            "memfs-root" | "memfs" => {
                let options = mount_options(name, Some("prealloc=1GiB,size=8GiB"));
                command(BIMETAL, &["mount", "-t", "memfs", "-o", &options, &place])?;
            }
            "nfhybrid-root" | "nfhybrid" => target.nfhybrid(&place, homes, options)?,
            _ => target.kernel(homes, &place, options.disk)?,
        }
        target.ours = true;
        target.server = server_of(&target.path);
        Ok(target)
    }

    /// What someone else mounted, `NAME=DIR`.
    pub fn mounted(text: &str) -> Result<Target, String> {
        let (name, path) = text.split_once('=').ok_or_else(|| format!("'{text}' is not NAME=DIR"))?;
        let server = server_of(Path::new(path));
        Ok(Target {
            name: name.into(),
            path: path.into(),
            server,
            ours: false,
            device: None,
            _disk: None,
            _ssd: None,
        })
    }

    /// Waits until what earlier work left to be written is written, so that the next is not measured with it.
    pub fn settle(&self) {
        let behind = || {
            let status = meter::status(&self.path)?;
            Some(status["operations"][0] != status["operations"][1])
        };
        for _ in 0..300 {
            if self.server.is_none() || behind() != Some(true) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        rustix::fs::sync();
    }

    /// All its counters now.
    pub fn meters(&self) -> Meters {
        if let Some((device, is_disk)) = &self.device {
            let usage = meter::of_block_device(&device.stat());
            let (ssd, disk) = if *is_disk { (None, usage) } else { (usage, None) };
            return Meters { ssd, disk, ..Meters::default() };
        }
        match (self.server, meter::status(&self.path)) {
            (Some(server), Some(status)) => meter::of_status(&status, server),
            _ => Meters::default(),
        }
    }

    fn nfhybrid(&mut self, place: &str, homes: Homes<'_>, options: &Options) -> Result<(), String> {
        let ssd = self.path.with_extension("ssd");
        ssd_image(&ssd)?;
        // Made on the image: a simulated disk would take its time for nothing.
        let image = homes.disks.join(format!("{}.img", self.name));
        let disk = Disk::image(options.disk, &image)?;
        let halves = ["--ssd", text(&ssd)?, "--disk", text(&disk.path)?];
        command(BIMETAL, &[&["mkfs", "nfhybrid", "--force"], &halves[..]].concat())?;
        let disk = Disk::over(options.disk, &image)?;
        // A block device, as the file systems of the kernel have one, and as users do.
        let device = Loop::new(&ssd, false)?;
        let halves = ["--ssd", &device.path, "--disk", text(&disk.path)?];
        let mount = mount_options(&self.name, options.nfhybrid_options.as_deref());
        command(BIMETAL, &[&["mount"], &halves[..], &["-o", &mount, place]].concat())?;
        (self._disk, self._ssd) = (Some(disk), Some(device));
        Ok(())
    }

    fn kernel(&mut self, homes: Homes<'_>, place: &str, disk: DiskKind) -> Result<(), String> {
        let kind = self.name.trim_end_matches("-disk").to_string();
        let flags: &[&str] = match kind.as_str() {
            "ext2" => &["-qF", "-E", "lazy_itable_init=0"],
            "ext4" => &["-qF", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            "xfs" => &["-qf"],
            _ => return Err("there is no such target".into()),
        };
        let on_disk = self.name.ends_with("-disk");
        let home = if on_disk { homes.disks } else { homes.all };
        let image = home.join(format!("{}.img", self.name));
        if on_disk && disk == DiskKind::Image {
            return Err("the disk is an image in this run, as the SSD is".into());
        }
        match on_disk {
            true => drop(Disk::image(disk, &image)?),
            false => ssd_image(&image)?,
        }
        command(&format!("mkfs.{kind}"), &[flags, &[text(&image)?]].concat())?;
        let device = if on_disk {
            let disk = Disk::over(disk, &image)?;
            let device = Loop::new(&disk.path, true)?;
            self._disk = Some(disk);
            device
        } else {
            Loop::new(&image, false)?
        };
        command("mount", &["-t", &kind, &device.path, place])?;
        self.device = Some((device, on_disk));
        Ok(())
    }
}

fn server_of(place: &Path) -> Option<u32> {
    u32::try_from(meter::status(place)?["front"]["pid"].as_u64()?).ok()
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
