//! Opening: against utilisation, number of files and size of the part, clean, after a crash, without NVRAM.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{Bed, FRAM_NS_PER_BYTE, PART, Took, config, stack};
use super::peers::{Littlefs, YAFFS2, YAFFS2_MOUNT, Yaffs2, littlefs, yaffs2};
use super::processor;
use bimetal_base::{Error, Result};
use cmfs_core::{Config, Layout, MountKind};

const MIB: u64 = 1 << 20;
const KIB_100: usize = 102_400;
const KIB: usize = 1024;
/// Bytes of a block of the part.
const BLOCK_BYTES: u64 = 64 * 2048;

/// Registry line.
pub(in super::super) const MOUNT: Experiment = Experiment {
    id: "cmfs-mount",
    about: "mounting clean, after a crash, from a checkpoint, without NVRAM; first write; listing; beside YAFFS2, littlefs",
    seconds: 1.5,
    measure: mount,
};

/// Registry line.
pub(in super::super) const FIG10: Experiment = Experiment {
    id: "cmfs-fig10",
    about: "mount latency against utilisation: both layouts, a scan of every spare area, and YAFFS2's",
    seconds: 0.7,
    measure: |_| fig10(),
};

/// Registry line.
pub(in super::super) const FIG12: Experiment = Experiment {
    id: "cmfs-fig12",
    about: "mount latency against the number of files on 50 MB, media and processor",
    seconds: 0.3,
    measure: |_| fig12(),
};

/// Registry line.
pub(in super::super) const FIG13: Experiment = Experiment {
    id: "cmfs-fig13",
    about: "recovery time against what was written since the last update, 50 MB, media and processor",
    seconds: 0.2,
    measure: |_| fig13(),
};

/// One setting of the table.
struct Case {
    part: &'static str,
    bytes: u64,
    files: &'static str,
    file_bytes: usize,
    percent: u32,
    yaffs2: Option<Yaffs2>,
    littlefs: Option<Littlefs>,
}

const CASES: &[Case] = &[
    Case {
        part: "50 MB",
        bytes: 50 * MIB,
        files: "100 KB",
        file_bytes: KIB_100,
        percent: 10,
        yaffs2: yaffs2(1.4, 17.3, 3.5),
        littlefs: littlefs(1.85, 24.94, 41.84),
    },
    Case {
        part: "50 MB",
        bytes: 50 * MIB,
        files: "100 KB",
        file_bytes: KIB_100,
        percent: 90,
        yaffs2: yaffs2(9.4, 40.2, 30.9),
        littlefs: littlefs(10.13, 284.84, 559.72),
    },
    Case {
        part: "128 MB",
        bytes: 128 * MIB,
        files: "100 KB",
        file_bytes: KIB_100,
        percent: 10,
        yaffs2: yaffs2(3.3, 42.4, 8.8),
        littlefs: littlefs(1.59, 49.76, 91.55),
    },
    Case {
        part: "128 MB",
        bytes: 128 * MIB,
        files: "100 KB",
        file_bytes: KIB_100,
        percent: 50,
        yaffs2: yaffs2(13.9, 71.8, 44.0),
        littlefs: littlefs(7.94, 300.99, 592.75),
    },
    Case {
        part: "128 MB",
        bytes: 128 * MIB,
        files: "100 KB",
        file_bytes: KIB_100,
        percent: 90,
        yaffs2: yaffs2(24.4, 101.1, 79.2),
        littlefs: littlefs(14.83, 541.36, 1073.63),
    },
    Case {
        part: "128 MB",
        bytes: 128 * MIB,
        files: "1 KB",
        file_bytes: KIB,
        percent: 90,
        yaffs2: yaffs2(92.3, 102.8, 2019.5),
        littlefs: None,
    },
    Case {
        part: "1 GB",
        bytes: 1024 * MIB,
        files: "100 KB",
        file_bytes: KIB_100,
        percent: 90,
        yaffs2: yaffs2(199.9, 801.1, 633.6),
        littlefs: littlefs(112.67, 4745.72, 9467.92),
    },
    Case {
        part: "16 GB",
        bytes: 16 * 1024 * MIB,
        files: "100 KB",
        file_bytes: KIB_100,
        percent: 90,
        yaffs2: None,
        littlefs: None,
    },
];

/// What is written before a crash: most of a block.
const TAIL_BYTES: usize = 40 * 2048;

