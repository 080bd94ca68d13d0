//! The beginning and the end of a mount: both halves looked at, judged, brought together, and left in order.
//!
//! 1. **Look**: the disk's superblock as its journal will leave it, the SSD's superblock, tables and log. Only reads.
//! 2. **Judge** (`state`): what may be done, or an error; then 3 and 4 in memory (`prepared`). Nothing was written so far.
//! 3. The disk's own journal is replayed and the disk marked as in use, as any mount of an ext4 does.
//! 4. **Replay** (`recover`): what only the SSD's log holds goes to the disk, in transactions that say `recovering`. The
//!    SSD is only read. What of its copies became old is remembered.
//! 5. **Settle**: the SSD is told: what is old is unbound, its tables and superblock are written.
//! 6. The disk says `log open`; from now on the log may be used.
//!
//! A disk alone that was left in order is not written before its first change ([`Ext4::is_unmarked`]): 3 and the raised
//! epoch come with that.
//!
//! Cut or stopped by an error anywhere, doing it again comes to the same end. Up to 5 the SSD is as it was, so the
//! log still says everything, and the disk has a number of its operations and says which. From then on until 6 the disk
//! has everything; since the SSD may have been told half of it, the next mount takes nothing on it for current.

use super::aftermath::Touched;
use super::core::Core;
use super::durable::fill;
use super::pairing::{NoPairing, Pairing, Saved};
use super::record::LOG_RECORD;
use super::recover::Recovery;
use super::ssd::{self, DiskSide, Ssd};
use super::state::{DiskSays, Phase, Plan, SsdSays, State, Word, judge};
use super::{Options, Recover, Shared, volume};
use bimetal_base::{Error, Result};
use bimetal_ext4::{Ext4, Look};
use bimetal_media::BlockDevice;
use bytes::Bytes;
use std::sync::Arc;

/// Both halves as a mount found them, and what it may do.
pub(super) struct Joined {
    pub ssd: Option<Ssd>,
    pub records: Vec<ssd::Record>,
    /// The log holds everything that was promised up to this operation.
    pub complete: u64,
    /// See [`ssd::Opened::until`].
    pub until: u64,
    /// See [`Recovery::beyond`].
    pub beyond: Option<Vec<(u64, Bytes)>>,
    pub plan: Plan,
    pub pairing: Option<Pairing>,
    /// A user's word drops an SSD's log that may hold something, of which the disk is to know at once.
    pub dropped: bool,
    pub notes: Vec<String>,
    /// See [`Look::journal_end`].
    pub journal_end: Option<u32>,
}

/// Looks at both halves and judges them; writes nothing.
pub(super) fn join(
    disk: &Arc<dyn BlockDevice>,
    device: Option<&Arc<dyn BlockDevice>>,
    options: Options,
    draw: u32,
) -> Result<Joined> {
    let Look { identity, pairing, journal_end } =
        Ext4::look(disk).map_err(|error| not_ext4(error, disk, device))?;
    let pairing = match Pairing::decode(pairing.as_ref()) {
        // Somebody brought back a superblock that lacks it; it is not as if there had never been an SSD.
        Err(NoPairing::None) if copy_has_pairing(disk.as_ref(), Some(identity.uuid)) => {
            Err(NoPairing::Damaged)
        }
        found => found,
    };
    let says = DiskSays { name: &disk.info().name, identity, pairing };
    let word = Word { without_ssd: options.without_ssd, recover: options.recover, draw };
    let pairing = says.pairing.ok();
    let Some(device) = device else { return alone(&says, word, Vec::new(), journal_end) };
    let known = pairing.map_or_else(DiskSide::default, |pairing| pairing.disk_side());
    let memory = options.memory.unwrap_or(ssd::MEMORY_DEFAULT);
    let (mut opened, unread) = match open_ssd(device.as_ref(), known, &says, (word, memory))? {
        Found::Opened(opened, unread) => (*opened, unread),
        Found::Nothing(why) => {
            return alone(&says, Word { without_ssd: true, ..word }, vec![why], journal_end);
        }
    };
    let has = pairing.map_or(0, |pairing| pairing.op);
    let knows = opened.ssd.pairing().disk_op;
    let name = &device.info().name;
    let plan = judge(
        &says,
        Some(&SsdSays {
            name,
            uuid: opened.ssd.uuid(),
            seen: *opened.ssd.pairing(),
            clean: opened.ssd.is_clean(),
            disk_had: opened.disk_had,
            holds: opened.records.iter().any(|record| record.op > has),
            holds_own: opened.records.iter().any(|record| record.op > opened.disk_had.max(knows))
                || opened.lost.is_some() && !opened.ssd.is_clean(),
            lost: opened.lost.as_deref(),
            unread,
        }),
        word,
    )?;
    if plan.phase == Phase::Rejoining {
        opened.records.clear();
    }
    let open = pairing.is_none_or(|pairing| matches!(pairing.state, Saved::LogOpen | Saved::Recovering));
    if !open && plan.phase != Phase::Rejoining && !opened.records.iter().any(|record| record.op > has) {
        say_that_nothing_is_lost(&mut opened);
    }
    // Of an SSD that is dropped nothing counts.
    let unfinished = opened.unfinished.filter(|_| plan.phase != Phase::Rejoining);
    let notes = [opened.notes, Vec::from_iter(unfinished), plan.notes.clone()].concat();
    let (ssd, records) = (Some(opened.ssd), opened.records);
    let (complete, until) = (opened.complete, opened.until);
    let beyond = opened.lost.map(|_| opened.beyond);
    let dropped = plan.phase == Phase::Rejoining && options.recover == Recover::Disk;
    Ok(Joined { ssd, records, complete, until, beyond, plan, pairing, dropped, notes, journal_end })
}

