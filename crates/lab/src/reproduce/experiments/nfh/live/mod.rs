//! Figures 7 to 20 on real mounts: nfhybrid through FUSE, and the kernel's own ext2 and xfs, over devices that are served in
//! real time by the models that virtual time has.
//!
//! The programs are the same, as system calls. What is added to the devices' time is this machine's: of the kernel, of FUSE (of
//! nfhybrid twice: its own and that below its devices) and of whoever else is at work here. So files are smaller, and one run is one draw.
//! Beside nfhybrid's figures stands what virtual time gives for the same program.

mod bed;
mod player;

use super::super::super::live::PREFIX;
use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{FLUSHES, Hybrid, rate};
use super::programs::{Pass, RECORD, one_file, template};
use crate::stack::layers::Layers;
use bed::{Mounted, SSD_BYTES, System};
use bimetal_base::Result;
use bimetal_trace::ReadOptions;
use bimetal_trace::calls::Workload;
use player::{Played, Player};
use serde_json::json;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of the file that records are appended to, and of which larger records are written again; of the long form.
const FILE: [u64; 2] = [4 * MIB, 64 * MIB];
/// The large file by size of the extents.
const LARGE: [u64; 2] = [4 * MIB, 64 * MIB];
const EXTENTS_KIB: [u64; 4] = [16, 64, 256, 512];
/// Transactions of PostMark.
const TRANSACTIONS: [u64; 2] = [2000, 20_000];
/// Files that it has.
const POSTMARK_FILES: u32 = 1000;

const fn one(
    id: &'static str,
    about: &'static str,
    seconds: f64,
    measure: fn(&ExperimentContext) -> Result<Measured>,
) -> Experiment {
    Experiment { id, about, seconds, measure }
}

/// Registry lines.
pub(in super::super) const FIG7: Experiment =
    one("nfh-fig7", "4 KiB appends with an fsync each, beside ext2 and xfs", 60.0, fig7);
pub(in super::super) const FIG8: Experiment =
    one("nfh-fig8", "16 KiB of a file written again with an fsync each, beside ext2 and xfs", 15.0, fig8);
pub(in super::super) const FIG9: Experiment =
    one("nfh-fig9", "records read of a file that was written just before, beside ext2 and xfs", 10.0, fig9);
pub(in super::super) const FIG10: Experiment = one(
    "nfh-fig10",
    "the random template written, and the advantage over a disk beside appends'",
    80.0,
    fig10,
);
pub(in super::super) const FIG11: Experiment =
    one("nfh-fig11", "the random template written again, beside ext2 and xfs", 60.0, |setting| {
        of_template(setting, Pass::Rewrite, "rewrite")
    });
pub(in super::super) const FIG12: Experiment =
    one("nfh-fig12", "the random template read after a mount, beside ext2 and xfs", 40.0, |setting| {
        of_template(setting, Pass::Read, "read")
    });
pub(in super::super) const FIG13: Experiment =
    one("nfh-fig13", "appends with an fsync each by size of the extents", 25.0, |setting| {
        sized(setting, Pass::Write, "write")
    });
pub(in super::super) const FIG14: Experiment =
    one("nfh-fig14", "records written again with an fsync each by size of the extents", 25.0, |setting| {
        sized(setting, Pass::Rewrite, "rewrite")
    });
pub(in super::super) const FIG15: Experiment =
    one("nfh-fig15", "records read by size of the extents", 10.0, |setting| {
        sized(setting, Pass::Read, "read")
    });
pub(in super::super) const FIG16: Experiment =
    one("nfh-fig16", "the random template written by size of the extents", 60.0, |setting| {
        drawn(setting, Pass::Write, "write")
    });
pub(in super::super) const FIG17: Experiment =
    one("nfh-fig17", "the random template written again by size of the extents", 60.0, |setting| {
        drawn(setting, Pass::Rewrite, "rewrite")
    });
pub(in super::super) const FIG18: Experiment =
    one("nfh-fig18", "the random template read after a mount by size of the extents", 40.0, |setting| {
        drawn(setting, Pass::Read, "read")
    });
pub(in super::super) const FIG19: Experiment =
    one("nfh-fig19", "PostMark with 1 000 files by size of the extents, beside ext2 and xfs", 30.0, fig19);
pub(in super::super) const FIG20: Experiment = one(
    "nfh-fig20",
    "chunks of 16 KiB with an fsync each by size of the extents, beside ext2 and xfs",
    30.0,
    fig20,
);

/// nfhybrid as the paper has it in figures 7 to 12.
const OURS: System = System::Nfhybrid { extent_bytes: 16 * KIB };

/// The kernel's, each on the disk and on the SSD.
fn peers() -> impl Iterator<Item = System> {
    let on = |kind| [false, true].map(|on_ssd| System::Kernel { kind, on_ssd });
    super::kernel::PEERS.into_iter().flat_map(on)
}

/// The short form's or the long one's.
fn sizes<T: Copy>(setting: &ExperimentContext, [short, long]: [T; 2]) -> T {
    if setting.full { long } else { short }
}