fn mount(setting: &ExperimentContext) -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({
        "part": PART, "fram_ns_per_byte": FRAM_NS_PER_BYTE, "nvram": "1/1000 of the NAND",
        "yaffs2": "YAFFS2 of 2026 with checkpoint and summaries, counted on the same latencies",
        "littlefs": "littlefs 2.11 with caches of 2 KiB, counted on the same latencies; utilisation is of its blocks",
    })).on(stack());
    // A part of 16 GB takes a minute to fill.
    for case in CASES.iter().filter(|case| setting.full || case.bytes <= 1024 * MIB) {
        measure_case(case, &mut measured)?;
    }
    Ok(measured)
}

fn measure_case(case: &Case, measured: &mut Measured) -> Result<()> {
    let mut bed = Bed::new(case.bytes, (case.bytes / 1000) as usize / 8 * 8, config(Layout::Compact))?;
    let files = bed.fill(case.file_bytes, case.percent)?;
    bed.update()?;
    let used = bed.nvram_used()?;
    let (kind, clean) = bed.reopen(false)?;
    let (_, listing) = bed.measure(Bed::list_all)?;
    let (_, first) = bed.measure(|bed| {
        let id = bed.files[0];
        bed.write(id, 0, 2048)?;
        bed.sync(id)
    })?;
    bed.update()?;
    let id = bed.files[0];
    bed.write(id, 0, TAIL_BYTES.min(case.file_bytes))?;
    bed.sync_all()?;
    let (crash_kind, crashed) = bed.reopen(false)?;
    let scanned = bed.scan()?;
    let (written, checkpoint) = bed.measure(Bed::checkpoint)?;
    let (from, checkpointed) = bed.reopen(false)?;
    // Otherwise the figures are of something else than their names say.
    if (kind, from, written) != (MountKind::Clean, MountKind::Checkpoint, true)
        || crash_kind == MountKind::Scanned
    {
        let opened = format!("{kind:?}, {crash_kind:?} and, a checkpoint left: {written}, {from:?}");
        return Err(Error::invalid(format!("cmfs: {} {} %: opened {opened}", case.part, case.percent)));
    }
    let mut add = |what: &str, unit: &'static str, ours: f64| {
        measured.add(format!("{}, {} files, {} %/{what}", case.part, case.files, case.percent), unit, ours);
    };
    add("files", "", files as f64);
    add("mount, clean", "ms", clean.ms);
    add("mount, clean: NAND reads", "", (clean.reads + clean.spare_reads) as f64);
    add("mount, crashed", "ms", crashed.ms);
    add("mount, crashed: NAND reads", "", (crashed.reads + crashed.spare_reads) as f64);
    add("mount, NVRAM lost", "ms", scanned.ms);
    add("checkpoint written", "ms", checkpoint.ms);
    add("mount, from the checkpoint", "ms", checkpointed.ms);
    add("first write", "ms", first.ms);
    add("first write: erases", "", first.erases as f64);
    add("ls -lR", "ms", listing.ms);
    add("ls -lR: NAND pages", "", listing.reads as f64);
    add("NVRAM used", "bytes", used as f64);
    if let Some(peer) = &case.yaffs2 {
        add(&format!("{YAFFS2}: clean"), "ms", peer.clean);
        add(&format!("{YAFFS2}: crashed"), "ms", peer.crashed);
        add(&format!("{YAFFS2}: ls -lR"), "ms", peer.listing);
    }
    if let Some(peer) = &case.littlefs {
        add("littlefs (measured peer): mount", "ms", peer.mount);
        add("littlefs (measured peer): first write", "ms", peer.first_write);
        add("littlefs (measured peer): ls -lR", "ms", peer.listing);
    }
    Ok(())
}

/// Mounts clean with each layout, and by a scan without summaries, as YAFFS had none then.
fn three_ways(bytes: u64, fill: impl Fn(&mut Bed) -> Result<()>) -> Result<[Took; 3]> {
    let mut took = [Took::default(); 3];
    for (slot, layout) in took.iter_mut().zip([Layout::Compact, Layout::Paper]) {
        let mut bed = Bed::new(bytes, (bytes / 100) as usize / 8 * 8, config(layout))?;
        fill(&mut bed)?;
        bed.update()?;
        *slot = bed.reopen(false)?.1;
    }
    let mut bed = Bed::new(bytes, 0, Config { summaries: false, ..config(Layout::Compact) })?;
    fill(&mut bed)?;
    bed.sync_all()?;
    took[2] = bed.scan()?;
    Ok(took)
}