impl Joined {
    /// What a mount with these options has to run.
    pub(super) fn recovery(&self, options: Options) -> Recovery<'_> {
        let whole = options.recover == Recover::Whole;
        let &Joined { complete, until, .. } = self;
        let (others, beyond) = (self.plan.others, self.beyond.as_deref());
        let was_cut = self.pairing.is_some_and(|pairing| pairing.state == Saved::Recovering);
        Recovery { records: &self.records, complete, until, whole, others, was_cut, beyond }
    }
}

/// A mount of the disk half by itself.
fn alone(says: &DiskSays, word: Word, mut notes: Vec<String>, journal_end: Option<u32>) -> Result<Joined> {
    let (plan, pairing) = (judge(says, None, word)?, says.pairing.ok());
    let dropped = match says.pairing {
        Ok(pairing) => matches!(pairing.state, Saved::LogOpen | Saved::Recovering),
        Err(why) => why == NoPairing::Damaged,
    };
    notes.extend(plan.notes.iter().cloned());
    let (records, complete, until, beyond) = (Vec::new(), 0, 0, None);
    Ok(Joined { ssd: None, records, complete, until, beyond, plan, pairing, dropped, notes, journal_end })
}

/// Of a volume that was left in order, the disk half has everything that a damaged log told of.
fn say_that_nothing_is_lost(opened: &mut ssd::Opened) {
    let Some(lost) = &opened.lost else { return };
    let what = match lost.starts_with(ssd::LOG_ENDS) {
        true => "this is an older copy of the SSD half, or the end of its log is gone",
        false => "a part of the SSD's log is damaged",
    };
    for note in opened.notes.iter_mut().filter(|note| note.starts_with(lost) && note.len() > lost.len()) {
        *note = format!(
            "{what}, but nothing is lost: the volume was left in order, so the disk half has everything; the SSD's copies, \
             which that log tells of, are dropped"
        );
    }
}

/// Whether the copy of the disk's superblock, of this file system or any, says that it is a disk half that has an SSD.
pub(super) fn copy_has_pairing(disk: &dyn BlockDevice, uuid: Option<[u8; 16]>) -> bool {
    let copy = Ext4::look_at_copy(disk);
    let copy = copy.filter(|copy| uuid.is_none_or(|uuid| uuid == copy.identity.uuid));
    copy.is_some_and(|copy| match Pairing::decode(copy.pairing.as_ref()) {
        Ok(pairing) => pairing.ssd != [0; 16],
        Err(why) => why != NoPairing::None,
    })
}

/// Whether a device was refused for what it is, neither its magic number nor anything else being of an ext4.
pub(super) fn is_no_ext4(why: &Error) -> bool {
    matches!(why, Error::Corrupt { what, why, .. } if what == "the ext4 superblock" && why.starts_with("magic"))
}

