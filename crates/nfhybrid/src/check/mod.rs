//! Checking a volume that is not mounted.
//!
//! Everything is tried in memory first, over the halves as they are: the SSD's log and tables, recovery, a walk over
//! the whole tree, the copies on the SSD if that is asked for, and the disk half's own checker. What is found clean is
//! not written to, not by one byte, so that the SSD's copies stay valid. Only then is anything repaired on the media,
//! and nothing that loses something unless the user said so: names that lead to inodes which cannot be read are such a
//! loss, for e2fsck clears them, even with `-p`. After e2fsck repaired the disk half its pairing to the SSD is
//! renewed if every copy on the SSD still is what the disk has.

mod findings;

pub use findings::{Findings, Problem};

use super::aftermath::WHAT_IS_LOST;
use super::half::{refuse_marked, refuse_reused_ssd, role_of_ssd};
use super::mount::{
    NO_COPY, REMEDY, SSD_HALF, copy_has_pairing, is_no_ext4, journal_is_lost, lacks_copy, not_ext4,
    unreadable_disk,
};
use super::pairing::{Pairing, Saved};
use super::scrub::{BadCopy, Step};
use super::ssd::{DiskSide, Ssd};
use super::state::{COPIES_DROPPED, STALE, WITHOUT_SSD};
use super::unfit::LEFT_OUT;
use super::volume::{Ran, lend, pairing_to};
use super::{NfHybrid, Options, Recover};
use bimetal_base::error::shown;
use bimetal_base::runtime;
use bimetal_base::units::Ino;
use bimetal_base::{Error, Result};
use bimetal_ext4::{Ext4, OpenOptions};
use bimetal_media::file::{self, FileDevice};
use bimetal_media::guard::{self, Role, Target};
use bimetal_media::{BlockDevice, overlay::Overlay};
use bimetal_vfs::{FileSystem, Kind};
use findings::{COPIES, DISK, LOG, NAMED, TABLES, name_bad, note_damage};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::Path;
use std::sync::Arc;

/// Bytes of copies verified between two looks at the progress.
const STEP_BYTES: u64 = 16 << 20;

/// What to check, and how far to go.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The disk half.
    pub disk: &'a Path,
    /// The SSD half.
    pub ssd: Option<&'a Path>,
    /// Go on without the SSD, whatever its log holds; see [`Options::without_ssd`].
    pub without_ssd: bool,
    /// Repair what can be repaired without losing anything; else nothing changes.
    pub repair: bool,
    /// Repair also what costs something.
    pub lossy: bool,
    /// Compare every copy on the SSD with its checksum and the disk.
    pub deep: bool,
}

/// So often e2fsck repairs a disk half that it still finds errors in.
const REPAIRS_MAX: u32 = 3;

/// Whether e2fsck says that it took something from a file or a directory, or what the journal had.
fn takes_away(said: &[String]) -> bool {
    const TAKES: [&str; 10] = [
        "Clear",
        "Salvage",
        "Connect to /lost+found",
        "Truncate",
        "Delete",
        "Split",
        "Unlink",
        "Clone",
        "Force rewrite",
        "Abort",
    ];
    // Of these there is nothing in a file.
    const KEEPS: [&str; 2] = ["Clear HTree index", "Clear flag"];
    const OF_JOURNAL: [&str; 5] = ["corrupt", "invalid", "aborted", "deleted", "checksum error"];
    let begins = |asked: &str, with: &[&str]| with.iter().any(|verb| asked.starts_with(verb));
    said.iter().any(|line| {
        // What it asks, and answers itself, stands behind what it says, names of files among that.
        let asked = line.trim().strip_suffix("? yes").map(|text| text.rsplit("  ").next().unwrap_or(text));
        let is_taken = asked.is_some_and(|asked| {
            begins(asked, &TAKES) && !begins(asked, &KEEPS) || asked == "Fix" && line.contains("i_size is")
        });
        is_taken || line.contains("ournal") && OF_JOURNAL.iter().any(|what| line.contains(what))
    })
}

