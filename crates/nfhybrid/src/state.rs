//! The state of a volume: what a mount may do with what it finds, and what may become of it while it runs.
//!
//! The disk half's pairing carries it ([`Saved`]); the SSD half's superblock says whether it was left in order. Neither
//! half is written before [`judge`] has allowed it.
//!
//! ```text
//!              judge                         recovered            opened              closing
//! clean ───────────────────────────────────────────────▶ Settling ───────▶ Open ───────────────▶ Closing ──▶ clean
//! log open, recovering ─────────▶ Replaying ────────────▶    │              │                       │
//! any, the SSD's contents dropped ▶ Rejoining ──────────▶    │ the SSD      │ the SSD               │
//! degraded, clean; no SSD ──────▶ Degraded ◀────────────────┴──failed──────┴──failed───────────────┘
//! ```
//!
//! - **Replaying**: the log is run again on the disk; the SSD is only read, in memory too, and the disk says
//!   `recovering`. An error ends the mount, and both halves are such that the next one runs it again.
//! - **Rejoining**: nothing on the SSD counts; the disk says `degraded` with a raised epoch before the SSD is written.
//! - **Settling**: the disk has everything, the SSD is told so.
//! - **Open**: the disk said `log open`, durably, before the log took anything.
//!
//! **Who may raise the epoch** (which is what makes an SSD stale for ever): a user's word at a mount (`without-ssd`,
//! `recover=disk`); the first change of a clean or degraded disk that is mounted without its SSD; and [`State::ssd_failed`], for an error that the SSD's
//! own device gave, in Settling, Open and Closing, where the disk and memory have all there is. Nothing else.
//!
//! **Which halves were last used together** says the lower half of the epoch: each mount of both draws it anew when it comes to
//! Settling, tells the SSD, with what the disk said before, and then the disk. So of two copies of a volume that both went on
//! no half is taken for the other's, nor an older copy of a half for the newest, whatever their clocks and counts say. When the
//! disk has said it, the SSD is told once more ([`State::joined`]): from then on a disk that says what was before is refused.
//!
//! A disk that fails does not end the mount: [`State::disk_failed`] stops changes, reading goes on.

use super::mount::SSD_HALF;
use super::pairing::{NoPairing, Pairing, Saved};
use super::{Recover, ssd};
use bimetal_base::{Error, Result};
use bimetal_ext4::Identity;
use std::fmt::Display;

/// What a volume is doing; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The SSD's log is being replayed; the SSD is not written.
    Replaying,
    /// What the SSD holds is dropped; the disk is about to say so.
    Rejoining,
    /// The disk has everything; the SSD is about to be told.
    Settling,
    /// In use with both halves.
    Open,
    /// The last commit of a mount.
    Closing,
    /// In use without an SSD.
    Degraded,
}

/// Why nothing, or nothing more, can be done.
#[derive(Clone, Debug)]
enum Halt {
    /// The disk half failed: no changes; reading goes on.
    Disk(String),
    /// The mount has ended.
    Ended(&'static str),
}

/// The state of a mounted volume.
#[derive(Debug)]
pub struct State {
    phase: Phase,
    epoch: u64,
    before: u32,
    /// The lower half of the epoch that the SSD says. It may have been told another one, which the disk has not said: then
    /// this is what was before, or its log is empty.
    ssd_says: u32,
    given_up: Option<u32>,
    draw: u32,
    ssd_lost: Option<String>,
    halt: Option<Halt>,
}

impl State {
    /// Of a mount that was allowed.
    pub fn new(plan: &Plan) -> State {
        let (phase, epoch, draw) = (plan.phase, plan.epoch, plan.draw);
        let (before, given_up) = (epoch as u32, plan.given_up);
        let ssd_says = given_up.unwrap_or(before);
        let mut state = State { phase, epoch, before, ssd_says, given_up, draw, ssd_lost: None, halt: None };
        if phase == Phase::Settling {
            state.settle();
        }
        state
    }

    /// From here on the halves are told that they are used together, in this mount.
    fn settle(&mut self) {
        self.phase = Phase::Settling;
        (self.before, self.epoch) = (self.epoch as u32, drawn(self.epoch, self.draw));
    }

