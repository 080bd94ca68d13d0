//! A file system on a simulated part, filled with files, and what opening and using it takes.

use crate::stack::layers::Layers;
use bimetal_base::{Error, Result};
use bimetal_cmfs::model::{Clock, ModelNand, ModelNvram};
use bimetal_media::nand::NandProfile;
use bimetal_media::nvram::NvramProfile;
use bimetal_media::profile;
use cmfs_core::{Config, Fs, Kind, Layout, MountKind, NewObject, ROOT};

/// Profile of the part.
pub const PART: &str = "slc-2k";
/// What reading and writing FRAM takes, as in the figures for the peers.
pub const FRAM_NS_PER_BYTE: f64 = 70.0;
/// Files of a directory.
const FILES_A_DIR: u32 = 100;
const PAGE: usize = 2048;
const PAGES_A_BLOCK: u64 = 64;
/// Page numbers of a leaf of the paper's page table; bytes of its position.
const LEAF: (usize, u64) = (16, 4);

/// What something took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// Time of the media, ms.
    pub ms: f64,
    /// Pages read.
    pub reads: u64,
    /// Spare areas read alone.
    pub spare_reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Bytes of NVRAM read.
    pub nvram_read: u64,
    /// Bytes of NVRAM written.
    pub nvram_written: u64,
}

impl Took {
    /// The part of the time that was NVRAM's.
    pub fn nvram_ms(&self) -> f64 {
        (self.nvram_read + self.nvram_written) as f64 * FRAM_NS_PER_BYTE / 1e6
    }
}

/// The test bed.
pub struct Bed {
    fs: Option<Fs<ModelNand, ModelNvram>>,
    clock: Clock,
    config: Config,
    /// Files written.
    pub files: Vec<u32>,
    dir: u32,
    /// Bytes of the part.
    pub bytes: u64,
}

fn core(error: cmfs_core::Error) -> Error {
    Error::invalid(format!("cmfs: {error}"))
}

fn node(kind: Kind) -> NewObject<'static> {
    let mode = if kind == Kind::Dir { 0o40_755 } else { 0o100_644 };
    NewObject { kind, mode, uid: 0, gid: 0, rdev: 0, target: &[] }
}

/// The layers of a bed.
pub fn stack() -> Layers {
    Layers::of(&[
        &[("program", "files, made and used")],
        &[("file system", "cmfs")],
        &[("NAND", PART), ("NVRAM", "feram, 70 ns a byte")],
    ])
}

/// What is chosen for a bed with this layout.
pub fn config(layout: Layout) -> Config {
    Config { layout, ..Config::default() }
}

impl Bed {
    /// An empty file system on a part of `bytes`. With `nvram_bytes` 0 there is no NVRAM.
    pub fn new(bytes: u64, nvram_bytes: usize, config: Config) -> Result<Bed> {
        let clock = Clock::default();
        let part = profile::load::<NandProfile>(PART)?.ideal().resized(bytes, 8);
        let memory: NvramProfile = profile::load("feram")?;
        let memory = NvramProfile {
            read_ns_per_byte: FRAM_NS_PER_BYTE,
            write_ns_per_byte: FRAM_NS_PER_BYTE,
            ..memory
        };
        let nand = ModelNand::new(part, 1, clock.clone())?;
        let nvram = (nvram_bytes > 0).then(|| ModelNvram::new(memory, nvram_bytes, clock.clone()));
        let fs = Fs::format(nand, nvram, config, [3; 16], false).map_err(core)?;
        Ok(Bed { fs: Some(fs), clock, config, files: Vec::new(), dir: ROOT, bytes })
    }

    /// The file system.
    pub fn fs(&mut self) -> Result<&mut Fs<ModelNand, ModelNvram>> {
        self.fs.as_mut().ok_or_else(|| Error::invalid("cmfs: the bed is not open"))
    }

    /// A new file.
    pub fn create(&mut self) -> Result<u32> {
        let number = self.files.len() as u32;
        if number.is_multiple_of(FILES_A_DIR) {
            let name = format!("d{}", number / FILES_A_DIR);
            self.dir = self.fs()?.create(ROOT, name.as_bytes(), &node(Kind::Dir)).map_err(core)?;
        }
        let (dir, name) = (self.dir, format!("f{number:06}"));
        let id = self.fs()?.create(dir, name.as_bytes(), &node(Kind::File)).map_err(core)?;
        self.files.push(id);
        Ok(id)
    }