impl Plan<'_> {
    /// What comes of a disk half that is in the way of everything else.
    fn with_yes(&self) -> &'static str {
        match self.ssd {
            _ if self.repair => "",
            Some(_) if !self.without_ssd => {
                " With --yes e2fsck repairs it, then the SSD's log is applied to it."
            }
            _ => " With --yes e2fsck repairs it.",
        }
    }

    /// What gets off what there is, before a repair takes some of it away.
    fn what_comes_first(&self) -> String {
        match self.ssd {
            Some(ssd) => format!(
                "First `bimetal rescue --ssd {} DIRECTORY` gets off the SSD half what it holds, and `bimetal get` what can be \
                 read",
                ssd.display()
            ),
            None => "First get off what there is (bimetal rescue, bimetal get)".into(),
        }
    }
}

/// Checks a volume; `progress` hears what is done now.
///
/// # Errors
/// A half is in use or cannot be read, the two do not belong together, or e2fsck cannot be run. What is wrong with the
/// volume is no error but a finding.
pub fn check(plan: &Plan, progress: &dyn Fn(&'static str)) -> Result<Findings> {
    let halves = Halves::claim(plan)?;
    let mut findings = Findings::default();
    progress("looking at the SSD's log and tables");
    let mut survey = halves.survey(plan, &mut findings)?;
    if survey == Survey::DiskIsDamaged && halves.repair_disk(plan, false, &mut findings, progress)? {
        survey = halves.survey(plan, &mut findings).unwrap_or_else(|why| {
            let (what, why) = match plan.ssd {
                Some(_) => (
                    LOG,
                    format!(
                        "What it holds could not be brought to the disk half as e2fsck left that: {why}. bimetal rescue gets it off."
                    ),
                ),
                None => (DISK, format!("As e2fsck left it: {why}.")),
            };
            findings.problem(what, why, true);
            Survey::Stop
        });
    }
    if survey != Survey::GoOn {
        findings.note_what_stays(plan);
        return Ok(findings);
    }
    progress("looking at every file");
    let Some(was_clean) = halves.try_out_or_repair(plan, &mut findings, progress)? else {
        findings.note_what_stays(plan);
        return Ok(findings);
    };
    // Somebody else may have replayed the journal of one that was not left in order.
    let disk: Arc<dyn BlockDevice> = halves.disk.clone();
    if was_clean || !plan.repair && Ext4::look(&disk).is_ok_and(|look| !look.identity.in_use) {
        progress("e2fsck looks at the disk half");
        halves.e2fsck(&["-f", "-n"], &mut findings)?;
    } else if !plan.repair {
        findings.partial = true;
        findings.note(
            "e2fsck was not run, as it wants the disk half's journal replayed, and nothing may change: what only it looks at is \
             unknown. fsck without -n runs it.",
        );
    }
    if findings.note_what_stays(plan) || !plan.repair {
        return Ok(findings);
    }
    halves.repair(plan, was_clean, &mut findings, progress)?;
    Ok(findings)
}

/// Both halves, claimed and open.
struct Halves {
    disk: Arc<FileDevice>,
    ssd: Option<Arc<FileDevice>>,
}

/// What a first look at both halves says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Survey {
    /// Both can be tried out.
    GoOn,
    /// The disk half cannot be opened.
    DiskIsDamaged,
    /// There is nothing to be done.
    Stop,
}

fn in_memory(device: &Arc<FileDevice>) -> Arc<dyn BlockDevice> {
    Arc::new(Overlay::new(device.clone()))
}