    /// Which SSD may speak for the disk.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The lower half of the epoch that the disk says until it is told [`State::epoch`].
    pub fn epoch_before(&self) -> u32 {
        self.before
    }

    /// The lower half of the epoch that the SSD says, or says was before, that this disk goes on without, if that is known:
    /// whatever its log holds.
    pub fn given_up(&self) -> Option<u32> {
        self.given_up.filter(|_| self.saved() == Saved::Degraded)
    }

    /// What the next commit says of the volume.
    pub fn saved(&self) -> Saved {
        match self.phase {
            Phase::Replaying => Saved::Recovering,
            Phase::Rejoining | Phase::Degraded => Saved::Degraded,
            Phase::Settling | Phase::Closing => Saved::Clean,
            Phase::Open => Saved::LogOpen,
        }
    }

    /// The SSD is not to be written, nor what is known of it changed.
    pub fn ssd_is_fixed(&self) -> bool {
        matches!(self.phase, Phase::Replaying | Phase::Rejoining)
    }

    /// The mount is not done: there is no log to be started anew.
    pub fn is_mounting(&self) -> bool {
        self.ssd_is_fixed() || self.phase == Phase::Settling
    }

    /// The disk has all that the SSD's log held.
    pub fn recovered(&mut self) {
        if self.ssd_is_fixed() {
            self.settle();
        }
    }

    /// The SSD knows it; from the next commit on the log may be used.
    pub fn opened(&mut self) {
        if self.phase == Phase::Settling {
            self.phase = Phase::Open;
        }
    }

    /// The disk has said it: whoever says what it said before is another one, or older.
    pub fn joined(&mut self) {
        (self.before, self.ssd_says) = (self.epoch as u32, self.epoch as u32);
    }

    /// The next commit is the last.
    pub fn closing(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closing;
        }
    }

    /// An error where the SSD is used. Whether it is given up for it: for what its own device said, where nothing is lost
    /// by that; the epoch is raised then, and the next commit carries it.
    pub fn ssd_failed(&mut self, error: &Error) -> bool {
        matches!(error, Error::Ssd(_)) && self.give_up_ssd(error)
    }

    /// The SSD's log has no room for what the next commit of the disk counts on. Whether the SSD is given up for that: it
    /// costs the copies, where anything else would end all changes.
    pub fn ssd_overflowed(&mut self, error: &Error) -> bool {
        matches!(error, Error::NoSpace(_)) && self.give_up_ssd(error)
    }

    fn give_up_ssd(&mut self, error: &Error) -> bool {
        if self.ssd_is_fixed() || self.phase == Phase::Degraded {
            return false;
        }
        self.phase = Phase::Degraded;
        self.given_up = Some(self.ssd_says);
        self.epoch = raised(self.epoch, self.draw);
        self.ssd_lost = Some(error.to_string());
        true
    }

    /// Adds to why the SSD was given up.
    pub fn note_ssd_lost(&mut self, more: impl Display) {
        if let Some(why) = &mut self.ssd_lost {
            *why = format!("{why} ({more})");
        }
    }

    /// Why the SSD was given up, if it was.
    pub fn ssd_lost(&self) -> Option<&str> {
        self.ssd_lost.as_deref()
    }

    /// The disk half failed: nothing can change any more.
    pub fn disk_failed(&mut self, error: &Error) {
        self.halt.get_or_insert_with(|| Halt::Disk(error.to_string()));
    }

    /// The mount has ended.
    pub fn ended(&mut self, how: &'static str) {
        self.halt = Some(Halt::Ended(how));
    }

    /// Changes reach the disk.
    pub fn is_running(&self) -> bool {
        self.halt.is_none()
    }

    /// Why no change reaches the disk, if none does.
    pub fn failure(&self) -> Option<String> {
        self.halt.as_ref().map(|halt| match halt {
            Halt::Disk(why) => why.clone(),
            Halt::Ended(how) => (*how).into(),
        })
    }

    /// An error if not even reading is possible.
    pub fn check_readable(&self) -> Result<()> {
        match &self.halt {
            Some(Halt::Ended(how)) => Err(Error::io(how, std::io::Error::other("the file system has ended"))),
            _ => Ok(()),
        }
    }