fn began(setting: &ExperimentContext, disks: &[(&str, &str)]) -> Measured {
    let profiles: Vec<String> = disks.iter().map(|(_, profile)| (*profile).to_string()).collect();
    let devices = bed::devices(&profiles.join("; "));
    setting.note(&json!({ "live": true, "devices": devices }));
    let disks: Vec<String> =
        disks.iter().map(|(flushes, profile)| format!("{profile}, flushes {flushes}")).collect();
    Measured::with(json!({ "live": true, "devices": devices })).on(Layers::of(&[
        &[("program", "the paper's, as system calls of a process")],
        &[("file system", "nfhybrid through FUSE; of the peers the kernel's ext2 and xfs on loop devices")],
        &[("served by", "bimetal export, in real time")],
        &[("SSD half", super::bed::SSD), ("disk half", &disks.join("; "))],
    ]))
}

impl Mounted {
    /// Plays a program; one that reads finds nothing of it in memory if `cold`.
    fn play(
        &mut self,
        setting: &ExperimentContext,
        workload: &Workload,
        cold: bool,
        synced: bool,
    ) -> Result<Played> {
        Player::new(self.root(), workload, setting.seed).furnish()?;
        if cold {
            self.cold()?;
        }
        Player::new(self.root(), workload, setting.seed).play(synced)
    }
}

impl Played {
    fn mb_per_s(self) -> f64 {
        rate(self.bytes, self.took.as_nanos() as u64)
    }
}

/// MB/s of a program on a file system of its own.
fn mb_per_s(
    setting: &ExperimentContext,
    (system, disk): (System, &str),
    workload: &Workload,
    cold: bool,
) -> Result<f64> {
    let mut mounted = Mounted::new(system, disk, setting.seed)?;
    let played = mounted.play(setting, workload, cold, false)?;
    mounted.end()?;
    Ok(played.mb_per_s())
}

/// The same program on nfhybrid in virtual time.
fn in_virtual_time(
    setting: &ExperimentContext,
    extent_bytes: u64,
    disk: &'static str,
    workload: Workload,
) -> Result<f64> {
    Hybrid { extent_bytes, ssd_bytes: SSD_BYTES, ..Hybrid::new(disk) }.mb_per_s(setting, workload)
}

/// Adds a program's bandwidths on all file systems, and nfhybrid's in virtual time.
fn compare(
    setting: &ExperimentContext,
    measured: &mut Measured,
    workload: &Workload,
    (pass, cold): (&str, bool),
) -> Result<()> {
    let (flushes, disk) = FLUSHES[0];
    for system in [OURS].into_iter().chain(peers()) {
        let ours = mb_per_s(setting, (system, disk), workload, cold)?;
        measured.add(format!("{PREFIX}{flushes}/{}/{pass}", system.name()), "MB/s", ours);
    }
    let virtually = in_virtual_time(setting, 16 * KIB, disk, workload.clone())?;
    measured.add(format!("virtual/{flushes}/nfhybrid/{pass}"), "MB/s", virtually);
    Ok(())
}

fn fig7(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = began(setting, &FLUSHES);
    for (flushes, disk) in FLUSHES {
        // A disk that honours flushes turns for each.
        let most = if flushes == "ignored" { sizes(setting, FILE) } else { sizes(setting, [MIB, 4 * MIB]) };
        let all: Vec<u64> =
            [64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB].into_iter().filter(|bytes| *bytes <= most).collect();
        for system in [OURS].into_iter().chain(peers()) {
            let mut mounted = Mounted::new(system, disk, setting.seed)?;
            for bytes in &all {
                let played = mounted.play(setting, &one_file(Pass::Write, *bytes, RECORD), false, false)?;
                let name = format!("{PREFIX}{flushes}/{}/write", system.name());
                measured.at(&name, *bytes as f64 / MIB as f64, "MB/s", played.mb_per_s());
            }
            mounted.end()?;
        }
        for bytes in all {
            let virtually = in_virtual_time(setting, 16 * KIB, disk, one_file(Pass::Write, bytes, RECORD))?;
            measured.at(
                &format!("virtual/{flushes}/nfhybrid/write"),
                bytes as f64 / MIB as f64,
                "MB/s",
                virtually,
            );
        }
    }
    Ok(measured)
}

fn fig8(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = began(setting, &FLUSHES[..1]);
    let workload = one_file(Pass::Rewrite, sizes(setting, FILE), 16 * KIB);
    compare(setting, &mut measured, &workload, ("rewrite", false))?;
    Ok(measured)
}

fn fig9(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = began(setting, &FLUSHES[..1]);
    let workload = one_file(Pass::Read, sizes(setting, [16 * MIB, 64 * MIB]), RECORD);
    compare(setting, &mut measured, &workload, ("read", false))?;
    Ok(measured)
}