/// A disk half that does not begin as an ext4 does: is it an SSD half?
pub(super) fn not_ext4(
    error: Error,
    disk: &Arc<dyn BlockDevice>,
    ssd: Option<&Arc<dyn BlockDevice>>,
) -> Error {
    let name = &disk.info().name;
    if !Ssd::is_one(disk.as_ref()) {
        // What is no ext4 at all may be something else, and is not for e2fsck.
        let is_ext4 = !matches!(&error, Error::Corrupt { what, .. } if what == "the ext4 superblock")
            || copy_has_pairing(disk.as_ref(), None);
        return if is_ext4 { damaged_disk(error, disk, None) } else { error };
    }
    let remedy = match ssd {
        Some(ssd) => format!("exchange them: --ssd {name} --disk {}", ssd.info().name),
        None => format!("give it as --ssd {name}, with --disk"),
    };
    Error::invalid(format!("{name} is an SSD half, and was given as the disk half; {remedy}"))
}

/// What there is of an SSD half.
enum Found {
    /// It, and whether its log was left out.
    Opened(Box<ssd::Opened>, bool),
    /// Nothing that could be used, which the user can do without; in words.
    Nothing(String),
}

/// Reads the SSD half; where its log cannot be read and the user drops it, without that, and where nothing of it can be
/// read, without it.
fn open_ssd(
    device: &dyn BlockDevice,
    known: DiskSide,
    disk: &DiskSays,
    (word, memory): (Word, u64),
) -> Result<Found> {
    let failed = match Ssd::open_within(device, known, memory) {
        Ok(opened) => return Ok(Found::Opened(Box::new(opened), false)),
        Err(error) => error,
    };
    if word.recover == Recover::Disk
        && let Ok(opened) = Ssd::open_empty(device, known, memory)
    {
        return Ok(Found::Opened(Box::new(opened), true));
    }
    if word.recover == Recover::Disk || word.without_ssd {
        return Ok(Found::Nothing(format!(
            "the SSD half could not be opened ({failed}): it is left out and not written, as asked"
        )));
    }
    let holds = match disk.pairing {
        Ok(pairing) if matches!(pairing.state, Saved::LogOpen | Saved::Recovering) => {
            Some(pairing.only_in_log())
        }
        Err(NoPairing::Damaged) => Some("what was fsynced last".into()),
        _ => None,
    };
    let remedy = match holds {
        Some(held) => format!(
            "the SSD half could not be read and nothing was changed; try again, or go by the disk alone with -o recover=disk or \
             without --ssd and with --without-ssd (-o without-ssd), which drop {held}"
        ),
        None => "the SSD half could not be read and nothing was changed; try again, or leave --ssd out: the disk has \
                 everything"
            .into(),
    };
    Err(match failed {
        own @ (Error::Mismatch(_) | Error::Unsupported { .. }) => own,
        other => other.explained(remedy),
    })
}

impl Shared {
    /// Recovery, and both halves marked as in use.
    pub(super) fn start(&self, mut joined: Joined, options: Options) -> Result<()> {
        let mut core = self.core.lock();
        core.ssd = joined.ssd.take();
        let (plan, pairing) = (&joined.plan, joined.pairing);
        if options.read_only {
            if !plan.cached {
                // What a mount for writing drops.
                core.ssd = None;
            }
            return match plan.phase {
                Phase::Replaying => Err(Error::invalid(
                    "the SSD's log holds operations the disk does not have; mount read-write once, or without the SSD",
                )),
                _ => Ok(()),
            };
        }
        if plan.phase == Phase::Rejoining {
            // Its log took numbers that the disk does not know of, and met disks with higher ones; none is used again: it
            // would pass for one that the disk has.
            let last = core.ssd.as_ref().map_or(0, Ssd::last_number);
            core.ops.skip_to(last);
        }
        if core.ext4.is_unmarked() && !joined.dropped {
            return Ok(());
        }
        let part = SsdPart::of(self.ssd_device.is_some(), &joined);
        let failed = |error| stopped(error, &self.disk, pairing, part);
        core.ext4.mark_in_use(self.clock.wall()).map_err(failed)?;
        let before = core.ops.committed() + 1;
        for ino in core.ext4.take_adopted() {
            core.aftermath.touch(Touched { ino, frames: 0..u64::MAX, before });
        }
        drop(core);
        let applied = self.bring_to_disk(&joined.recovery(options)).map_err(failed)?;
        let (cached, _) = (joined.plan.cached, drop(joined));
        let mut core = self.core.lock();
        core.aftermath.applied(applied);
        core.note_lost();
        core.state.recovered();
        drop(core);
        if applied > 0 {
            tracing::info!(applied, "operations recovered from the SSD's log");
        }
        self.settle_ssd(cached);
        let mut core = self.core.lock();
        let says = self.pairing_of(&core, 0);
        volume::mark_again(&core.ext4, &says).map_err(failed)?;
        core.state.opened();
        core.begin();
        drop(core);
        self.cycle().map_err(failed)?;
        self.core.lock().state.joined();
        if let Err(error) = self.write_identity(false) {
            self.ssd_failed(&Error::of_ssd(error));
        }
        Ok(())
    }