impl Halves {
    fn claim(plan: &Plan) -> Result<Halves> {
        let role = Role::changed_if(plan.repair);
        let of_ssd =
            |path| role_of_ssd(path, plan.repair, plan.lossy).map(|role| Target::new("--ssd", path, role));
        let ssd = plan.ssd.map(of_ssd).transpose()?;
        let targets: Vec<Target> = [Target::new("--disk", plan.disk, role)].into_iter().chain(ssd).collect();
        let mut claims = guard::claim(&targets, false)?.into_iter();
        let options = file::Options { writable: plan.repair, ..Default::default() };
        let disk = claims.next().ok_or(Error::BadArgument)?;
        let of_ssd = file::Options::of_ssd(plan.repair);
        let ssd = claims.next().map(|claim| FileDevice::over(claim, &of_ssd).map(Arc::new)).transpose()?;
        ssd.as_deref().map_or(Ok(()), refuse_reused_ssd)?;
        let disk = Arc::new(FileDevice::over(disk, &options)?);
        if plan.repair {
            [Some(&disk), ssd.as_ref()].into_iter().flatten().try_for_each(|half| refuse_marked(half))?;
        }
        Ok(Halves { disk, ssd })
    }

    /// The SSD takes no writes any more, and is not to be used from now on.
    fn ssd_is_only_read(&self) -> bool {
        let claim = self.ssd.as_ref().and_then(|ssd| ssd.claim());
        claim.is_some_and(|claim| claim.role() == Role::Read)
    }

    /// What the disk says of the SSD.
    fn pairing(&self) -> Result<Option<Pairing>> {
        let opening = OpenOptions { now: runtime::Live::wall_clock(), ..OpenOptions::default() };
        Ok(Pairing::decode(Ext4::open(in_memory(&self.disk), opening)?.pairing().as_ref()).ok())
    }

    /// What the SSD has lost by itself, whatever the disk has.
    fn survey(&self, plan: &Plan, findings: &mut Findings) -> Result<Survey> {
        let pairing = match self.pairing() {
            Ok(pairing) => pairing,
            Err(why) if Ssd::is_one(self.disk.as_ref()) => {
                let ssd = self.ssd.as_ref().map(in_memory);
                return Err(not_ext4(why, &in_memory(&self.disk), ssd.as_ref()));
            }
            Err(why @ (Error::Corrupt { .. } | Error::Invalid(_))) => {
                return self.survey_damaged_disk(plan, &why, findings);
            }
            Err(why) => return Err(unreadable_disk(why)),
        };
        let Some(device) = &self.ssd else {
            let is_open = |pairing: Pairing| matches!(pairing.state, Saved::LogOpen | Saved::Recovering);
            let Some(pairing) = pairing.filter(|pairing| is_open(*pairing) && !plan.without_ssd) else {
                return Ok(Survey::GoOn);
            };
            let why = format!(
                "The SSD half ({}) was not named, and its log may hold operations that the disk half lacks. Name it with --ssd, or mount both \
                 halves once: both bring them to the disk half. If that SSD is gone for good, --without-ssd goes by the disk half alone, \
                 and drops for ever what was fsynced last.",
                uuid::Uuid::from_bytes(pairing.ssd)
            );
            findings.unanswerable(LOG, why);
            return Ok(Survey::Stop);
        };
        let known = pairing.map_or_else(DiskSide::default, |pairing| pairing.disk_side());
        match Ssd::open(device.as_ref(), known) {
            Ok(opened) => {
                note_damage(device.as_ref(), &opened, pairing, findings)?;
            }
            Err(why @ Error::Corrupt { .. }) => {
                self.note_no_ssd(&why, pairing, device.as_ref(), findings);
                return Ok(Survey::Stop);
            }
            Err(why) => return Err(why),
        }
        Ok(Survey::GoOn)
    }

