//! Table 2: the four features that the paper says only CMFS has all of, each shown at work.

use super::super::super::{Experiment, Measured};
use super::bed::{Bed, PART, config, stack};
use bimetal_base::Result;
use cmfs_core::{Config, Layout, MountKind, Names};

const MIB: u64 = 1 << 20;
const FILES: usize = 400;
const FILE_BYTES: usize = 40 << 10;
/// The paper's records before they are coded: an object, a leaf of 16 pages, the device, a block.
const RAW_BYTES: (usize, usize, usize, usize) = (24, 36, 40, 8);

/// Registry line.
pub(in super::super) const TABLE2: Experiment = Experiment {
    id: "cmfs-table2",
    about: "metadata in memory, compressed, synchronised by itself, recovered after a crash: each at work",
    seconds: 0.1,
    measure: |_| table2(),
};

/// A bed with files, of which the NVRAM knows.
fn filled(layout: Layout) -> Result<Bed> {
    let mut bed = Bed::new(64 * MIB, 512 << 10, Config { names: Names::Off, ..config(layout) })?;
    (0..FILES).try_for_each(|_| bed.add(FILE_BYTES).map(drop))?;
    bed.update()?;
    Ok(bed)
}

fn table2() -> Result<Measured> {
    let mut measured =
        Measured::with(serde_json::json!({"part": PART, "files": FILES, "file_bytes": FILE_BYTES}))
            .on(stack());

    // In memory: after a mount every page of every file is known without the NAND.
    let mut bed = filled(Layout::Paper)?;
    bed.reopen(false)?;
    let (pages, took) = bed.measure(|bed| {
        let ids = bed.files.clone();
        ids.into_iter().map(|id| Ok(bed.fs()?.pages(id).len())).sum::<Result<usize>>()
    })?;
    measured.add("in memory/pages found", "", pages as f64);
    measured.add("in memory/NAND pages read", "", (took.reads + took.spare_reads) as f64);

    // Compressed: the records as the paper lays them out, and what lies in the NVRAM.
    let (object, leaf, device, block) = RAW_BYTES;
    let leaves = (FILE_BYTES / 2048).div_ceil(16);
    let blocks = (64 * MIB / (64 * 2048)) as usize;
    measured.add(
        "compressed/before",
        "bytes",
        (FILES * (object + leaves * leaf) + device + blocks * block) as f64,
    );
    measured.add("compressed/after", "bytes", bed.nvram_used()? as f64);

    // Synchronised: nobody asks, five seconds pass, and the next mount needs no NAND beyond the volume's own pages.
    let mut idle = filled(Layout::Paper)?;
    let (_, alone) = idle.reopen(false)?;
    let mut bed = filled(Layout::Paper)?;
    let id = bed.add(FILE_BYTES)?;
    bed.sync(id)?;
    bed.idle(std::time::Duration::from_secs(5))?;
    let (kind, took) = bed.reopen(false)?;
    let beyond = (took.reads + took.spare_reads).saturating_sub(alone.reads + alone.spare_reads);
    measured.add("synchronised/NAND pages read by the next mount", "", beyond as f64);
    measured.add("synchronised/mounted clean", "", f64::from(u8::from(kind == MountKind::Clean)));

    // Recovered: the power goes before the update; everything synced is there, and the NAND was not scanned.
    let mut bed = filled(Layout::Paper)?;
    let mut added = Vec::new();
    for _ in 0..20 {
        let id = bed.add(FILE_BYTES)?;
        bed.sync(id)?;
        added.push(id);
    }
    let (kind, took) = bed.reopen(false)?;
    let whole = |bed: &mut Bed, id: u32| {
        Ok::<bool, bimetal_base::Error>(bed.fs()?.pages(id).len() == FILE_BYTES / 2048)
    };
    let mut lost = 0;
    for id in added {
        lost += usize::from(!whole(&mut bed, id)?);
    }
    measured.add("recovered/files lost", "", lost as f64);
    measured.add("recovered/scans", "", f64::from(u8::from(kind == MountKind::Scanned)));
    measured.add("recovered/NAND pages and spare areas read", "", (took.reads + took.spare_reads) as f64);
    Ok(measured)
}