/// What [`three_ways`] gives, by name.
const WAYS: [&str; 3] = ["compact", "paper's layout", "scan of every spare area"];

fn fig10() -> Result<Measured> {
    let config = serde_json::json!({"part": PART, "bytes": 128 * MIB, "file_bytes": KIB_100});
    let mut measured = Measured::with(config).on(stack());
    for percent in [0u32, 10, 30, 50, 70, 90] {
        let took = three_ways(128 * MIB, |bed| bed.fill(KIB_100, percent).map(drop))?;
        for (took, what) in took.iter().zip(WAYS) {
            measured.at(&format!("{what}/mount"), percent, "ms", took.ms);
        }
    }
    for (percent, ms) in YAFFS2_MOUNT {
        measured.at(&format!("{YAFFS2}/mount"), percent, "ms", ms);
    }
    for of in WAYS.into_iter().chain([YAFFS2]) {
        let growth = measured.get(&format!("{of}/mount@90"))? - measured.get(&format!("{of}/mount@0"))?;
        measured.add(format!("{of}/growth"), "ms", growth);
    }
    Ok(measured)
}

/// A mount's time with the processor that decodes what the NVRAM holds.
fn with_processor(took: &Took) -> f64 {
    took.ms + processor::decoding(took.nvram_read, 50 * MIB / BLOCK_BYTES)
}

fn fig12() -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({
        "part": PART, "bytes": 50 * MIB, "processor": processor::told(),
        "sizes": "text and caption of the figure disagree, so both are here",
    }))
    .on(stack());
    for (size, file_bytes) in [("1 KB", KIB), ("100 KB", KIB_100)] {
        for files in [0u32, 100, 200, 300, 400, 500] {
            // 500 files of 100 KB do not fit 50 MB.
            if files as usize * file_bytes > 45 << 20 {
                continue;
            }
            let took =
                three_ways(50 * MIB, |bed| (0..files).try_for_each(|_| bed.add(file_bytes).map(drop)))?;
            for (took, what) in took.iter().zip(WAYS) {
                let name = format!("{what}, {size}/mount@{files}");
                match (what, size, files) {
                    ("paper's layout", "1 KB", 500) => {
                        measured.beside(name, "ms", 126.0, with_processor(took))
                    }
                    ("scan of every spare area", ..) => measured.add(name, "ms", took.ms),
                    _ => measured.add(name, "ms", with_processor(took)),
                }
                measured.at(&format!("{what}, {size}/media"), files, "ms", took.ms);
            }
        }
    }
    Ok(measured)
}

fn fig13() -> Result<Measured> {
    let blocks = 50 * MIB / BLOCK_BYTES;
    let mut measured = Measured::with(serde_json::json!({
        "part": PART, "bytes": 50 * MIB, "files": "500 of 1 KB", "processor": processor::told(),
    }))
    .on(stack());
    for mebibytes in [0u32, 2, 4, 6, 8, 10] {
        for (of, layout) in [("paper's layout", Layout::Paper), ("compact", Layout::Compact)] {
            let mut bed = Bed::new(50 * MIB, 512 << 10, Config { update_ms: u64::MAX, ..config(layout) })?;
            (0..500).try_for_each(|_| bed.add(KIB).map(drop))?;
            bed.update()?;
            if mebibytes > 0 {
                bed.add((mebibytes as usize) << 20)?;
                bed.sync_all()?;
            }
            let (_, took) = bed.reopen(false)?;
            let processor = processor::decoding(took.nvram_read, blocks)
                + processor::coding(took.nvram_written, blocks)
                + processor::comparing(blocks);
            let all = took.ms + processor;
            let name = format!("{of}/recovery@{mebibytes}");
            match (mebibytes, layout) {
                (10, Layout::Paper) => measured.beside(name, "ms", 131.0, all),
                _ => measured.add(name, "ms", all),
            }
            // Nothing to recover is no recovery, and has no parts.
            if mebibytes > 0 {
                for (what, ms) in [
                    ("NAND", took.ms - took.nvram_ms()),
                    ("coding and comparing", processor),
                    ("NVRAM", took.nvram_ms()),
                ] {
                    measured.add(format!("{of}, {mebibytes} MB/{what}"), "%", 100.0 * ms / all);
                }
            }
        }
    }
    Ok(measured)
}