    /// What the disk lacks, and what it must say before the SSD is written.
    pub(super) fn bring_to_disk(&self, log: &Recovery) -> Result<u64> {
        if !self.core.lock().state.ssd_is_fixed() {
            return Ok(0);
        }
        let applied = self.replay(log)?;
        self.core.lock().begin();
        self.cycle()?;
        Ok(applied)
    }

    /// Tells the SSD what recovery did. The disk has everything, so an SSD that cannot be told is given up.
    fn settle_ssd(&self, cached: bool) {
        if let Err(error) = self.tell_ssd(cached).and_then(|()| self.write_identity(false)) {
            self.ssd_failed(&Error::of_ssd(error));
        }
    }

    fn tell_ssd(&self, cached: bool) -> Result<()> {
        let _gate = self.line.claim();
        let mut core = self.core.lock();
        let (touched, committed) = (core.aftermath.take_touched(), core.ops.committed());
        let Some(ssd) = &mut core.ssd else { return Ok(()) };
        let mut cached = cached;
        for Touched { ino, frames, before } in touched {
            if ssd.is_filled(0, fill::TABLES) {
                cached = false;
            }
            if !cached {
                break;
            }
            let (from, len) = self.ssd_range(&frames);
            ssd.unbind_before(before, ino, from, len);
        }
        if !cached {
            ssd.drop_all();
        }
        ssd.trim(committed);
        self.checkpoint(core)?;
        if self.core.lock().tables.are_due() {
            // Half told is not told.
            return Err(Error::NoSpace("the SSD's log"));
        }
        self.tables_flushed()?;
        self.advance_log()
    }

    /// Writes what the SSD should see when it next meets the disk.
    fn write_identity(&self, clean: bool) -> Result<()> {
        let Some(device) = &self.ssd_device else { return Ok(()) };
        let _gate = self.line.claim();
        let mut core = self.core.lock();
        let identity = core.ext4.identity();
        let (epoch, before) = (core.state.epoch(), (core.state.epoch_before(), core.ops.committed()));
        let Some(ssd) = &mut core.ssd else { return Ok(()) };
        let pairing = volume::pairing_to(identity, epoch, before);
        let writes = if clean { ssd.mark_clean(pairing) } else { ssd.set_pairing(pairing) };
        drop(core);
        writes.into_iter().try_for_each(|(offset, bytes)| {
            device.write(offset, bytes)?;
            device.flush()
        })
    }

    /// The clean end: everything on the disk, the journal empty, both halves marked clean.
    pub(super) fn finish(&self) -> Result<()> {
        let orphans = self.core.lock().nodes.orphans();
        for ino in orphans {
            let mut core = self.core.lock();
            self.release(&mut core, ino)?;
        }
        let now = self.clock.wall();
        let mut core = self.core.lock();
        if core.ext4.is_unmarked() && core.dirty.since().is_none() {
            core.state.ended("unmounted");
            return Ok(());
        }
        core.state.closing();
        core.begin();
        drop(core);
        self.cycle()?;
        // What an SSD that failed meanwhile left to be said goes with one more.
        let is_done = |core: &Core| !core.nodes.has_half_freed() && core.ops.all_on_disk();
        while !is_done(&self.core.lock()) {
            self.cycle()?;
        }
        let tables = {
            let _gate = self.line.claim();
            self.flush_tables()
        };
        let close = self.core.lock().ext4.close(now);
        close?;
        // The disk has everything and says so: an SSD that cannot be left in order is found to be current all the same.
        if let Err(error) = tables.and_then(|()| self.write_identity(true)) {
            tracing::warn!(%error, "the SSD half could not be left in order; nothing is lost");
        }
        self.core.lock().state.ended("unmounted");
        Ok(())
    }

    /// An SSD is given up for an error of its own device, where the state allows it. Everything it alone had is still in
    /// memory. Whether there is no SSD from now on.
    pub(super) fn ssd_failed(&self, error: &Error) -> bool {
        let ended = self.ssd_ended(error, State::ssd_failed);
        if !ended {
            tracing::error!(%error, "the SSD could not be used for once; it is kept");
        }
        ended
    }

