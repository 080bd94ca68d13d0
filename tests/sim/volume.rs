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

/// What a pair of halves is made as.
pub struct Geometry {
    /// Of mke2fs.
    options: &'static [&'static str],
    log_kib: u64,
    ssd_kib: u64,
    disk_mib: u64,
    shape: Shape,
}

/// How the SSD half is divided.
struct Shape {
    block_bytes: u32,
    slot_bytes: u32,
    kib_per_slot: u64,
    /// Of each of the two sections.
    extent_kib: [u64; 2],
    threshold_blocks: u32,
}

/// As most SSD halves are.
const PLAIN: Shape = Shape {
    block_bytes: 4096,
    slot_bytes: 256,
    kib_per_slot: 16,
    extent_kib: [16, 64],
    threshold_blocks: 16,
};

impl Shape {
    const fn blocks(self, block_bytes: u32) -> Shape {
        Shape { block_bytes, ..self }
    }

    const fn slots(self, slot_bytes: u32, kib_per_slot: u64) -> Shape {
        Shape { slot_bytes, kib_per_slot, ..self }
    }

    const fn extents(self, extent_kib: [u64; 2]) -> Shape {
        Shape { extent_kib, ..self }
    }

    const fn threshold(self, threshold_blocks: u32) -> Shape {
        Shape { threshold_blocks, ..self }
    }
}

impl Geometry {
    const fn new(
        options: &'static [&'static str],
        log_kib: u64,
        ssd_kib: u64,
        disk_mib: u64,
        shape: Shape,
    ) -> Geometry {
        Geometry { options, log_kib, ssd_kib, disk_mib, shape }
    }

    /// The disk gets full.
    pub fn is_small(&self) -> bool {
        self.disk_mib < 32
    }
}

/// Geometries: options of mke2fs, the SSD half's log and size in KiB, the disk's size in MiB, and how the SSD half is divided.
pub static GEOMETRIES: [Geometry; 18] = [
    Geometry::new(&["-b", "4096"], 128, 6 << 10, 32, PLAIN),
    Geometry::new(&["-b", "1024", "-J", "size=2"], 256, 4 << 10, 32, PLAIN),
    Geometry::new(&["-b", "4096"], 1024, 12 << 10, 32, PLAIN),
    // A log of 64 KiB, a tiny SSD, full disks.
    Geometry::new(&["-b", "4096"], 64, 4 << 10, 32, PLAIN),
    Geometry::new(&["-b", "1024", "-J", "size=1"], 64, 2 << 10, 32, PLAIN),
    Geometry::new(&["-b", "1024", "-J", "size=1", "-m", "0"], 64, 4 << 10, 4, PLAIN),
    Geometry::new(&["-b", "4096", "-J", "size=4", "-m", "0"], 128, 2 << 10, 12, PLAIN),
    Geometry::new(&["-b", "2048", "-J", "size=2", "-I", "128", "-O", "^64bit"], 256, 3 << 10, 32, PLAIN),
    // SSD halves of other blocks, slots, extents and thresholds.
    Geometry::new(&["-b", "4096", "-J", "size=4"], 64, 6 << 10, 32, PLAIN.slots(512, 256).extents([8, 256])),
    Geometry::new(
        &["-b", "4096"],
        64,
        4 << 10,
        32,
        PLAIN.blocks(2048).slots(256, 512).extents([64, 64]).threshold(4),
    ),
    Geometry::new(
        &["-b", "1024", "-J", "size=1"],
        64,
        4 << 10,
        32,
        PLAIN.blocks(1024).slots(512, 128).extents([4, 128]).threshold(2),
    ),
    Geometry::new(
        &["-b", "1024", "-J", "size=1", "-m", "0"],
        64,
        4 << 10,
        5,
        PLAIN.blocks(1024).slots(256, 1 << 10),
    ),
    Geometry::new(&["-b", "4096", "-J", "size=4", "-m", "0"], 128, 4 << 10, 12, PLAIN.slots(256, 512)),
    Geometry::new(
        &["-b", "2048", "-J", "size=2", "-I", "128", "-O", "^64bit"],
        256,
        3 << 10,
        32,
        PLAIN.blocks(2048).slots(256, 256),
    ),
    Geometry::new(
        &["-b", "4096"],
        1024,
        12 << 10,
        32,
        PLAIN.blocks(1024).slots(256, 2 << 10).extents([1 << 10, 64]).threshold(4),
    ),
    // A disk without checksums, one of many groups, and a large log.
    Geometry::new(
        &["-b", "4096", "-O", "^metadata_csum"],
        64,
        12 << 10,
        32,
        PLAIN.slots(256, 4 << 10).extents([8, 64]),
    ),
    Geometry::new(
        &["-b", "1024", "-J", "size=2", "-g", "512"],
        64,
        8 << 10,
        32,
        PLAIN.blocks(1024).slots(256, 1 << 10).extents([32, 64]).threshold(2),
    ),
    Geometry::new(
        &["-b", "2048", "-J", "size=4"],
        4096,
        16 << 10,
        32,
        PLAIN.slots(512, 1 << 10).extents([16, 512]).threshold(64),
    ),
];