    /// A disk half that cannot be opened: e2fsck is for it, if it is one.
    fn survey_damaged_disk(&self, plan: &Plan, why: &Error, findings: &mut Findings) -> Result<Survey> {
        let name = &self.disk.info().name;
        let is_unknown = is_no_ext4(why);
        let disk: Arc<dyn BlockDevice> = self.disk.clone();
        let claim = self.disk.claim().filter(|_| is_unknown);
        if let Some(other) = claim.map(|claim| guard::signature_of(claim)).transpose()?.flatten() {
            // A copy of a superblock that was there before may have survived below it.
            findings.problem(DISK, format!("It cannot be opened: {name} holds {other}, and no ext4."), false);
            return Ok(Survey::Stop);
        }
        if is_unknown && !copy_has_pairing(disk.as_ref(), None) {
            let why = format!(
                "It cannot be opened: {why}. No copy of its superblock that names an SSD half is found either; is {name} the disk half? If it is, and \
                 its SSD half is there, `bimetal rescue` gets off that what it holds."
            );
            findings.problem(DISK, why, false);
            return Ok(Survey::Stop);
        }
        if matches!(why, Error::Corrupt { why, .. } if why.contains("cut short")) {
            // What e2fsck makes of it would be in the way once it has its size again.
            findings.problem(DISK, format!("It cannot be opened: {why}."), false);
            return Ok(Survey::Stop);
        }
        if lacks_copy(why, &disk) {
            findings.problem(DISK, format!("It cannot be opened: {why}. {NO_COPY}."), true);
        } else if let Err(of_journal) = Ext4::check_journal(&disk) {
            let of_journal = of_journal.to_string();
            let besides =
                if of_journal == why.to_string() { String::new() } else { format!(" ({of_journal})") };
            let why = format!("It cannot be opened: {why}. {}.", journal_is_lost(&besides));
            findings.problem(DISK, why, true);
        } else {
            // Where it may be repaired, what follows tells how far that came.
            let then = plan.with_yes();
            findings.problem(DISK, format!("It cannot be opened: {why}.{then}"), false);
        }
        if !plan.repair {
            self.e2fsck(&["-f", "-n"], findings)?;
        }
        Ok(Survey::DiskIsDamaged)
    }

    /// An SSD half of which nothing can be read: what that costs, and what can be done.
    fn note_no_ssd(
        &self,
        why: &Error,
        pairing: Option<Pairing>,
        ssd: &dyn BlockDevice,
        findings: &mut Findings,
    ) {
        let (disk, ssd) = (&self.disk.info().name, &ssd.info().name);
        let held = pairing.filter(|pairing| matches!(pairing.state, Saved::LogOpen | Saved::Recovering));
        let anew = format!("`bimetal adopt --force --ssd {ssd} --disk {disk}` makes the SSD half anew");
        let cost = match held {
            Some(pairing) => format!(
                "The disk half lacks {}, and nothing here can repair that. Find the right SSD half; or go by the disk alone, which \
                 drops it for ever: `bimetal mount --without-ssd --disk {disk}`. Then {anew}",
                pairing.only_in_log()
            ),
            None => format!(
                "Nothing is lost: the disk half has everything; mount it without --ssd, check it with `bimetal fsck --disk \
                 {disk}`. {anew}"
            ),
        };
        findings.problem(LOG, format!("The SSD half cannot be opened: {why}. {cost}."), false);
    }