    /// The same for a log without room for what the next commit counts on.
    pub(super) fn ssd_overflowed(&self, error: &Error) -> bool {
        self.ssd_ended(error, State::ssd_overflowed)
    }

    /// The one door by which an SSD is given up, if `judge` says so.
    fn ssd_ended(&self, error: &Error, judge: fn(&mut State, &Error) -> bool) -> bool {
        let mut core = self.core.lock();
        if core.ssd.is_none() {
            return true;
        }
        if !judge(&mut core.state, error) {
            return false;
        }
        tracing::error!(%error, "the SSD failed; going on from the disk alone");
        self.drop_ssd(&mut core);
        true
    }

    fn drop_ssd(&self, core: &mut Core) {
        let Some(ssd) = core.ssd.take() else { return };
        core.state.note_ssd_lost(volume::log_use(&ssd));
        core.rules.changed();
        core.space_freed();
        core.ops.forget_records();
        core.promotions.take();
        let last = core.begin();
        core.ops.want(last);
        self.work.notify_one();
    }
}

/// How the remedy begins that an error of a damaged disk half ends with.
pub(super) const REMEDY: &str = ". Repair the disk with ";

/// What errors of a damaged disk half call it.
pub(super) const DISK_HALF: &str = "the disk half";

/// What errors of a damaged SSD half call it.
pub(super) const SSD_HALF: &str = "the SSD half";

/// What an SSD half has to do with a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SsdPart {
    /// Its log counts.
    Joined,
    /// It is not there, or nothing on it counts any more, and the disk half has everything.
    None,
    /// It is not there, and what its log may hold is dropped by a user's word.
    Absent,
    /// It is there, and what its log may hold is dropped by a user's word.
    Dropped,
}

impl SsdPart {
    /// By whether there is one, and what becomes of its log.
    pub(super) fn of(is_there: bool, joined: &Joined) -> SsdPart {
        match (is_there, joined.dropped) {
            (true, false) if joined.plan.phase != Phase::Rejoining => SsdPart::Joined,
            (_, false) => SsdPart::None,
            (false, true) => SsdPart::Absent,
            (true, true) => SsdPart::Dropped,
        }
    }
}

/// An error of a mount that had begun, with what to do about it.
pub(super) fn stopped(
    error: Error,
    disk: &Arc<dyn BlockDevice>,
    pairing: Option<Pairing>,
    ssd: SsdPart,
) -> Error {
    match ssd {
        SsdPart::Joined => recovery_stopped(error, disk, pairing),
        SsdPart::None => alone_stopped(
            error,
            disk,
            pairing,
            "nothing is lost, what was fsynced is in the disk half's own journal",
        ),
        SsdPart::Absent => alone_stopped(
            error,
            disk,
            pairing,
            "what the disk half has it keeps, and the SSD half was not written to",
        ),
        SsdPart::Dropped => alone_stopped(
            error,
            disk,
            pairing,
            "what the disk half has it keeps, and what the SSD's log alone had is dropped, as asked (with -o recover=disk again, \
             if a mount refuses without)",
        ),
    }
}

/// An error of a mount of the disk half by itself; `kept` says what is not lost.
fn alone_stopped(error: Error, disk: &Arc<dyn BlockDevice>, pairing: Option<Pairing>, kept: &str) -> Error {
    match error {
        Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            error.explained(format!(
                "the file system that the disk half's image lies on has no room for what is written to it; {kept}: make room there \
                 and mount it again (files can be read meanwhile, with -o ro or bimetal get)"
            ))
        }
        Error::Io { .. } | Error::Gone { .. } => error.explained(format!(
            "the disk half failed while it was mounted; {kept}: mount it again, if need be with the disk copied to a good one \
             (ddrescue)"
        )),
        other => damaged_disk(other, disk, pairing),
    }
}

