//! What a stack file says, as what a replay is told.

use super::args::Args;
use super::files::FLASH_BYTES;
use super::plan::DEFAULT_FLASH;
use crate::kinds::nfhybrid::mkfs::SectionSpec;
use crate::kinds::nfhybrid::play::{DISK, DISK_BYTES, SSD, SSD_BYTES};
use crate::kinds::{KINDS, LiesOn, volume::PART};
use crate::stack::NONE;
use crate::stack::file::{ByteRange, DeviceKeys, FsKeys, Size, StackFile, Text};
use bimetal_base::{Error, Result};

/// The stack with what a replay takes where nothing is said: the halves of an nfhybrid, what is under the others, the
/// memory of a write cache.
pub(super) fn effective(stack: &StackFile) -> Result<StackFile> {
    let mut stack = stack.clone();
    let usual = Args::usual()?;
    let or = |device: &mut DeviceKeys, profile: &str, bytes: u64| {
        device.profile.get_or_insert_with(|| profile.to_string());
        device.size.get_or_insert(Size(bytes));
    };
    match lies_on(&stack)? {
        Some(LiesOn::Halves) => {
            or(&mut stack.ssd, SSD, SSD_BYTES);
            or(&mut stack.disk, DISK, DISK_BYTES);
        }
        Some(LiesOn::Block(profile)) => or(&mut stack.device, profile, FLASH_BYTES),
        Some(LiesOn::Nand { .. }) => or(&mut stack.device, PART, FLASH_BYTES),
        Some(LiesOn::Nothing) => {}
        None => {
            let profile = if stack.device.ftl.is_some() { DEFAULT_FLASH } else { NONE };
            stack.device.profile.get_or_insert_with(|| profile.to_string());
        }
    }
    if let Some(nvram) = stack.nvram.as_mut() {
        nvram.size.get_or_insert(Size(usual.nvram_size));
    }
    Ok(stack)
}

/// What its file system lies on, if it says one.
fn lies_on(stack: &StackFile) -> Result<Option<LiesOn>> {
    stack.fs.as_ref().map(|fs| KINDS.find(&fs.kind).map(|kind| kind.lies_on)).transpose()
}

/// What options are called in a stack file.
const KEYS: [(&str, &str); 14] = [
    ("--queue-depth", "run.queue-depth"),
    ("--speed", "run.speed"),
    ("--pace", "run.pace ="),
    ("--overhead", "run.overhead"),
    ("--chunk", "run.chunk"),
    ("--fit", "run.fit ="),
    ("--precondition", "run.precondition"),
    ("--processes", "run.processes"),
    ("--timing", "run.timing"),
    ("--unit", "trace.unit"),
    ("--page", "cache.page"),
    ("--device-size", "device.size"),
    ("--section", "fs.sections"),
    ("--fs", "fs.kind"),
];

/// What was wrong with the options that a stack file stands for, in the words of the file.
pub(super) fn in_keys(why: Error) -> Error {
    let Error::Invalid(text) = why else { return why };
    let said = KEYS.iter().fold(text, |text, (option, key)| text.replace(option, key));
    Error::Invalid(said)
}

/// Sections that a file says.
fn sections(fs: Option<&FsKeys>) -> Vec<SectionSpec> {
    fs.iter().flat_map(|fs| &fs.sections).map(|Text(section)| section.clone()).collect()
}

impl Args {
    /// What `bimetal replay` would be told to play the stack.
    ///
    /// # Errors
    /// It says what a replay cannot do, or not what is played.
    pub fn of_stack(stack: &StackFile) -> Result<Args> {
        let stack = effective(stack)?;
        let StackFile { seed, trace, run, device, cache, nvram, fs, ssd, disk, .. } = &stack;
        let generated = trace.generator.as_ref().map(|named| format!("gen:{named}"));
        let Some(source) = generated.or_else(|| trace.file.clone()) else {
            return Err(Error::invalid(
                "trace: neither file nor generator is said, so there is nothing to play",
            ));
        };
        let refused = |key: &str, why: &str| Err(Error::invalid(format!("{key}: {why}")));
        let kind = fs.as_ref().map(|fs| fs.kind.clone());
        let hybrid = lies_on(&stack)? == Some(LiesOn::Halves);
        if kind.is_none() && (*ssd != DeviceKeys::default() || *disk != DeviceKeys::default()) {
            return refused(
                "ssd, disk",
                "they are the halves of an nfhybrid; say fs.kind = \"nfhybrid\", or [device]",
            );
        }
        stack.check_layers()?;
        let ftl = if hybrid { &ssd.ftl } else { &device.ftl };
        let takes = nvram.as_ref().and_then(|nvram| nvram.takes.as_ref());
        let usual = Args::usual()?;
        let bytes = |size: &Option<Size>| size.map(|Size(bytes)| bytes);
        Ok(Args {
            trace: Some(source),
            format: trace.format.clone(),
            columns: trace.columns.as_ref().map(|columns| columns.parse()).transpose()?,
            event: trace.event,
            unit: trace.unit,
            requests: trace.requests,
            device: device.profile.clone().filter(|_| !hybrid),
            device_size: bytes(&device.size).filter(|_| !hybrid),
            ftl: ftl.iter().map(ToString::to_string).collect(),
            fs: kind,
            options: stack.mount_options(),
            sections: sections(fs.as_ref().filter(|_| hybrid)),
            ssd: ssd.profile.clone().filter(|_| hybrid),
            ssd_size: bytes(&ssd.size).filter(|_| hybrid),
            disk: disk.profile.clone().filter(|_| hybrid),
            disk_size: bytes(&disk.size).filter(|_| hybrid),
            processes: run.processes,
            cache: cache.iter().map(|cache| cache.policy.to_string()).collect(),
            cache_size: cache.iter().map(|cache| cache.size.0).collect(),
            page: cache.as_ref().map_or(usual.page, |cache| cache.page.0),
            pace: run.pace,
            queue_depth: run.queue_depth,
            speed: run.speed,
            timing: run.timing,
            overhead: run.overhead.0,
            absorb: run.absorb.clone().map(|Text(ByteRange(range))| range),
            nvram: takes.cloned().map(|Text(takes)| takes),
            nvram_size: nvram.as_ref().and_then(|nvram| bytes(&nvram.size)).unwrap_or(usual.nvram_size),
            place: run.place.clone().map(|Text(takes)| takes),
            no_flush: !run.flush,
            fit: run.fit,
            chunk: run.chunk.0,
            precondition: run.precondition,
            no_drain: !run.drain,
            seed: *seed,
            ..usual
        })
    }
}
