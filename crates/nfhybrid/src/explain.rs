//! Where the contents of a file are, and why: what `bimetal explain` shows, asked for as the attribute `bimetal.explain`.
//!
//! A file is told of in stretches of whole frames (4 KiB), each as long as everything said of it is the same. An answer has
//! [`STRETCHES_MAX`] of them, since an attribute has a limit; `bimetal.explain.BYTES` goes on from a byte. Each answer is of one
//! moment, several need not be of the same.
//!
//! What is known is said and no more: which copies reads brought, and which files were pushed out, is remembered for the last
//! thousand of each and not over a mount. Cost: the lock for one answer, with a step for each frame in memory and for each
//! stretch otherwise; metadata that is not in memory is read without it.

use super::Shared;
use super::core::Core;
use super::frames::{FRAME, Known};
use super::policy::Durability;
use super::ssd::CopyState;
use bimetal_base::Result;
use bimetal_base::units::{Ino, SsdBlock};
use bimetal_ext4::Mapping;
use bimetal_vfs::Kind;
use serde::Serialize;

/// Most stretches of one answer: some 40 KiB.
const STRETCHES_MAX: usize = 128;

/// Frames of a hole past the end of a file behind which nothing is looked for.
const BEYOND: u64 = 1 << 20;

/// What the attribute says.
#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    inode: u64,
    kind: &'static str,
    size_bytes: u64,
    /// Whether there is an SSD half now.
    ssd: bool,
    /// The section that new contents go to; none where the SSD is bypassed or gone.
    section: Option<String>,
    /// The inode of the directory whose rule says so; none where nothing but the default does.
    section_rule: Option<u64>,
    durability: Durability,
    durability_rule: Option<u64>,
    /// What brings copies of what is read to the SSD.
    promote: &'static str,
    /// How far the disk may be behind; none where the volume is only looked at and recovery found what it lacks.
    lag_seconds: Option<f64>,
    extents: Vec<Stretch>,
    /// Where the next answer begins, if this one is not the last.
    next_bytes: Option<u64>,
}

/// Frames of which the same is to be said.
#[derive(Debug, Serialize)]
struct Stretch {
    offset_bytes: u64,
    bytes: u64,
    #[serde(flatten)]
    facts: Facts,
}

/// What is said of a stretch.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Facts {
    state: State,
    /// It is in memory, and the disk lacks it: `dirty`, or `committing` with the commit under way.
    memory: Option<&'static str>,
    ssd: Option<OnSsd>,
    disk: Option<OnDisk>,
    why: String,
}

