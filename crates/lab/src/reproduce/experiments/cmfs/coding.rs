//! Coding: how short records are, by file size, by part, and NVRAM against NAND in all.

use super::super::super::{Experiment, ExperimentContext, Measured};
use super::bed::{Bed, PART, config, stack};
use bimetal_base::Result;
use cmfs_core::codec::{CODECS, lzo};
use cmfs_core::{Config, Layout, Names};

const MIB: u64 = 1 << 20;

/// Registry line.
pub(in super::super) const FIG9: Experiment = Experiment {
    id: "cmfs-fig9",
    about: "length of the coded page table, of 2 bytes a page, by file size",
    seconds: 0.2,
    measure: |_| fig9(),
};

/// Registry line.
pub(in super::super) const FIG11: Experiment = Experiment {
    id: "cmfs-fig11",
    about: "the device record under LZO against the size of the part; times are this machine's",
    seconds: 1.0,
    measure: |_| fig11(),
};

/// Registry line.
pub(in super::super) const RATIO: Experiment = Experiment {
    id: "cmfs-ratio",
    about: "NAND bytes for each byte of NVRAM in use, names left out; the paper aims at 1000",
    seconds: 2.4,
    measure: ratio,
};

/// The paper: the hybrid coding is the best from here on.
const ABOVE_KIB: usize = 16;

fn fig9() -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({"files": 10, "part": PART})).on(stack());
    for kib in [4usize, 16, 64, 100, 256, 1024] {
        let mut bed = Bed::new(128 * MIB, 1 << 20, config(Layout::Compact))?;
        // Files in the middle of the part: at its beginning page numbers have few bits.
        bed.add(40 << 20)?;
        let mut sums = vec![0usize; CODECS.len()];
        let mut raw = 0;
        for _ in 0..10 {
            let id = bed.add(kib << 10)?;
            let pages = bed.fs()?.pages(id);
            raw += 2 * pages.len();
            for (sum, codec) in sums.iter_mut().zip(CODECS) {
                *sum += (codec.encode)(&pages).len();
            }
        }
        let size = if kib > ABOVE_KIB { "above 16 KB" } else { "16 KB and less" };
        for (sum, codec) in sums.iter().zip(CODECS) {
            measured.add(format!("{size}, {kib} KB/{}", codec.name), "%", 100.0 * *sum as f64 / raw as f64);
        }
    }
    Ok(measured)
}

/// The device record of a part as the paper lays it out: 40 bytes, and 8 a block, the first half written.
fn device_record(blocks: u32) -> Vec<u8> {
    let mut bytes = vec![0u8; 40];
    for block in 0..blocks {
        let (state, sequence) =
            if block < blocks / 2 { (5 << 20 | 63, 0x1001 + block) } else { (3 << 20, 0) };
        bytes.extend_from_slice(&u32::to_le_bytes(state));
        bytes.extend_from_slice(&u32::to_le_bytes(sequence));
    }
    bytes
}

/// This thread's time on a processor, ns.
fn processor_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// How often a record is coded; the fastest counts, since nothing makes a processor faster than it is.
const REPEATS: u32 = 200;

fn fig11() -> Result<Measured> {
    let mut measured = Measured::with(serde_json::json!({"blocks_written": "half", "repeats": REPEATS}));
    for mib in [16u32, 32, 64, 128, 256, 512] {
        let record = device_record(mib << 20 >> 17);
        let coded = lzo::encode(&record);
        let fastest = |work: &dyn Fn()| {
            let once = |_| {
                let from = processor_ns();
                work();
                (processor_ns() - from) as f64 / 1e3
            };
            (0..REPEATS).map(once).fold(f64::MAX, f64::min)
        };
        measured.at("record", mib, "bytes", record.len() as f64);
        measured.at("coded", mib, "bytes", coded.len() as f64);
        measured.at("coding", mib, "us", fastest(&|| drop(lzo::encode(&record))));
        measured.at("decoding", mib, "us", fastest(&|| drop(lzo::decode(&coded, record.len()))));
    }
    Ok(measured)
}

/// A way to fill a part.
type Fill = fn(&mut Bed, u64) -> Result<()>;

fn sequential(bed: &mut Bed, _: u64) -> Result<()> {
    bed.fill(102_400, 80).map(drop)
}

fn interleaved(bed: &mut Bed, _: u64) -> Result<()> {
    bed.fill_interleaved(102_400, 80, 4096).map(drop)
}

fn overwritten(bed: &mut Bed, seed: u64) -> Result<()> {
    bed.fill(102_400, 80)?;
    bed.overwrite(102_400, 50, seed)
}

fn small(bed: &mut Bed, _: u64) -> Result<()> {
    bed.fill(1024, 80).map(drop)
}

fn ratio(setting: &ExperimentContext) -> Result<Measured> {
    let ways: [(&str, Fill); 4] = [
        ("100 KB files, sequential", sequential),
        ("100 KB files, 8 writers in turn", interleaved),
        ("100 KB files, half of the pages overwritten", overwritten),
        ("1 KB files", small),
    ];
    let mut measured =
        Measured::with(serde_json::json!({"part": PART, "utilisation_percent": 80})).on(stack());
    let sizes: &[u64] = if setting.full { &[128 * MIB, 1024 * MIB] } else { &[128 * MIB] };
    for bytes in sizes.iter().copied() {
        for (name, fill) in ways {
            for (of, layout) in [("paper's layout", Layout::Paper), ("compact", Layout::Compact)] {
                let config = Config { names: Names::Off, ..config(layout) };
                let mut bed = Bed::new(bytes, (bytes / 40) as usize / 8 * 8, config)?;
                fill(&mut bed, setting.seed)?;
                bed.update()?;
                let ratio = format!("{of}/{} MB, {name}/ratio", bytes / MIB);
                measured.beside(ratio, "1:", 1000.0, bytes as f64 / bed.nvram_used()? as f64);
                if layout == Layout::Paper {
                    let (all, leaves) = bed.paper_bytes()?;
                    let name = |of: &str| format!("paper's layout/{} MB, {name}/{of}", bytes / MIB);
                    measured.add(name("before it is coded"), "1:", bytes as f64 / all as f64);
                    measured.add(name("leaves of page tables before they are coded"), "bytes", leaves as f64);
                }
            }
        }
    }
    Ok(measured)
}