/// An error of recovery, with what to do about it.
fn recovery_stopped(error: Error, disk: &Arc<dyn BlockDevice>, pairing: Option<Pairing>) -> Error {
    let held = pairing.map_or_else(|| "what was fsynced last".into(), |pairing| pairing.only_in_log());
    match error {
        Error::Ssd(_) => error.explained(format!(
            "the SSD's log could not be read in full; nothing is lost so far: try again, or say -o recover=whole to bring to \
             the disk what can be read, or leave the SSD out with --without-ssd (-o without-ssd), which drops {held}"
        )),
        Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::StorageFull => error.explained(
            "the file system that the disk half's image lies on has no room for what is brought to it; nothing is lost, the SSD's log \
             holds it: make room there and mount both halves again (files can be read meanwhile, with -o ro or bimetal get)",
        ),
        Error::Io { .. } | Error::Gone { .. } => error.explained(
            "the disk half failed while it was brought up to date; nothing is lost, the SSD's log holds it: mount both \
             halves again, if need be with the disk copied to a good one (ddrescue)",
        ),
        Error::NoSpace(why) => Error::Mismatch(format!(
            "what the SSD's log holds does not fit the disk half {}, which is full ({why}); nothing is lost: bring the disk half \
             to a larger device (a copy, then resize2fs there); or get off the SSD half what it holds (bimetal rescue), then \
             mount with -o recover=disk, which drops its log",
            disk.info().name
        )),
        other @ (Error::Corrupt { .. } | Error::Mismatch(_) | Error::Unsupported { .. } | Error::Invalid(_)) => {
            damaged_disk(other, disk, pairing)
        }
        // Nothing else is expected here.
        other => other.explained(
            "the SSD's log could not be brought to the disk half; nothing is lost so far: get off the SSD half what it holds \
             (bimetal rescue), then mount with -o recover=disk, which drops its log",
        ),
    }
}

/// What it costs to repair a disk half of whose journal this is wrong.
pub(super) fn journal_is_lost(why: &str) -> String {
    format!(
        "Its journal cannot be replayed{why}: a repair loses what that alone has, and what the SSD's log holds may not fit \
         what is left. Try again, if need be with the disk copied to a good one (ddrescue); or get off what the SSD half has \
         (bimetal rescue), and then repair both with bimetal fsck --yes"
    )
}

/// What it costs to repair a disk half of which this is damaged without a copy.
pub(super) const NO_COPY: &str = "There is no copy of it, as of a file system of one block group: a repair makes it anew and may take the \
    journal away, and then what only the SSD's log holds cannot be applied. First get off what both halves hold (bimetal rescue, \
    bimetal get), then repair with bimetal fsck --yes";

/// Whether what is damaged is something that e2fsck goes by a copy of, and there is none.
pub(super) fn lacks_copy(why: &Error, disk: &Arc<dyn BlockDevice>) -> bool {
    let is_copied = |what: &str| what == "the ext4 superblock" || what.contains("group descriptor");
    matches!(why, Error::Corrupt { what, .. } if is_copied(what))
        && Ext4::look_at_copy(disk.as_ref()).is_none()
}

/// A disk half that could not be read before anything was written, with what to do about it; other errors as they are.
pub(super) fn unreadable_disk(error: Error) -> Error {
    match error {
        Error::Io { .. } | Error::Gone { .. } => error.explained(
            "the disk half could not be read, and nothing was changed; try again, if need be with the disk copied to a good one \
             (ddrescue)",
        ),
        other => other,
    }
}

/// Damage that was found in the disk half before anything was written, with what to do about it; other errors as they
/// are.
pub(super) fn damaged_disk(error: Error, disk: &Arc<dyn BlockDevice>, pairing: Option<Pairing>) -> Error {
    let has_no_copy = lacks_copy(&error, disk);
    let Error::Corrupt { what, why, at } = error else { return unreadable_disk(error) };
    // These say themselves what to do.
    if [LOG_RECORD, DISK_HALF, SSD_HALF].contains(&&*what) {
        return Error::Corrupt { what, why, at };
    }
    let name = &disk.info().name;
    if has_no_copy {
        return Error::corrupt(DISK_HALF, format!("{what} is damaged: {why} (at {at}). {NO_COPY}"), name);
    }
    if let Err(of_journal) = Ext4::check_journal(disk) {
        let lost = journal_is_lost(&format!(" ({of_journal})"));
        let why = format!("{what} is damaged: {why} (at {at}). {lost}");
        return Error::corrupt(DISK_HALF, why, name);
    }
    // Where the disk half could not be read so far, its SSD's log may hold something.
    let holds = pairing.is_none_or(|pairing| matches!(pairing.state, Saved::LogOpen | Saved::Recovering));
    let (kept, then, first) = match holds {
        true => (
            "; what only its SSD's log holds is not lost",
            "mount both halves",
            ". A file that it takes away may be on the SSD half: `bimetal fsck -n` names those, bimetal rescue gets off what \
             there is, before that",
        ),
        false => ("", "mount", ""),
    };
    let why = format!(
        "{what} is damaged: {why} (at {at}){kept}{REMEDY}e2fsck -f {name}, then {then} again; bimetal fsck \
         --yes does both{first}"
    );
    Error::corrupt(DISK_HALF, why, name)
}