fn fig10(setting: &ExperimentContext) -> Result<Measured> {
    let (flushes, disk) = FLUSHES[0];
    let mut measured = began(setting, &FLUSHES[..1]);
    compare(setting, &mut measured, &template(Pass::Write, setting.seed), ("write", false))?;
    let appended = one_file(Pass::Write, sizes(setting, FILE), RECORD);
    let ours = mb_per_s(setting, (OURS, disk), &appended, false)?;
    let at_random = measured.get(&format!("{PREFIX}{flushes}/nfhybrid/write"))?;
    for kind in super::kernel::PEERS {
        let system = System::Kernel { kind, on_ssd: false };
        let in_order = mb_per_s(setting, (system, disk), &appended, false)?;
        let theirs = measured.get(&format!("{PREFIX}{flushes}/{}/write", system.name()))?;
        measured.add(format!("{PREFIX}{flushes}/advantage over {kind}/random"), "x", at_random / theirs);
        measured.add(format!("{PREFIX}{flushes}/advantage over {kind}/in order"), "x", ours / in_order);
    }
    Ok(measured)
}

fn of_template(setting: &ExperimentContext, pass: Pass, name: &str) -> Result<Measured> {
    let mut measured = began(setting, &FLUSHES[..1]);
    compare(setting, &mut measured, &template(pass, setting.seed), (name, pass == Pass::Read))?;
    Ok(measured)
}

fn sized(setting: &ExperimentContext, pass: Pass, name: &str) -> Result<Measured> {
    let disk = FLUSHES[0].1;
    let mut measured = began(setting, &FLUSHES[..1]);
    for kib in EXTENTS_KIB {
        for (size, bytes) in [("large", sizes(setting, LARGE)), ("small", 64 * KIB)] {
            let workload = one_file(pass, bytes, RECORD);
            let system = System::Nfhybrid { extent_bytes: kib * KIB };
            let ours = mb_per_s(setting, (system, disk), &workload, false)?;
            measured.add(format!("{PREFIX}{kib} KiB/{name}, {size}"), "MB/s", ours);
            let virtually = in_virtual_time(setting, kib * KIB, disk, workload)?;
            measured.add(format!("virtual/{kib} KiB/{name}, {size}"), "MB/s", virtually);
        }
    }
    Ok(measured)
}

fn drawn(setting: &ExperimentContext, pass: Pass, name: &str) -> Result<Measured> {
    let disk = FLUSHES[0].1;
    let mut measured = began(setting, &FLUSHES[..1]);
    let workload = template(pass, setting.seed);
    for kib in EXTENTS_KIB {
        let system = System::Nfhybrid { extent_bytes: kib * KIB };
        let ours = mb_per_s(setting, (system, disk), &workload, pass == Pass::Read)?;
        measured.add(format!("{PREFIX}{kib} KiB/{name}"), "MB/s", ours);
        let virtually = in_virtual_time(setting, kib * KIB, disk, workload.clone())?;
        measured.add(format!("virtual/{kib} KiB/{name}"), "MB/s", virtually);
    }
    Ok(measured)
}

/// By size of the extents, and the kernel's.
fn marks() -> impl Iterator<Item = (String, System)> {
    let ours = [16, 512].map(|kib| (format!("{kib} KiB"), System::Nfhybrid { extent_bytes: kib * KIB }));
    ours.into_iter().chain(peers().map(|system| (system.name(), system)))
}

fn fig19(setting: &ExperimentContext) -> Result<Measured> {
    let transactions = sizes(setting, TRANSACTIONS);
    let mut measured = began(setting, &FLUSHES[..1]);
    let program = format!("gen:postmark:files={POSTMARK_FILES}:transactions={transactions}");
    let workload = Workload::open(&setting.seeded(&program), &ReadOptions::default(), 1)?;
    for (name, system) in marks() {
        let mut mounted = Mounted::new(system, FLUSHES[0].1, setting.seed)?;
        // What is to be on the devices at the end is part of it, as in virtual time.
        let played = mounted.play(setting, &workload, false, true)?;
        mounted.end()?;
        let a_second = transactions as f64 / played.took.as_secs_f64();
        measured.add(format!("{PREFIX}{POSTMARK_FILES} files/{name}"), "transactions/s", a_second);
    }
    Ok(measured)
}

fn fig20(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = began(setting, &FLUSHES[..1]);
    let workload = one_file(Pass::Write, sizes(setting, [8 * MIB, 128 * MIB]), 16 * KIB);
    for (name, system) in marks() {
        let ours = mb_per_s(setting, (system, FLUSHES[0].1), &workload, false)?;
        measured.add(format!("{PREFIX}{name}/write"), "MB/s", ours);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::super::programs::{FILE_BYTES, FILES};
    use super::bed::DISK_BYTES;
    use super::*;

    #[test]
    fn what_the_long_form_writes_fits_on_the_devices_that_are_served() {
        let template = u64::from(FILES) * FILE_BYTES;
        let most =
            [FILE[1], LARGE[1], 128 * MIB, template, TRANSACTIONS[1] * 10 * KIB].into_iter().max().unwrap();
        assert!(most * 2 < SSD_BYTES.min(DISK_BYTES), "{most}");
    }
}
