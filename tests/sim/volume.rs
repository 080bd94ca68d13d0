//! The volumes that stories are about: made once by mke2fs and joined, each story on an overlay of its own; and a mount's
//! devices, with service times, faults and the power between.

use bimetal::Error;
use bimetal::fs::nfhybrid::{NfHybrid, Options, ssd, volume};
use bimetal::media::BlockDevice;
use bimetal::media::crash::Power;
use bimetal::media::faulty::{Effect, Faulty, Kind as Request, When};
use bimetal::media::overlay::Overlay;
use bimetal::media::ram::Ram;
use bimetal::media::states::Survival;
use bimetal::media::timed::{Service, Timed};
use bimetal::random::Random;
use bimetal::runtime::Clock;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The halves as they are before the first mount.
pub struct Base {
    pub disk: Arc<dyn BlockDevice>,
    pub ssd: Arc<dyn BlockDevice>,
}

/// Lag that the devices of these stories can hold: a commit takes them a part of it.
pub const LAG_HELD: Duration = Duration::from_millis(500);

/// Geometries: options of mke2fs, the SSD half's log and size in KiB, the disk's size in MiB.
pub const GEOMETRIES: [(&[&str], u64, u64, u64); 8] = [
    (&["-b", "4096"], 128, 6 << 10, 32),
    (&["-b", "1024", "-J", "size=2"], 256, 4 << 10, 32),
    (&["-b", "4096"], 1024, 12 << 10, 32),
    // A log of 64 KiB, a tiny SSD, full disks.
    (&["-b", "4096"], 64, 4 << 10, 32),
    (&["-b", "1024", "-J", "size=1"], 64, 2 << 10, 32),
    (&["-b", "1024", "-J", "size=1", "-m", "0"], 64, 4 << 10, 4),
    (&["-b", "4096", "-J", "size=4", "-m", "0"], 128, 2 << 10, 12),
    (&["-b", "2048", "-J", "size=2", "-I", "128", "-O", "^64bit"], 256, 3 << 10, 32),
];

pub fn bases() -> &'static Option<Vec<Base>> {
    static BASES: OnceLock<Option<Vec<Base>>> = OnceLock::new();
    BASES.get_or_init(|| {
        GEOMETRIES.iter().map(|(options, log, ssd, disk)| base(options, *log, *ssd, *disk)).collect()
    })
}

/// `None` where mke2fs is missing.
pub fn base(options: &[&str], log_kib: u64, ssd_kib: u64, disk_mib: u64) -> Option<Base> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(disk_mib << 20).unwrap();
    let fixed = ["-q", "-t", "ext4", "-F", "-U", "01234567-89ab-cdef-0123-456789abcdef", "-E"];
    let hash = "hash_seed=01234567-89ab-cdef-0123-456789abcdef";
    let made = Command::new("/usr/sbin/mke2fs").args(fixed).arg(hash).args(options).arg(file.path()).status();
    if !made.is_ok_and(|status| status.success()) {
        return None;
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", ssd_kib << 10));
    let section =
        |name: &str, extent_bytes| ssd::SectionConfig { name: name.into(), extent_bytes, size_bytes: None };
    let config = ssd::Config {
        sections: vec![section("small", 16 << 10), section("large", 64 << 10)],
        log_bytes: log_kib << 10,
        ..ssd::Config::default()
    };
    volume::join_devices(disk.clone(), ssd.clone(), &config)
        .unwrap_or_else(|error| panic!("{options:?}: {error}"));
    Some(Base { disk, ssd })
}

/// The halves of one story, and what goes on around them.
pub struct Halves {
    pub disk: Arc<Overlay>,
    pub ssd: Arc<Overlay>,
}

/// A mount's devices.
pub struct Rig {
    pub power: Arc<Power>,
    pub disk: Arc<Faulty>,
    pub ssd: Arc<Faulty>,
    pub timed: [Arc<dyn BlockDevice>; 2],
}

impl Halves {
    pub fn rig(&self, clock: &Clock, random: &mut Random, cut_after: Option<u64>) -> Rig {
        let rule = Survival::EVERY[random.below(4) as usize];
        let power = Power::new(cut_after, rule, random.next());
        let disk = Arc::new(Faulty::new(Arc::new(power.wrap(self.disk.clone()))));
        let ssd = Arc::new(Faulty::new(Arc::new(power.wrap(self.ssd.clone()))));
        let name = |half: &str, random: &mut Random| format!("{half} {}", random.next());
        let timed: [Arc<dyn BlockDevice>; 2] = [
            Arc::new(Timed::drawn(clock.clone(), disk.clone(), Service::DISK, &name("disk", random))),
            Arc::new(Timed::drawn(clock.clone(), ssd.clone(), Service::SSD, &name("ssd", random))),
        ];
        Rig { power, disk, ssd, timed }
    }
}

impl Rig {
    pub fn mount(&self, clock: &Clock, options: Options) -> Result<NfHybrid, Error> {
        NfHybrid::open_on(clock.clone(), self.timed[0].clone(), Some(self.timed[1].clone()), options)
    }

    /// One error of one request of a kind that comes.
    pub fn break_something(&self, random: &mut Random) {
        let device = if random.chance(0.6) { &self.ssd } else { &self.disk };
        let kind = [Request::Read, Request::Write, Request::Flush, Request::Any][random.below(4) as usize];
        let effect = match random.below(5) {
            0 => Effect::TornError(libc::EIO),
            1 if Arc::ptr_eq(device, &self.ssd) => Effect::Vanish,
            _ => Effect::Error(libc::EIO),
        };
        device.plan(kind, When::Nth(1 + random.below(60)), effect);
    }
}