    /// Appends zeros to a file, 16 KiB at a time. What pages hold does not matter here.
    pub fn write(&mut self, id: u32, offset: u64, len: usize) -> Result<()> {
        let zeros = [0; 8 * PAGE];
        let mut done = 0;
        while done < len {
            let part = (len - done).min(zeros.len());
            self.fs()?.write(id, offset + done as u64, &zeros[..part]).map_err(core)?;
            done += part;
            self.tick()?;
        }
        Ok(())
    }

    /// Updates the NVRAM if five seconds have passed.
    fn tick(&mut self) -> Result<()> {
        let now = self.clock.now().0 / 1_000_000;
        self.fs()?.update_if_due(now).map(drop).map_err(core)
    }

    /// Nobody asks for anything for so long; what is due by then is done.
    pub fn idle(&mut self, time: std::time::Duration) -> Result<()> {
        let now = (self.clock.now() + time).0 / 1_000_000;
        self.fs()?.update_if_due(now).map(drop).map_err(core)
    }

    /// Adds files of `file_bytes` until `percent` of all pages are live; how many there are.
    pub fn fill(&mut self, file_bytes: usize, percent: u32) -> Result<usize> {
        let limit = self.bytes / PAGE as u64 * u64::from(percent) / 100;
        let each = file_bytes.div_ceil(PAGE) as u64 + 1;
        while self.fs()?.used_pages() + each + 2 <= limit {
            self.add(file_bytes)?;
        }
        Ok(self.files.len())
    }

    /// Adds one file.
    pub fn add(&mut self, file_bytes: usize) -> Result<u32> {
        let id = self.create()?;
        self.write(id, 0, file_bytes)?;
        Ok(id)
    }

    /// As [`fill`](Bed::fill), eight files growing at a time, `turn` bytes each in turn.
    pub fn fill_interleaved(&mut self, file_bytes: usize, percent: u32, turn: usize) -> Result<usize> {
        let limit = self.bytes / PAGE as u64 * u64::from(percent) / 100;
        let each = 8 * (file_bytes.div_ceil(PAGE) as u64 + 1);
        while self.fs()?.used_pages() + each + 8 <= limit {
            let ids: Vec<u32> = (0..8).map(|_| self.create()).collect::<Result<_>>()?;
            let mut at = 0;
            while at < file_bytes {
                let len = turn.min(file_bytes - at);
                ids.iter().try_for_each(|id| self.write(*id, at as u64, len))?;
                at += len;
            }
        }
        Ok(self.files.len())
    }

    /// Overwrites pages of the files at random, so many hundredths of all.
    pub fn overwrite(&mut self, file_bytes: usize, percent: u64, seed: u64) -> Result<()> {
        let mut random = bimetal_base::random::Random::new(seed, "cmfs overwrite");
        let pages = (file_bytes / PAGE) as u64;
        for id in self.files.clone() {
            for page in 0..pages {
                if random.below(100) < percent {
                    self.write(id, page * PAGE as u64, PAGE)?;
                }
            }
        }
        Ok(())
    }

    /// Bytes of NVRAM that the paper's structures take before they are coded, as its figure 3 lays them out, and how many of
    /// these the leaves of page tables do: a tree's other nodes are in memory alone.
    pub fn paper_bytes(&mut self) -> Result<(u64, u64)> {
        let mut leaves = 0;
        for id in self.files.clone() {
            leaves += self.fs()?.pages(id).len().div_ceil(LEAF.0) as u64;
        }
        let pages = self.bytes / PAGE as u64;
        // Beyond the paper's parts 16 bits are too few.
        let number_bytes = if pages > 1 << 16 { 4 } else { 2 };
        let leaves = leaves * (LEAF.1 + LEAF.0 as u64 * number_bytes);
        let objects =
            self.files.len() as u64 + 1 + (self.files.len() as u64).div_ceil(u64::from(FILES_A_DIR));
        Ok((8 + 40 + 8 * (pages / PAGES_A_BLOCK) + 24 * objects + leaves, leaves))
    }

