//! Making, opening and ending a file system, and what is to be known of it as a whole.

use crate::{CNand, CNvram, EINVAL, EIO, ENOMEM, Part, Volume, caught, code, done, memory, with};
use alloc::boxed::Box;
use alloc::vec::Vec;
use cmfs_core::ecc::Corrected;
use cmfs_core::{Config, Error, Fs, Layout, MountKind, Names, Nand, Time};
use core::ffi::{c_char, c_int, c_void};

/// What can be chosen, as `struct cmfs_config`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CConfig {
    memory_bytes: usize,
    cache_pages: u32,
    update_ms: u32,
    reserve_blocks: u32,
    copies_max: u32,
    wear_limit: u32,
    refresh_reads: u32,
    refresh_copies: u32,
    flags: u32,
}

const NO_NAMES: u32 = 1;
const NO_SUMMARIES: u32 = 2;
const PAPER: u32 = 4;
const PLAIN: u32 = 8;
const CORRECT: u32 = 16;

impl CConfig {
    fn new(config: &Config) -> CConfig {
        CConfig {
            memory_bytes: config.memory_bytes,
            cache_pages: config.cache_pages as u32,
            update_ms: config.update_ms as u32,
            reserve_blocks: config.reserve_blocks,
            copies_max: config.copies_max,
            wear_limit: config.wear_limit,
            refresh_reads: config.refresh_reads,
            refresh_copies: config.refresh_copies,
            flags: if config.summaries { 0 } else { NO_SUMMARIES },
        }
    }

    fn config(&self) -> Result<Config, Error> {
        if self.flags & !(NO_NAMES | NO_SUMMARIES | PAPER | PLAIN | CORRECT) != 0
            || self.reserve_blocks > 1 << 20
        {
            return Err(Error::BadArgument);
        }
        let has = |flag: u32| self.flags & flag != 0;
        Ok(Config {
            layout: if has(PAPER) { Layout::Paper } else { Layout::Compact },
            names: if has(NO_NAMES) { Names::Off } else { Names::Auto },
            summaries: !has(NO_SUMMARIES),
            cache_pages: self.cache_pages as usize,
            update_ms: u64::from(self.update_ms),
            reserve_blocks: self.reserve_blocks,
            copies_max: self.copies_max,
            wear_limit: self.wear_limit,
            refresh_reads: self.refresh_reads,
            refresh_copies: self.refresh_copies,
            memory_bytes: self.memory_bytes,
            plain: has(PLAIN),
        })
    }
}

/// What firmware has by default: sixteen kilobytes of pages that wait, and memory without a bound.
fn usual() -> Config {
    Config { cache_pages: 8, ..Config::default() }
}

fn config_of(config: Option<&CConfig>) -> Result<Config, Error> {
    config.map_or(Ok(usual()), CConfig::config)
}

/// Memory that a volume takes in all, bytes: what is bounded, what is not, and a fifth for pieces too small to be used.
fn needed(nand: &CNand, config: &Config) -> usize {
    let bytes = config.memory_bytes.saturating_add(config.fixed_bytes(&nand.geometry()));
    bytes.saturating_add(bytes / 5)
}

/// The usual choices.
///
/// # Safety
/// `config` is valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_config_default(config: *mut CConfig) -> c_int {
    // SAFETY: as the caller promises.
    match unsafe { config.as_mut() } {
        Some(config) => {
            *config = CConfig::new(&usual());
            0
        }
        None => EINVAL,
    }
}

/// Gives the library its memory.
///
/// # Safety
/// `bytes` bytes from `memory` on are nobody else's, for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_give_memory(memory: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: as the caller promises.
    if unsafe { memory::give(memory.cast(), bytes) } { 0 } else { EINVAL }
}

/// The most memory that was in use of what was given, bytes, since the last call with `reset`.
#[unsafe(no_mangle)]
pub extern "C" fn cmfs_memory_most(reset: c_int) -> usize {
    memory::most_used(reset != 0)
}

/// Memory that a volume takes, bytes.
///
/// # Safety
/// `nand` and `config` are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_memory_needed(nand: *const CNand, config: *const CConfig) -> usize {
    // SAFETY: as the caller promises.
    let (nand, config) = unsafe { (nand.as_ref(), config.as_ref()) };
    match (nand, config_of(config)) {
        // What the list of free pieces needs for itself.
        (Some(nand), Ok(config)) if nand.geometry().check().is_ok() => needed(nand, &config) + 64,
        _ => 0,
    }
}