/// Where the contents of a stretch are as they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// In memory only.
    Memory,
    /// In the SSD's log: durable. In memory, too, where the volume is not only looked at.
    Log,
    /// In a section of the SSD; the disk lacks it.
    Ssd,
    /// In a section of the SSD and on the disk.
    Both,
    /// On the disk only.
    Disk,
    /// Nowhere; reads as zeros.
    Hole,
    /// On the disk there is room for it and nothing in it; reads as zeros.
    Reserved,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct OnSsd {
    section: String,
    /// From the beginning of the SSD half.
    at_bytes: u64,
    /// These are contents that were overwritten since.
    old: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct OnDisk {
    /// From the beginning of the disk half.
    at_bytes: u64,
    old: bool,
}

impl Facts {
    /// Whether they can be said of the stretch of `bytes` with `before` and of what follows it.
    fn go_on_from(&self, before: &Facts, bytes: u64) -> bool {
        let ssd = self.ssd.clone().map(|on| OnSsd { at_bytes: on.at_bytes.saturating_sub(bytes), ..on });
        let disk = self.disk.clone().map(|on| OnDisk { at_bytes: on.at_bytes.saturating_sub(bytes), ..on });
        Facts { ssd, disk, ..self.clone() } == *before
    }
}

impl Shared {
    /// Says where what lies from a byte of a file on is, and why.
    ///
    /// # Errors
    /// Of the inode, and of metadata that cannot be read.
    pub(super) fn explain(&self, ino: Ino, from: u64) -> Result<Explanation> {
        self.look(|core| self.try_explain(core, ino, from)).map(|(_, explanation)| explanation)
    }

    fn try_explain(&self, core: &mut Core, ino: Ino, from: u64) -> Result<Explanation> {
        core.state.check_readable()?;
        let inode = core.ext4.inode(ino)?;
        let (kind, size_bytes) = (inode.kind(), inode.size);
        let policy = core.policy(ino);
        let rules = core.rules_from(ino);
        let mut extents: Vec<Stretch> = Vec::new();
        let mut next_bytes = None;
        if kind == Kind::File {
            let frames = size_bytes.div_ceil(FRAME as u64);
            let mut index = from / FRAME as u64;
            loop {
                let max = if index < frames { frames - index } else { BEYOND };
                let (count, facts) = self.facts(core, ino, index, max, policy.section.is_some())?;
                if index >= frames && facts.state == State::Hole {
                    break;
                }
                let (offset_bytes, bytes) = (index * FRAME as u64, count * FRAME as u64);
                let is_full = extents.len() == STRETCHES_MAX;
                match extents.last_mut() {
                    Some(last) if facts.go_on_from(&last.facts, last.bytes) => last.bytes += bytes,
                    _ if is_full => {
                        next_bytes = Some(offset_bytes);
                        break;
                    }
                    _ => extents.push(Stretch { offset_bytes, bytes, facts }),
                }
                index += count;
            }
        }
        Ok(Explanation {
            inode: ino.0,
            kind: kind.in_words(),
            size_bytes,
            ssd: core.ssd.is_some(),
            section: core.ssd.as_ref().and_then(|ssd| ssd.section_name(policy.section?)).map(String::from),
            section_rule: rules.section.map(|dir| dir.0),
            durability: policy.durability,
            durability_rule: rules.durability.map(|dir| dir.0),
            promote: core.promotions.status().policy,
            lag_seconds: (!core.is_recovered_in_memory()).then_some(self.lag.time.as_secs_f64()),
            extents,
            next_bytes,
        })
    }

    /// What is to be said of up to `max` frames from `index` on, and of how many of them.
    fn facts(
        &self,
        core: &mut Core,
        ino: Ino,
        index: u64,
        max: u64,
        is_mapped: bool,
    ) -> Result<(u64, Facts)> {
        let memory = in_memory(core, ino, index);
        let count = if memory.is_some() { 1 } else { self.until_memory(core, ino, index, max) };
        let (is_recovered, until) = core.aftermath.is_copied(ino, index);
        let count = count.min(until);
        let unit = self.ssd_blocks_per_frame;
        let known = core.ssd.as_ref().filter(|_| !core.state.ssd_is_fixed());
        let copy = known.and_then(|ssd| {
            let found = ssd.resident(ino, u32::try_from(index * unit).ok()?)?;
            let section = ssd.section_name_of(found.at)?.to_string();
            Some((found, section))
        });
        let count = match &copy {
            Some((found, _)) => count.min((u64::from(found.len) / unit).max(1)),
            None => self.until_ssd(core, ino, index, count),
        };
        let per_frame = self.blocks_per_frame;
        let limit = u32::try_from(count * per_frame).unwrap_or(u32::MAX);
        let mapping = core.ext4.map(ino, index * per_frame, limit)?;
        let count = count.min((mapping.blocks() / per_frame).max(1));
        let disk_at = |core: &mut Core| -> Result<Option<u64>> {
            // A frame of smaller blocks may begin with a hole.
            for block in index * per_frame..(index + 1) * per_frame {
                if let Mapping::Data { at, .. } = core.ext4.map(ino, block, 1)? {
                    return Ok(Some(at.0 * self.disk_block_bytes as u64));
                }
            }
            Ok(None)
        };
        let mut on_disk = disk_at(core)?;
        // What recovery brought to a copy of the disk half is not there.
        let is_recovered = is_recovered && on_disk.take().is_some();
        let state = match (&memory, &copy) {
            (None, Some(_)) if is_recovered => State::Ssd,
            (None, None) if is_recovered => State::Log,
            (Some((_, known)), Some(_)) if known.placed => State::Ssd,
            (Some((_, known)), _) if known.logged => State::Log,
            (Some(_), _) => State::Memory,
            (None, Some((found, _))) if found.state == CopyState::Ssd => State::Ssd,
            (None, Some(_)) => State::Both,
            (None, None) if on_disk.is_some() => State::Disk,
            (None, None) if matches!(mapping, Mapping::Unwritten { .. }) => State::Reserved,
            (None, None) => State::Hole,
        };
        let at = copy.as_ref().map(|(found, _)| found.at);
        let why = match is_recovered {
            true => "fsynced; only the SSD half has it until the volume is mounted for writing".into(),
            false => self.why(core, ino, index, state, at, is_mapped),
        };
        let block_bytes = self.ssd_block_bytes as u64;
        let facts = Facts {
            state,
            memory: memory.map(|(place, _)| place),
            ssd: copy.map(|(found, section)| OnSsd {
                section,
                at_bytes: found.at.0 * block_bytes,
                old: matches!(state, State::Memory | State::Log),
            }),
            disk: on_disk.map(|at_bytes| OnDisk {
                at_bytes,
                old: matches!(state, State::Memory | State::Log | State::Ssd),
            }),
            why,
        };
        Ok((count, facts))
    }

    /// Why the contents of a frame are where they are, as far as that is known.
    fn why(
        &self,
        core: &Core,
        ino: Ino,
        index: u64,
        state: State,
        at: Option<SsdBlock>,
        is_mapped: bool,
    ) -> String {
        let promote = core.promotions.status().policy;
        match state {
            State::Memory => "written and not fsynced; the disk gets it within lag".into(),
            State::Log => "fsynced to the SSD's log; the disk gets it within lag".into(),
            State::Ssd => "written to its section of the SSD; the disk gets it within lag".into(),
            State::Both if at.is_some_and(|at| core.promotions.has_brought(ino, index, at)) => {
                format!("read from the disk, and copied to the SSD for it (promote={promote})")
            }
            State::Both => {
                "copied to the SSD when it was written, or by a read that is not remembered".into()
            }
            State::Disk if core.state.ssd_lost().is_some() => "the SSD half is lost".into(),
            State::Disk if core.ssd.is_none() => "there is no SSD half".into(),
            State::Disk if !is_mapped => "its directory bypasses the SSD".into(),
            State::Disk if core.ssd.as_ref().is_some_and(|ssd| ssd.was_evicted(ino)) => {
                format!(
                    "its copy was pushed off the SSD to make room; reads bring it back (promote={promote})"
                )
            }
            State::Disk if promote == "never" => "on the SSD is only what is written (promote=never)".into(),
            State::Disk if core.promotions.remembers(ino, index) => {
                format!("read from the disk once of late; the next such read copies it (promote={promote})")
            }
            State::Disk => format!("not read from the disk of late (promote={promote})"),
            State::Hole => "never written, or punched; reads as zeros".into(),
            State::Reserved => "reserved ahead (fallocate); reads as zeros".into(),
        }
    }
}

/// Where in memory a frame that the disk lacks is, and what is known of it.
fn in_memory(core: &Core, ino: Ino, index: u64) -> Option<(&'static str, Known)> {
    if let Some(frame) = core.nodes.get(ino).and_then(|node| node.frames().get(&index)) {
        return Some(("dirty", frame.known()));
    }
    let mut frozen = core.cycle.as_ref()?.frames_of(ino, index..index + 1);
    frozen.next().map(|(_, frame)| ("committing", frame.known()))
}