    /// Flash and NVRAM agree.
    pub fn update(&mut self) -> Result<()> {
        self.fs()?.update().map(drop).map_err(core)
    }

    /// What `work` takes.
    pub fn measure<T>(&mut self, work: impl FnOnce(&mut Bed) -> Result<T>) -> Result<(T, Took)> {
        let before = self.counters()?;
        let value = work(self)?;
        let after = self.counters()?;
        Ok((
            value,
            Took {
                ms: (after.ms - before.ms).max(0.0),
                reads: after.reads - before.reads,
                spare_reads: after.spare_reads - before.spare_reads,
                programs: after.programs - before.programs,
                erases: after.erases - before.erases,
                // The memory, and its counts with it, may have been lost on the way.
                nvram_read: after.nvram_read.saturating_sub(before.nvram_read),
                nvram_written: after.nvram_written.saturating_sub(before.nvram_written),
            },
        ))
    }

    fn counters(&mut self) -> Result<Took> {
        let ms = self.clock.now().0 as f64 / 1e6;
        let fs = self.fs()?;
        let nand = fs.nand().counts();
        let nvram = fs.nvram_mut().map(|memory| memory.counts()).unwrap_or_default();
        Ok(Took {
            ms,
            reads: nand.reads,
            spare_reads: nand.spare_reads,
            programs: nand.programs,
            erases: nand.erases,
            nvram_read: nvram.read_bytes,
            nvram_written: nvram.written_bytes,
        })
    }

    /// Opens again what lies on the media now; what that takes, and how it was done. With `scan` the NVRAM is lost.
    pub fn reopen(&mut self, scan: bool) -> Result<(MountKind, Took)> {
        let config = self.config;
        let open = |bed: &mut Bed| {
            let fs = bed.fs.take().ok_or_else(|| Error::invalid("cmfs: the bed is not open"))?;
            let (nand, nvram) = fs.into_media();
            let opened = match (scan, nvram) {
                (true, _) => Fs::open(nand, None, config),
                (false, nvram) => Fs::open(nand, nvram, config),
            };
            bed.fs = Some(opened.map_err(core)?);
            Ok(bed.fs()?.report().kind)
        };
        self.measure(open)
    }

    /// Opens from the NAND alone; the NVRAM is gone for good.
    pub fn scan(&mut self) -> Result<Took> {
        self.reopen(true).map(|(_, took)| took)
    }

    /// Lists everything with its attributes; how many names.
    pub fn list_all(&mut self) -> Result<u32> {
        let mut dirs = vec![ROOT];
        let mut count = 0;
        while let Some(dir) = dirs.pop() {
            let mut found = Vec::new();
            let mut take = |entry: cmfs_core::Entry| {
                found.push((entry.id, entry.kind));
                true
            };
            let fs = self.fs()?;
            fs.list(dir, 0, &mut take).map_err(core)?;
            for (id, kind) in found {
                fs.attr(id).map_err(core)?;
                count += 1;
                if kind == Kind::Dir {
                    dirs.push(id);
                }
            }
        }
        Ok(count)
    }

    /// Removes a file.
    pub fn remove(&mut self, number: u32) -> Result<()> {
        let fs = self.fs()?;
        let dir = fs.lookup(ROOT, format!("d{}", number / FILES_A_DIR).as_bytes()).map_err(core)?;
        fs.unlink(dir, format!("f{number:06}").as_bytes(), false).map(drop).map_err(core)
    }

    /// Makes a file durable.
    pub fn sync(&mut self, id: u32) -> Result<()> {
        self.fs()?.sync_object(id).map_err(core)
    }

    /// Makes all durable on the NAND; the NVRAM stays behind.
    pub fn sync_all(&mut self) -> Result<()> {
        self.fs()?.sync().map_err(core)
    }

    /// Leaves a checkpoint for YAFFS2, as small machines read it; whether there was room.
    pub fn checkpoint(&mut self) -> Result<bool> {
        self.fs()?.checkpoint(4).map_err(core)
    }

    /// Bytes of NVRAM in use.
    pub fn nvram_used(&mut self) -> Result<usize> {
        let fs = self.fs()?;
        if fs.nvram_overflows() {
            return Err(Error::invalid("cmfs: the NVRAM is too small for this"));
        }
        Ok(fs.nvram_used().map_or(0, |(used, _)| used))
    }
}