    /// An error if nothing can be made durable on the disk.
    pub fn check_running(&self) -> Result<()> {
        self.check_readable()?;
        match &self.halt {
            Some(Halt::Disk(why)) => {
                let source = std::io::Error::other("the disk half failed; files can be read, not changed");
                Err(Error::io(why, source))
            }
            _ => Ok(()),
        }
    }

    /// An error if nothing may change.
    pub fn check_changeable(&self) -> Result<()> {
        self.check_readable()?;
        match &self.halt {
            Some(Halt::Disk(why)) => {
                let what = format!("the disk half failed ({why}); files can be read, not changed");
                Err(Error::io(what, std::io::Error::from_raw_os_error(libc::EROFS)))
            }
            _ => Ok(()),
        }
    }
}

/// What the disk half says, before anything is written.
pub struct DiskSays<'a> {
    /// Its device's name.
    pub name: &'a str,
    /// Who it is.
    pub identity: Identity,
    /// Its pairing.
    pub pairing: Result<Pairing, NoPairing>,
}

/// What the SSD half says, before anything is written.
pub struct SsdSays<'a> {
    /// Its device's name.
    pub name: &'a str,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// What it knows of its disk.
    pub seen: ssd::Pairing,
    /// It was left in order.
    pub clean: bool,
    /// The last operation it knows the disk to have had.
    pub disk_had: u64,
    /// Its log holds operations that the disk does not have.
    pub holds: bool,
    /// Its log holds operations that it does not know its own disk to have, or may: it was not left in order, and is damaged.
    /// Their numbers say nothing to another disk.
    pub holds_own: bool,
    /// What was durable on it and is damaged.
    pub lost: Option<&'a str>,
    /// Its log was not read: the user drops it.
    pub unread: bool,
}

/// What the user said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Word {
    /// Go on without the SSD, whatever its log holds.
    pub without_ssd: bool,
    /// What to do with the log.
    pub recover: Recover,
    /// A number that no other mount has drawn, as good as ever; see [`raised`].
    pub draw: u32,
}

/// The epoch after this one: a count in its upper half, in the lower one what the mount has drawn that counted. Two histories
/// of a volume that parted (a half was put back from a backup, and used) do not come to the same epoch.
pub(super) fn raised(epoch: u64, draw: u32) -> u64 {
    ((epoch >> 32) + 1) << 32 | u64::from(draw)
}

/// The epoch of a mount of both halves that has drawn this. Counts of before version 4 of the SSD's format have nothing
/// drawn in them and stay as they are.
fn drawn(epoch: u64, draw: u32) -> u64 {
    match epoch >> 32 {
        0 => epoch,
        count => count << 32 | u64::from(draw),
    }
}

/// How often the epoch was raised, as a number that rises with it.
fn count(epoch: u64) -> u64 {
    match epoch >> 32 {
        0 => epoch,
        count => count << 32,
    }
}

/// How the note begins of an SSD whose log and copies are dropped; why follows.
pub(super) const STALE: &str = "the SSD is stale and its contents are dropped: ";
/// How the note begins of an SSD whose copies are dropped; why follows.
pub(super) const COPIES_DROPPED: &str = "the SSD's cached data is dropped: ";
/// How the note begins of a log that is dropped by the user's word; what it held follows.
pub(super) const WITHOUT_SSD: &str = "mounted without its SSD, as asked: dropped is ";

/// What a mount is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where it begins.
    pub phase: Phase,
    /// The epoch from now on.
    pub epoch: u64,
    /// See [`Word::draw`].
    pub draw: u32,
    /// See [`State::given_up`].
    pub given_up: Option<u32>,
    /// What the SSD caches counts.
    pub cached: bool,
    /// Something else checked the disk half, or wrote to it, since the log was written.
    pub others: bool,
    /// What should be told.
    pub notes: Vec<String>,
}