/// Whether media and choices are complete, and memory is enough.
fn check(
    nand: Option<&CNand>,
    nvram: Option<&CNvram>,
    config: Option<&CConfig>,
) -> Result<(Part, Config), c_int> {
    let is_corrected = config.is_some_and(|config| config.flags & CORRECT != 0);
    let config = config_of(config).map_err(|_| EINVAL)?;
    let nand = nand.filter(|nand| nand.is_complete()).ok_or(EINVAL)?;
    if nvram.is_some_and(|nvram| !nvram.is_complete()) {
        return Err(EINVAL);
    }
    if let Err(error) = nand.geometry().check() {
        return Err(crate::errno(error));
    }
    match memory::free() {
        Some(free) if free < needed(nand, &config) => Err(ENOMEM),
        _ if !is_corrected => Ok((Part::Plain(*nand), config)),
        _ => match Corrected::new(*nand) {
            part if part.is_on() => Ok((Part::Corrected(part), config)),
            _ => Err(crate::errno(Error::Unsupported("no room for codes"))),
        },
    }
}

/// Makes a file system.
///
/// # Safety
/// `nand` and `identity` are valid, `nvram` and `config` are or are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_format(
    nand: *const CNand,
    nvram: *const CNvram,
    config: *const CConfig,
    identity: *const [u8; 16],
) -> c_int {
    // SAFETY: the caller promises that they are valid or null.
    let (nand, nvram, config, identity) =
        unsafe { (nand.as_ref(), nvram.as_ref(), config.as_ref(), identity.as_ref()) };
    let Some(identity) = identity else { return EINVAL };
    let (nand, config) = match check(nand, nvram, config) {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    let made = caught(|| Fs::format(nand, nvram.copied(), config, *identity, true).and_then(Fs::close));
    made.map_or(EIO, |made| code(made.map(|_| 0)) as c_int)
}

/// Opens a file system.
///
/// # Safety
/// `nand` and `volume` are valid, `nvram` and `config` are or are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_mount(
    nand: *const CNand,
    nvram: *const CNvram,
    config: *const CConfig,
    volume: *mut *mut Volume,
) -> c_int {
    // SAFETY: the caller promises that they are valid or null.
    let (nand, nvram, config, volume) =
        unsafe { (nand.as_ref(), nvram.as_ref(), config.as_ref(), volume.as_mut()) };
    let Some(volume) = volume else { return EINVAL };
    let (nand, config) = match check(nand, nvram, config) {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    let opened = caught(|| Fs::open(nand, nvram.copied(), config));
    let new = |fs| Box::into_raw(Box::new(Volume { fs, open: Vec::new(), broken: false }));
    opened.map_or(EIO, |opened| code(opened.map(|fs| *volume = new(fs)).map(|()| 0)) as c_int)
}

/// How it was opened.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_mounted_how(volume: *const Volume) -> c_int {
    // SAFETY: the caller promises that it is valid.
    let Some(volume) = (unsafe { volume.as_ref() }) else { return EINVAL };
    match volume.fs.report().kind {
        MountKind::Made | MountKind::Clean => 0,
        MountKind::Recovered => 1,
        MountKind::Scanned => 2,
        MountKind::Checkpoint => 3,
    }
}

/// Ends cleanly and frees the volume.
///
/// # Safety
/// `volume` is one that was mounted, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_unmount(volume: *mut Volume) -> c_int {
    if volume.is_null() {
        return EINVAL;
    }
    // SAFETY: it came from `Box::into_raw` in `cmfs_mount`.
    let mut volume = unsafe { Box::from_raw(volume) };
    if volume.broken {
        return EIO;
    }
    let end = move || {
        // What lost its last name while it was open goes.
        for (object, _) in core::mem::take(&mut volume.open) {
            match volume.fs.discard(object) {
                Ok(()) | Err(Error::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        volume.fs.close()
    };
    caught(end).map_or(EIO, |ended| code(ended.map(|_| 0)) as c_int)
}

/// Makes everything durable, and the NVRAM agree.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_sync_all(volume: *mut Volume) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, |volume| volume.fs.update().map(drop)) }
}

/// Updates the NVRAM now and then.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_tick(volume: *mut Volume, now_ms: u64) -> c_int {
    let work = |volume: &mut Volume| volume.fs.update_if_due(now_ms).map(|done| i64::from(done.is_some()));
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, work) }) as c_int
}