    /// [`Halves::try_out`]; a disk half that is damaged in the way of it is repaired first, if it may be.
    fn try_out_or_repair(
        &self,
        plan: &Plan,
        findings: &mut Findings,
        progress: &dyn Fn(&'static str),
    ) -> Result<Option<bool>> {
        let tried = self.try_out(plan, findings, progress)?;
        let of_disk = findings.problems.last().is_some_and(|problem| problem.what == DISK);
        if tried.is_some() || !of_disk {
            return Ok(tried);
        }
        let is_seen = self.walk_disk_alone(findings);
        if !self.repair_disk(plan, is_seen, findings, progress)? {
            return Ok(None);
        }
        progress("looking at every file");
        self.try_out(plan, findings, progress)
    }

    /// What of a disk half that stands in the way of the log cannot be read, and e2fsck would take away. `false` where it
    /// cannot be looked at even by itself.
    fn walk_disk_alone(&self, findings: &mut Findings) -> bool {
        let options = Options { manual: true, without_ssd: true, ..Options::default() };
        let opened = NfHybrid::open(in_memory(&self.disk), None, options);
        opened.inspect(|fs| walk(fs, findings)).is_ok()
    }

    /// Has e2fsck repair a disk half that is in the way of everything else, if it may be repaired: what was fsynced stays
    /// in the SSD's log meanwhile. Even what e2fsck calls safe may take files away: without `lossy` it may where all of them
    /// were seen. Whether all is right with it now.
    fn repair_disk(
        &self,
        plan: &Plan,
        is_seen: bool,
        findings: &mut Findings,
        progress: &dyn Fn(&'static str),
    ) -> Result<bool> {
        if !plan.repair || findings.loses() && !plan.lossy {
            return Ok(false);
        }
        if !is_seen && !plan.lossy {
            findings.note(format!(
                "{} was changed: what a repair takes away cannot be told, for the files cannot be looked at. {}; then repair \
                 with --yes.",
                findings.what_was_changed(),
                plan.what_comes_first()
            ));
            return Ok(false);
        }
        progress("e2fsck repairs the disk half");
        let mut told = Findings::default();
        findings.changed = true;
        self.repair_by_e2fsck(plan, &mut told)?;
        if !is_seen && takes_away(&told.e2fsck) {
            let why = "e2fsck took something away from it, of files that could not be looked at before; what it said follows.";
            findings.problem(DISK, why.into(), true);
        } else if !is_seen {
            findings.cost_nothing(NO_COPY);
        }
        findings.e2fsck.append(&mut told.e2fsck);
        if told.problems.is_empty() {
            findings.repaired(&[DISK]);
            findings.note("e2fsck repaired the disk half before anything else was done with it.");
            self.renew_pairing(findings)?;
            return Ok(true);
        }
        findings.problems.append(&mut told.problems);
        if !plan.lossy {
            findings.note("With --yes e2fsck repairs more; what only the SSD's log holds is kept.");
        }
        Ok(false)
    }

    /// Mounts in memory, and looks at everything. Whether the disk half was left in order; `None` if it cannot be
    /// mounted.
    fn try_out(
        &self,
        plan: &Plan,
        findings: &mut Findings,
        progress: &dyn Fn(&'static str),
    ) -> Result<Option<bool>> {
        let ssd = self.ssd.as_ref().map(in_memory);
        // In memory: what can be brought to the disk is, so that all of it can be looked at.
        let options = Options {
            manual: true,
            without_ssd: plan.without_ssd,
            recover: Recover::Whole,
            ..Options::default()
        };
        let fs = match NfHybrid::open(in_memory(&self.disk), ssd, options) {
            Ok(fs) => fs,
            Err(Error::Corrupt { what, why, .. }) if what == DISK => {
                // What to do about it depends on what else is found.
                let (why, then) = match why.split_once(REMEDY) {
                    Some((why, _)) => (why, plan.with_yes()),
                    None => (&*why, ""),
                };
                findings.problem(DISK, format!("It cannot be mounted as it is: {why}.{then}"), false);
                return Ok(None);
            }
            Err(why @ Error::Corrupt { .. }) => {
                findings.problem(LOG, format!("It cannot be mounted: {why}."), true);
                return Ok(None);
            }
            // Both belonged together before e2fsck emptied the disk's journal.
            Err(Error::Mismatch(why)) if findings.changed => {
                let why = why.replace("; nothing was changed", "");
                findings.problem(
                    LOG,
                    format!("It cannot be mounted with the repaired disk half: {why}."),
                    true,
                );
                return Ok(None);
            }
            Err(why) => return Err(why),
        };
        findings.operations_recovered = fs.recovered();
        // Damage that is found block by block is told where it is.
        let damaged = findings.problems.iter().any(|problem| problem.what != DISK && problem.loses);
        for note in fs.notes() {
            if note.starts_with(WHAT_IS_LOST) && !damaged {
                findings.problem(LOG, format!("W{}.", &note[1..]), true);
            } else if note.starts_with(WHAT_IS_LOST) {
                findings.note(format!("W{}.", &note[1..]));
            } else if note.contains(LEFT_OUT) {
                findings.problem(LOG, format!("{note}."), true);
            }
        }
        fs.notes().iter().for_each(|note| self.note_dropped(note, findings));
        walk(&fs, findings);
        if plan.deep {
            progress("comparing the SSD's copies with the disk");
            let bad = compare(&fs, false, findings)?;
            name_bad(&bad, findings);
        }
        findings.name_files(&fs);
        // After e2fsck the disk half alone looks as if it had been left in order.
        let was_clean = fs.was_clean() && fs.recovered() == 0;
        fs.shutdown()?;
        Ok(Some(was_clean))
    }

    /// What of the SSD half a mount drops, if that is what it noted.
    fn note_dropped(&self, note: &str, findings: &mut Findings) {
        let ssd = self.ssd.as_ref().map_or("SSD", |ssd| &ssd.info().name);
        let rescue = format!("`bimetal rescue --ssd {ssd} DIRECTORY` gets it off first");
        let next = "would be dropped by a repair, or the next mount of both halves";
        if let Some(held) = note.strip_prefix(WITHOUT_SSD) {
            let why = format!("W{}, ", &held[1..]);
            let before = format!("{why}would be dropped for ever, as asked; {rescue}.");
            findings.drops(LOG, [before, format!("{why}is dropped for ever, as asked.")], true);
        } else if let Some(why) = note.strip_prefix(STALE) {
            let why = format!("It is stale, for {why}: what it holds");
            let now = format!("{why} is dropped.");
            findings.drops(SSD_HALF, [format!("{why} {next}; {rescue}."), now], false);
        } else if let Some(why) = note.strip_prefix(COPIES_DROPPED) {
            if findings.changed {
                return findings.note(format!("Of the SSD half: {note}."));
            }
            let why = format!("They count no more, for {why}: all of them");
            let has = "the disk half has it, or gets it from the log first";
            let now = format!("{why} are dropped; the disk half has what they held.");
            findings.drops(COPIES, [format!("{why} {next}; {has}."), now], false);
        }
    }

    /// Repairs on the media what needs it.
    fn repair(
        &self,
        plan: &Plan,
        was_clean: bool,
        findings: &mut Findings,
        progress: &dyn Fn(&'static str),
    ) -> Result<()> {
        let of_disk = |problem: &Problem| problem.what == DISK && problem.is_left();
        let disk_is_wrong = findings.problems.iter().any(of_disk);
        let ssd_is_wrong = findings.problems.iter().any(|problem| problem.what != DISK);
        if !was_clean || ssd_is_wrong {
            progress("repairing");
            self.recover(plan, findings)?;
        }
        let mut told = Findings::default();
        if !was_clean {
            progress("e2fsck looks at the disk half");
            self.e2fsck(&["-f", "-n"], &mut told)?;
            findings.e2fsck.append(&mut told.e2fsck);
            findings.problems.append(&mut told.problems);
        }
        if disk_is_wrong || findings.problems.iter().any(of_disk) {
            progress("e2fsck repairs the disk half");
            findings.changed = true;
            self.repair_by_e2fsck(plan, &mut told)?;
            findings.e2fsck.append(&mut told.e2fsck);
            if told.problems.is_empty() {
                findings.repaired(&[DISK]);
            }
            self.renew_pairing(findings)?;
        }
        Ok(())
    }

    /// Mounts on the media, which replays journal and log, drops what was found bad, and ends in order.
    fn recover(&self, plan: &Plan, findings: &mut Findings) -> Result<()> {
        findings.changed = true;
        let ssd = self.ssd.clone().map(|ssd| ssd as Arc<dyn BlockDevice>);
        let recover = if plan.lossy { Recover::Whole } else { Recover::Log };
        let options = Options { manual: true, without_ssd: plan.without_ssd, recover, ..Options::default() };
        let fs = NfHybrid::open(self.disk.clone(), ssd, options)?;
        let mut left = 0;
        if plan.deep {
            let bad = compare(&fs, true, &mut Findings::default())?;
            left = bad.iter().filter(|bad| !bad.dropped).count();
        }
        fs.shutdown()?;
        findings.repaired(&[LOG, TABLES]);
        if left == 0 {
            findings.repaired(&[COPIES]);
        }
        if !self.ssd_is_only_read() {
            findings.repaired(&[SSD_HALF]);
            let failed = fs.shared.core.lock().state.ssd_lost().map(String::from);
            if let Some(why) = failed.filter(|_| !plan.without_ssd) {
                findings.problem(SSD_HALF, failed_meanwhile(&why), false);
            }
        } else {
            findings.note("The SSD half takes no writes: it was only read, and the disk half goes on without it. Mount the disk alone.");
        }
        // What the log has lost stays lost; but from here on it is in order.
        if findings.operations_recovered > 0 {
            findings.note(format!(
                "{} operations that only the SSD's log held are on the disk half now.",
                findings.operations_recovered
            ));
        }
        Ok(())
    }

    /// After e2fsck changed the disk half: if all copies on the SSD are still what the disk has, the SSD hears that
    /// they count.
    fn renew_pairing(&self, findings: &mut Findings) -> Result<()> {
        let Some(ssd) = self.ssd.as_ref().filter(|_| !self.ssd_is_only_read()) else { return Ok(()) };
        let opening = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (identity, pairing) = match Ext4::open(self.disk.clone(), opening) {
            Ok(ext4) => (ext4.identity(), Pairing::decode(ext4.pairing().as_ref()).ok()),
            Err(_) => return Ok(()),
        };
        // Not where the log is still to be applied: recovery goes by what the SSD says now.
        let Some(pairing) = pairing.filter(|pairing| pairing.state == Saved::Clean) else { return Ok(()) };
        let Ok(mut opened) = Ssd::open(ssd.as_ref(), pairing.disk_side()) else { return Ok(()) };
        // Nor to an SSD that e2fsck cannot have parted from this disk: they were not last used together, or it has more.
        let holds = opened.records.iter().any(|record| record.op > pairing.op);
        let was_theirs = opened.ssd.pairing().epoch == pairing.epoch && opened.disk_had <= pairing.op;
        if !was_theirs || holds || opened.lost.is_some() || !opened.ssd.is_clean() {
            return Ok(());
        }
        let writes =
            opened.ssd.mark_clean(pairing_to(identity, pairing.epoch, (pairing.epoch as u32, pairing.op)));
        let tried = in_memory(ssd);
        for (offset, bytes) in &writes {
            tried.write(*offset, bytes.clone())?;
        }
        let options = Options { manual: true, ..Options::default() };
        let fs = NfHybrid::open(in_memory(&self.disk), Some(tried), options)?;
        let before = std::mem::take(&mut findings.compared_bytes);
        let bad = compare(&fs, false, findings);
        let copies = std::mem::replace(&mut findings.compared_bytes, before);
        fs.shutdown()?;
        if bad.is_ok_and(|bad| bad.is_empty()) {
            let ssd: &dyn BlockDevice = ssd.as_ref();
            for (offset, bytes) in writes {
                ssd.write(offset, bytes)?;
                ssd.flush()?;
            }
            if copies > 0 {
                findings.note("The SSD's copies are what the repaired disk half has; they stay.");
            }
        } else {
            findings
                .note("The SSD's copies are not what the repaired disk half has; the next mount drops them.");
        }
        Ok(())
    }

    /// Has e2fsck repair the disk half, as often as it takes: some of what is wrong it meets only once the rest is right.
    fn repair_by_e2fsck(&self, plan: &Plan, told: &mut Findings) -> Result<()> {
        for round in 1.. {
            self.e2fsck(&["-f", if plan.lossy { "-y" } else { "-p" }], told)?;
            if !told.problems.is_empty() {
                break;
            }
            let mut left = Findings::default();
            self.e2fsck(&["-f", "-n"], &mut left)?;
            if left.problems.is_empty() {
                break;
            }
            if round == REPAIRS_MAX {
                told.e2fsck.append(&mut left.e2fsck);
                told.problems.append(&mut left.problems);
                break;
            }
        }
        Ok(())
    }

    /// Runs the disk half's own checker.
    fn e2fsck(&self, how: &[&str], findings: &mut Findings) -> Result<()> {
        let Ran { status, text } = lend(&self.disk, "e2fsck", how, "checks")?;
        findings.e2fsck.push(format!("e2fsck {}:", how.join(" ")));
        findings.e2fsck.extend(text.lines().map(str::to_string));
        match status.code() {
            Some(0 | 1) => {}
            Some(4) if how.contains(&"-n") => {
                findings.problem(DISK, "e2fsck found errors in it; what it said follows.".into(), false)
            }
            code => {
                let code = code.map_or("by a signal".into(), |code| format!("with {code}"));
                findings.problem(DISK, format!("e2fsck ended {code}; what it said follows."), false);
            }
        }
        Ok(())
    }
}

/// What is said of an SSD half that fails while the volume is put in order.
fn failed_meanwhile(why: &str) -> String {
    format!(
        "It failed while the volume was put in order: {why}. Nothing is lost: the disk half has everything now, and goes on without \
         it. Once it takes writes again, the next mount of both halves starts it anew, with no copies."
    )
}

/// Compares all copies with the disk.
fn compare(fs: &NfHybrid, heal: bool, findings: &mut Findings) -> Result<Vec<BadCopy>> {
    let step = Step { bytes: STEP_BYTES, compare: true, heal };
    let mut bad = Vec::new();
    fs.scrub_start();
    loop {
        let mut found = fs.scrub(&step)?;
        findings.compared_bytes += found.bytes;
        bad.append(&mut found.bad);
        if found.done {
            return Ok(bad);
        }
    }
}

/// Looks at every inode that has a name; each name that leads to one that cannot be read is lost with a repair.
fn walk(fs: &NfHybrid, findings: &mut Findings) {
    let (mut seen, mut bad) = (FxHashSet::default(), FxHashMap::default());
    let mut todo: Vec<(Ino, String)> = vec![(fs.root(), String::new())];
    let mut unread = Vec::new();
    seen.insert(fs.root());
    findings.inodes = 0;
    while let Some((dir, path)) = todo.pop() {
        let mut entries = Vec::new();
        let listed = fs.readdir(dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push((entry.ino, shown(entry.name)));
            }
            true
        });
        if let Err(error) = listed {
            unread.push(format!("The directory {path}/ cannot be read: {error}."));
        }
        for (ino, name) in entries {
            let path = format!("{path}/{name}");
            if seen.insert(ino) {
                findings.inodes += 1;
                match fs.getattr(ino).and_then(|attr| fs.check_mapping(ino).map(|()| attr)) {
                    Ok(attr) if attr.kind == Kind::Dir => todo.push((ino, path.clone())),
                    Ok(_) => {}
                    Err(error) => drop(bad.insert(ino, error)),
                }
            }
            if let Some(error) = bad.get(&ino) {
                unread.push(format!("{path} (inode {ino}) cannot be read: {error}."));
            }
        }
    }
    let more = unread.len().saturating_sub(NAMED) as u64;
    unread.into_iter().take(NAMED).for_each(|why| findings.problem(DISK, why, true));
    if more > 0 {
        findings.more(DISK, more, "names lead to what cannot be read", true);
    }
}

#[cfg(test)]
mod tests {
    use super::takes_away;

    #[test]
    fn what_e2fsck_takes_is_told_from_what_it_counts_anew() {
        let cases = [
            ("Entry 'flags.c' in /Feature/HTree (12) has deleted/unused inode 55.  Clear? yes", true),
            ("Clear? yes", true),
            ("Connect to /lost+found? yes", true),
            ("Inode 136, i_size is 4461309226767869602, should be 0.  Fix? yes", true),
            ("Journal superblock is corrupt.", true),
            ("*** journal has been deleted ***", true),
            ("Problem in HTREE directory inode 12.  Clear HTree index? yes", false),
            ("Free blocks count wrong (22731, counted=22732).  Fix? yes", false),
            ("Block bitmap differences:  -1568", false),
            ("disk: recovering journal", false),
            ("Clear? no", false),
        ];
        for (line, takes) in cases {
            assert_eq!(takes_away(&[line.to_string()]), takes, "{line}");
        }
    }
}
