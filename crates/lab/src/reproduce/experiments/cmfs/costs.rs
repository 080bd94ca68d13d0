//! What keeping the NVRAM costs while the file system is used.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{Bed, PART, Took, config, stack};
use super::peers::{YAFFS2, YAFFS2_FILES, YAFFS2_WRITES};
use super::processor;
use bimetal_base::Result;
use bimetal_base::random::Random;
use cmfs_core::{Config, Layout};

const MIB: u64 = 1 << 20;
/// Bytes of a block of the part.
const BLOCK_BYTES: u64 = 64 * 2048;
/// The paper's worst update for 12 MB modified, ms.
const PAPER_UPDATE_MS: f64 = 13.0;
const LAYOUTS: [(&str, Layout); 2] = [("paper's layout", Layout::Paper), ("compact", Layout::Compact)];

/// Registry line.
pub(in super::super) const FIG14: Experiment = Experiment {
    id: "cmfs-fig14",
    about: "time of an update of the NVRAM against the data modified since the last",
    seconds: 0.2,
    measure: |_| fig14(),
};

/// Registry line.
pub(in super::super) const FIG15: Experiment = Experiment {
    id: "cmfs-fig15",
    about: "creating and removing files of 0, 1, 4 and 10 KB: with NVRAM, without, and YAFFS2",
    seconds: 0.1,
    measure: |_| fig15(),
};

/// Registry line.
pub(in super::super) const FIG16: Experiment = Experiment {
    id: "cmfs-fig16",
    about: "sequential and random writes of 4 KB: with NVRAM, without, and YAFFS2",
    seconds: 0.3,
    measure: fig16,
};

fn fig14() -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({
        "part": PART, "bytes": 50 * MIB, "before_mb": 10, "processor": processor::told(),
    }))
    .on(stack());
    for mebibytes in [2u32, 4, 6, 8, 10, 12] {
        for (of, layout) in LAYOUTS {
            let mut bed = Bed::new(50 * MIB, 512 << 10, Config { update_ms: u64::MAX, ..config(layout) })?;
            bed.add((10 * MIB) as usize)?;
            bed.update()?;
            bed.add((mebibytes as usize) << 20)?;
            bed.sync_all()?;
            let (_, took) = bed.measure(Bed::update)?;
            let coding = processor::coding(took.nvram_written, 50 * MIB / BLOCK_BYTES);
            measured.at(&format!("{of}/media"), mebibytes, "ms", took.ms);
            let name = format!("{of}/update@{mebibytes}");
            match (mebibytes, layout) {
                (12, Layout::Paper) => measured.beside(name, "ms", PAPER_UPDATE_MS, took.ms + coding),
                _ => measured.add(name, "ms", took.ms + coding),
            }
        }
    }
    Ok(measured)
}

const FILES: u32 = 1000;

/// Time a file to create and to remove a thousand, µs.
fn create_and_remove(nvram: usize, layout: Layout, file_bytes: usize) -> Result<(f64, f64)> {
    let mut bed = Bed::new(50 * MIB, nvram, config(layout))?;
    let each = |took: Took| took.ms * 1000.0 / f64::from(FILES);
    let (_, create) = bed.measure(|bed| {
        (0..FILES).try_for_each(|_| bed.add(file_bytes).map(drop))?;
        bed.update()
    })?;
    let (_, remove) = bed.measure(|bed| {
        (0..FILES).try_for_each(|number| bed.remove(number))?;
        bed.update()
    })?;
    Ok((each(create), each(remove)))
}

fn fig15() -> Result<Measured> {
    let mut measured =
        Measured::with(serde_json::json!({"part": PART, "bytes": 50 * MIB, "files": FILES})).on(stack());
    for (kib, create, remove) in YAFFS2_FILES {
        let mut add = |of: &str, (create, remove): (f64, f64)| {
            measured.add(format!("{of}/{kib} KB/create"), "us", create);
            measured.add(format!("{of}/{kib} KB/delete"), "us", remove);
        };
        add(YAFFS2, (create, remove));
        add("no NVRAM", create_and_remove(0, Layout::Compact, kib << 10)?);
        for (of, layout) in LAYOUTS {
            add(of, create_and_remove(512 << 10, layout, kib << 10)?);
        }
    }
    Ok(measured)
}

/// Milliseconds of writing a file of 16 MiB by 4 KiB in order, and of writing it again at random.
fn write_times(nvram: usize, layout: Layout, seed: u64) -> Result<(f64, f64)> {
    const FILE: u64 = 16 * MIB;
    let mut bed = Bed::new(50 * MIB, nvram, config(layout))?;
    let id = bed.create()?;
    let (_, sequential) = bed.measure(|bed| {
        (0..FILE / 4096).try_for_each(|at| bed.write(id, at * 4096, 4096))?;
        bed.update()
    })?;
    let mut random = Random::new(seed, "iozone");
    let (_, scattered) = bed.measure(|bed| {
        (0..FILE / 4096).try_for_each(|_| bed.write(id, random.below(FILE / 4096) * 4096, 4096))?;
        bed.update()
    })?;
    Ok((sequential.ms, scattered.ms))
}

fn fig16(setting: &ExperimentContext) -> Result<Measured> {
    let config = serde_json::json!({"part": PART, "bytes": 50 * MIB, "file_bytes": 16 * MIB});
    let mut measured = Measured::with(config).on(stack());
    let mut add = |of: &str, (in_order, at_random): (f64, f64)| {
        measured.add(format!("{of}/in order"), "ms", in_order);
        measured.add(format!("{of}/at random"), "ms", at_random);
    };
    let ms = |mb_per_s: f64| (16 * MIB) as f64 / 1e3 / mb_per_s;
    add(YAFFS2, (ms(YAFFS2_WRITES.0), ms(YAFFS2_WRITES.1)));
    add("no NVRAM", write_times(0, Layout::Compact, setting.seed)?);
    for (of, layout) in LAYOUTS {
        add(of, write_times(512 << 10, layout, setting.seed)?);
    }
    Ok(measured)
}