/// Reads the next pages of the part in turn; 1 at its end.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_scrub(volume: *mut Volume, pages: u32) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, |volume| volume.fs.scrub(pages).map(i64::from)) }) as c_int
}

/// Says what time it is.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_set_time(volume: *mut Volume, seconds: i64, nanoseconds: u32) -> c_int {
    let work = |volume: &mut Volume| {
        if nanoseconds >= 1_000_000_000 {
            return Err(Error::BadArgument);
        }
        volume.fs.set_now(Time { sec: seconds, nsec: nanoseconds });
        Ok(())
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// Room and counts, as `struct cmfs_statfs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CStatfs {
    page_bytes: u32,
    objects: u32,
    pages: u64,
    pages_free: u64,
    nvram_bytes: u64,
    nvram_used: u64,
    memory_bytes: u64,
    session: u32,
    nvram_overflows: u32,
    programs: u64,
    erases: u64,
    copies: u64,
    corrected_bits: u64,
    failures: u64,
    lost_pages: u64,
    fetched: u64,
}

/// Room and counts.
///
/// # Safety
/// `volume` is one that was mounted, `statfs` is valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_statfs(volume: *mut Volume, statfs: *mut CStatfs) -> c_int {
    // SAFETY: as the caller promises.
    let statfs = unsafe { statfs.as_mut() };
    let work = |volume: &mut Volume| {
        let statfs = statfs.ok_or(Error::BadArgument)?;
        let fs = &mut volume.fs;
        let (stats, pages) = (fs.stats(), fs.capacity_pages());
        let (nvram_used, nvram_bytes) = fs.nvram_used().unwrap_or((0, 0));
        *statfs = CStatfs {
            page_bytes: fs.nand().geometry().page_bytes,
            objects: fs.object_count(),
            pages,
            pages_free: pages.saturating_sub(fs.used_pages()),
            nvram_bytes: nvram_bytes as u64,
            nvram_used: nvram_used as u64,
            memory_bytes: fs.memory_bytes() as u64,
            session: fs.session(),
            nvram_overflows: u32::from(fs.nvram_overflows()),
            programs: stats.programs,
            erases: stats.erases,
            copies: stats.copies,
            corrected_bits: stats.corrected_bits,
            failures: stats.failures,
            lost_pages: stats.lost_pages,
            fetched: stats.fetched,
        };
        Ok(())
    };
    // SAFETY: the caller promises that the volume is valid.
    unsafe { done(volume, work) }
}

/// Compares what is known with the part; how many things are wrong.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_check(volume: *mut Volume, data: c_int) -> c_int {
    let work = |volume: &mut Volume| volume.fs.check(data != 0).map(|problems| problems.len() as i64);
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, work) }) as c_int
}

/// Writes a new header for what has none that can be read; how many.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_repair(volume: *mut Volume) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, |volume| volume.fs.repair().map(i64::from)) }) as c_int
}

/// Leaves a checkpoint for YAFFS2; 1 if there was room for it.
///
/// # Safety
/// `volume` is one that was mounted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cmfs_checkpoint(volume: *mut Volume, pointer_bytes: usize) -> c_int {
    // SAFETY: the caller promises that the volume is valid.
    (unsafe { with(volume, |volume| volume.fs.checkpoint(pointer_bytes).map(i64::from)) }) as c_int
}

/// What an error number says.
#[unsafe(no_mangle)]
pub extern "C" fn cmfs_error_text(code: c_int) -> *const c_char {
    let text = match code {
        0.. => c"no error",
        -2 => c"no such file or directory",
        EIO => c"the medium failed, or what it holds is damaged",
        -6 => c"no data or hole from there on",
        ENOMEM => c"no memory left of what may be taken",
        -17 => c"the name is taken",
        -19 => c"the part holds no cmfs, or the NVRAM is another part's",
        -20 => c"not a directory",
        -21 => c"is a directory",
        EINVAL => c"invalid argument",
        -27 => c"file too large",
        -28 => c"no space left",
        -36 => c"name too long",
        -39 => c"directory not empty",
        -61 => c"no such attribute",
        -95 => c"not supported by this part or this build",
        -116 => c"the object is gone",
        _ => c"unknown error",
    };
    text.as_ptr()
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn cmfs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