/// What the halves are to each other, if they belong together.
enum Bond {
    /// The SSD has missed nothing.
    Current,
    /// Its log counts, its cached contents may be old.
    LogOnly(&'static str),
    /// The disk went on without it, knowingly.
    GivenUp,
    /// One of them missed something, nobody said it may.
    Apart(&'static str),
}

/// Decides what a mount may do; an error changes nothing on either half.
///
/// # Errors
/// [`Error::Mismatch`] for halves that do not belong together, or not any more while the SSD's log holds something;
/// [`Error::Invalid`] where the user's word is needed; [`Error::Corrupt`] for a damaged log; [`Error::Unsupported`] for
/// a pairing of another version.
pub fn judge(disk: &DiskSays, ssd: Option<&SsdSays>, word: Word) -> Result<Plan> {
    if let Err(NoPairing::Version(version)) = disk.pairing {
        let why = format!("it has version {version}; use the program that wrote it, or a newer one");
        return Err(Error::unsupported(format!("the pairing of {}", disk.name), why));
    }
    match ssd {
        None => judge_alone(disk, word),
        Some(_) if word.without_ssd => {
            Err(Error::invalid("without-ssd says to go on without the SSD; leave --ssd out, too"))
        }
        Some(ssd) => judge_both(disk, ssd, word),
    }
}

fn judge_alone(disk: &DiskSays, word: Word) -> Result<Plan> {
    let tied = disk.pairing.ok();
    let plan = |epoch, note: Option<String>| Plan {
        phase: Phase::Degraded,
        epoch,
        draw: word.draw,
        given_up: tied.and_then(|pairing| match pairing.state {
            Saved::Degraded => pairing.given_up(),
            _ => Some(pairing.epoch as u32),
        }),
        cached: false,
        others: false,
        notes: note.into_iter().collect(),
    };
    match disk.pairing {
        Ok(pairing) if matches!(pairing.state, Saved::LogOpen | Saved::Recovering) => {
            let what = format!(
                "{}, which only the log of its SSD ({}) holds",
                pairing.only_in_log(),
                show(pairing.ssd)
            );
            if !word.without_ssd {
                return Err(Error::invalid(format!(
                    "{} was not unmounted: {what}, would be lost; mount it with that SSD, or say --without-ssd \
                     (-o without-ssd) to drop it for ever",
                    disk.name
                )));
            }
            Ok(plan(raised(pairing.epoch, word.draw), Some(format!("{WITHOUT_SSD}{what}"))))
        }
        // A degraded one, too: a copy of it may have an SSD again.
        Ok(pairing) => Ok(plan(raised(pairing.epoch, word.draw), None)),
        Err(NoPairing::Damaged) if !word.without_ssd => Err(Error::corrupt(
            "the pairing to the SSD",
            "its checksum is wrong, so its SSD's log may hold what the disk does not have; say --without-ssd \
             (-o without-ssd) to go by the disk alone",
            disk.name,
        )),
        // Past any epoch that was ever counted up to.
        Err(NoPairing::Damaged) => {
            let note = format!("{WITHOUT_SSD}what was fsynced last, which only the log of its SSD may hold");
            Ok(plan(raised(1 << 62, word.draw), Some(note)))
        }
        Err(_) => Ok(plan(raised(0, word.draw), None)),
    }
}

fn judge_both(disk: &DiskSays, ssd: &SsdSays, word: Word) -> Result<Plan> {
    let bond = bond(disk, ssd)?;
    let pairing = disk.pairing.ok();
    let known = pairing.map_or(0, |pairing| pairing.epoch);
    let dropped = |why: String, newer: bool| Plan {
        phase: Phase::Rejoining,
        epoch: if newer { raised(known.max(ssd.seen.epoch), word.draw) } else { known },
        draw: word.draw,
        given_up: Some(ssd.seen.epoch as u32),
        cached: false,
        others: false,
        notes: vec![why],
    };
    let asked = word.recover == Recover::Disk;
    let is_open = match disk.pairing {
        Ok(pairing) => matches!(pairing.state, Saved::LogOpen | Saved::Recovering),
        // Nobody knows.
        Err(why) => why == NoPairing::Damaged,
    };
    match bond {
        Bond::GivenUp => {
            let why = "the disk was used after this SSD was lost or left out";
            Ok(dropped(format!("{STALE}{why}"), false))
        }
        // An SSD that was left in order and a disk that was not: the log that the disk tells of is on another.
        Bond::Apart(why) if asked || (ssd.clean && !is_open) => Ok(dropped(format!("{STALE}{why}"), true)),
        Bond::Apart(why) if ssd.clean => {
            let held =
                pairing.map_or_else(|| "what was fsynced last".into(), |pairing| pairing.only_in_log());
            Err(Error::Mismatch(format!(
                "{} was not unmounted, and {} does not hold {held}: {why}; nothing was changed: give the SSD half that it was last used with, or \
                 say -o recover=disk to drop that for ever; if e2fsck only put an old copy of the disk's superblock in place after a \
                 clean unmount, nothing is missing, and recover=disk goes on",
                disk.name, ssd.name
            )))
        }
        Bond::Apart(why) => Err(Error::Mismatch(format!(
            "{} was not left in order, and its log can no longer be applied to {}: {why}; nothing was changed: give the right pair, or get off \
             the SSD what it holds (bimetal rescue --ssd {0} DIR), then say -o recover=disk to drop what only the log holds",
            ssd.name, disk.name
        ))),
        _ if asked && (ssd.unread || ssd.lost.is_some() || is_open || ssd.holds) => {
            Ok(dropped("the SSD's log is dropped, as asked".into(), true))
        }
        Bond::Current | Bond::LogOnly(_) => {
            if let (Some(why), true, false) = (ssd.lost, is_open || ssd.holds, word.recover == Recover::Whole)
            {
                return Err(damaged(disk, ssd, why));
            }
            Ok(replayed(pairing, ssd, &bond, word))
        }
    }
}

fn damaged(disk: &DiskSays, half: &SsdSays, why: &str) -> Error {
    let lost = disk.pairing.map_or_else(|_| "what was fsynced last".into(), |pairing| pairing.only_in_log());
    if why.starts_with(ssd::LOG_ENDS) {
        return Error::Mismatch(format!(
            "{}: {why}, and {} does not have {lost}; nothing was changed: give the SSD half as it was left, or say \
             -o recover=whole to bring to the disk what is there, or -o recover=disk to drop all of it",
            half.name, disk.name
        ));
    }
    Error::corrupt(
        SSD_HALF,
        format!(
            "{why}, and the disk does not have {lost}; nothing was changed: try again, or say -o recover=whole to bring to \
             the disk what is whole of it, or -o recover=disk to drop all of it"
        ),
        half.name,
    )
}

fn replayed(pairing: Option<Pairing>, ssd: &SsdSays, bond: &Bond, word: Word) -> Plan {
    let cut = pairing.is_some_and(|pairing| pairing.state == Saved::Recovering);
    let is_open = pairing.is_some_and(|pairing| pairing.state == Saved::LogOpen);
    let mut notes = Vec::new();
    if let Bond::LogOnly(why) = bond {
        notes.push(format!("{COPIES_DROPPED}{why}"));
    }
    if cut {
        notes.push(format!("{COPIES_DROPPED}an earlier recovery was cut short"));
    }
    Plan {
        phase: if cut || ssd.holds || (is_open && ssd.lost.is_some()) {
            Phase::Replaying
        } else {
            Phase::Settling
        },
        epoch: pairing.map_or(0, |pairing| pairing.epoch),
        draw: word.draw,
        given_up: None,
        cached: notes.is_empty(),
        others: matches!(bond, Bond::LogOnly(_)),
        notes,
    }
}

/// Compares the halves; an error if they never belonged together.
fn bond(disk: &DiskSays, ssd: &SsdSays) -> Result<Bond> {
    let (seen, identity) = (&ssd.seen, &disk.identity);
    if seen.disk_uuid != identity.uuid {
        if disk.pairing.is_ok_and(|pairing| pairing.ssd == ssd.uuid) {
            return Err(Error::Mismatch(format!(
                "{} was last used with {1}, whose UUID was {2} then and is {3} now; nothing was changed: give it its UUID back \
                 (tune2fs -U {2} {1}), and leave it that as long as the two belong together",
                ssd.name,
                disk.name,
                show(seen.disk_uuid),
                show(identity.uuid),
            )));
        }
        return Err(Error::Mismatch(format!(
            "{} belongs to the disk {}, not to {} ({}); give the right SSD, or mount without one",
            ssd.name,
            show(seen.disk_uuid),
            disk.name,
            show(identity.uuid),
        )));
    }
    let pairing = match disk.pairing {
        Ok(pairing) => pairing,
        Err(NoPairing::Damaged) => return Ok(Bond::Apart("the disk's record of this SSD is damaged")),
        Err(_) => return Ok(Bond::Apart("the disk's record of this SSD is gone")),
    };
    if pairing.ssd == [0; 16] {
        return Ok(Bond::Apart(
            "the disk's record of this SSD is gone, and the disk was used without it since",
        ));
    }
    if pairing.ssd != ssd.uuid {
        return Err(Error::Mismatch(format!(
            "{} was since joined with another SSD ({}), {} is {}; give the right one, or mount without",
            disk.name,
            show(pairing.ssd),
            ssd.name,
            show(ssd.uuid),
        )));
    }
    let checked = identity.check_time != seen.last_check;
    let is_open = matches!(pairing.state, Saved::LogOpen | Saved::Recovering);
    let (disk_count, ssd_count) = (count(pairing.epoch), count(seen.epoch));
    Ok(match () {
        // A disk that went on without its SSD has all that its log held, or the user dropped it, of that very SSD; one that
        // has an SSD again says so, and that one was told first.
        () if disk_count > ssd_count && is_given_up(&pairing, ssd) => Bond::GivenUp,
        () if disk_count > ssd_count => {
            Bond::Apart("the SSD half is older than the one the disk was last used with, or of a copy")
        }
        () if disk_count < ssd_count || pairing.op < ssd.disk_had => {
            Bond::Apart("the disk is older than the SSD: it lost what it once had")
        }
        () if pairing.epoch != seen.epoch && !was_cut_between(&pairing, seen) => Bond::Apart(
            "they were not last used together: one of them is older (put back from a backup), or of a copy of the volume",
        ),
        // In order it is left after the disk has said so.
        () if is_open && ssd.clean => Bond::Apart(
            "the disk half is older than the SSD half, which was left in order, or of a copy of the volume",
        ),
        // A check counts mounts from 0 again, and brings a mount that the clock says is to come back to now.
        () if identity.mount_time != seen.mount_time && !(checked && was_brought_back(identity, seen))
            || identity.mount_count != seen.mount_count && !(identity.mount_count == 0 && checked) =>
        {
            Bond::Apart("the disk was mounted without this SSD")
        }
        () if checked => Bond::LogOnly("the disk was checked, or something else wrote to it, since"),
        // What we wrote since leaves the journal in use.
        () if !identity.in_use && identity.write_time != seen.write_time => {
            Bond::LogOnly("the disk was written to since")
        }
        () => Bond::Current,
    })
}

/// The power failed between the two writes that say which mount this is: the SSD's, and then the disk's. The disk is where it
/// was, or in another recovery, which was cut before it came to the SSD.
fn was_cut_between(pairing: &Pairing, seen: &ssd::Pairing) -> bool {
    let is_there =
        pairing.op == seen.disk_op || pairing.state == Saved::Recovering && pairing.op > seen.disk_op;
    is_there && pairing.epoch as u32 == seen.before
}

/// e2fsck found the time of the last mount to lie after its own, and set it to that.
fn was_brought_back(disk: &Identity, seen: &ssd::Pairing) -> bool {
    disk.mount_time < seen.mount_time && disk.mount_time == disk.check_time && disk.mount_count == 0
}

/// Whether an SSD with a lower count is the one that this disk gave up, or has nothing that its own disk lacks.
fn is_given_up(pairing: &Pairing, ssd: &SsdSays) -> bool {
    let of_old = pairing.epoch >> 32 == 0;
    match pairing.state {
        Saved::Degraded => {
            let says = [Some(ssd.seen.epoch as u32), Some(ssd.seen.before)];
            of_old || !ssd.holds_own || says.contains(&pairing.given_up())
        }
        Saved::Clean => of_old || ssd.clean,
        Saved::LogOpen | Saved::Recovering => false,
    }
}

fn show(uuid: [u8; 16]) -> uuid::Uuid {
    uuid::Uuid::from_bytes(uuid)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