pub fn bases() -> &'static Option<Vec<Base>> {
    static BASES: OnceLock<Option<Vec<Base>>> = OnceLock::new();
    BASES.get_or_init(|| GEOMETRIES.iter().map(base).collect())
}

/// `None` where mke2fs is missing.
fn base(geometry: &Geometry) -> Option<Base> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(geometry.disk_mib << 20).unwrap();
    let fixed = ["-q", "-t", "ext4", "-F", "-U", "01234567-89ab-cdef-0123-456789abcdef", "-E"];
    let hash = "hash_seed=01234567-89ab-cdef-0123-456789abcdef";
    let made = Command::new("/usr/sbin/mke2fs")
        .args(fixed)
        .arg(hash)
        .args(geometry.options)
        .arg(file.path())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return None;
    }
    let disk = Arc::new(Ram::from_bytes("disk", std::fs::read(file.path()).unwrap()));
    let ssd = Arc::new(Ram::new("ssd", geometry.ssd_kib << 10));
    let section = |name: &str, kib: u64| ssd::SectionConfig {
        name: name.into(),
        extent_bytes: kib << 10,
        size_bytes: None,
    };
    let shape = &geometry.shape;
    let config = ssd::Config {
        sections: vec![section("small", shape.extent_kib[0]), section("large", shape.extent_kib[1])],
        log_bytes: geometry.log_kib << 10,
        block_bytes: shape.block_bytes,
        slot_bytes: shape.slot_bytes,
        bytes_per_slot: shape.kib_per_slot << 10,
        threshold_blocks: shape.threshold_blocks,
        ..ssd::Config::default()
    };
    volume::join_devices(disk.clone(), ssd.clone(), &config)
        .unwrap_or_else(|error| panic!("{:?}: {error}", geometry.options));
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
    /// Devices for a mount; the disk may be `slow` to flush, so that much is done while a commit is under way.
    pub fn rig(&self, clock: &Clock, random: &mut Random, cut_after: Option<u64>, slow: bool) -> Rig {
        let rule = Survival::EVERY[random.below(4) as usize];
        let power = Power::new(cut_after, rule, random.next());
        let disk = Arc::new(Faulty::new(Arc::new(power.wrap(self.disk.clone()))));
        let ssd = Arc::new(Faulty::new(Arc::new(power.wrap(self.ssd.clone()))));
        let flush_ns = if slow { 4_000_000..1_500_000_000 } else { Service::DISK.flush_ns };
        let service = Service { flush_ns, ..Service::DISK };
        let name = |half: &str, random: &mut Random| format!("{half} {}", random.next());
        let timed: [Arc<dyn BlockDevice>; 2] = [
            Arc::new(Timed::drawn(clock.clone(), disk.clone(), service, &name("disk", random))),
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
