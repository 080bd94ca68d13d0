//! Doh and others (IEICE 2010), figure 2: where a synchronous VFAT writes under Camera-MS500, and what
//! remains when a non-volatile cache takes the FATs and the root directory.
//!
//! Twice: from the trace of a real kernel's VFAT (Linux 6.1, 32 MiB volume, FATs from sector 4, data from
//! 164) and from our model of the paper's own volume (see the generator `camera-vfat`). What is left is counted below
//! a cache of 128 KiB of FeRAM through which the same writes go, and which is emptied at the end.

use super::super::{Experiment, ExperimentContext, Measured};
use super::references::{References, SECTOR_BYTES};
use crate::stack::layers::Layers;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_cache::nvram::{Admission, NvramCache};
use bimetal_media::nvram::Nvram;
use bimetal_media::ram::Ram;
use bimetal_media::recorded::Recorder;
use bimetal_media::{BlockDevice, Gather, Request, profile};
use bimetal_trace::{Op, ReadOptions, Source};
use std::sync::Arc;

/// Registry line.
pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "ftl-fig2",
    about: "hot metadata under Camera-MS500, and the writes left without it",
    seconds: 0.15,
    measure,
};

const RECORDED: &str = "block/vfat-camera500.dev.csv.zst";
/// Of the recorded volume: boot and reserved sectors, FATs and root directory end here.
const RECORDED_DATA: u64 = 164;
/// The same of the modelled volume.
const MODELLED_DATA: u64 = 161;
/// The paper's partition.
const VOLUME_BYTES: u64 = 32 << 20;
/// The paper's memory.
const NVRAM_BYTES: usize = 128 << 10;

/// The sectors that a source writes, in order.
fn sectors(source: &Source) -> Result<Vec<u64>> {
    let mut sectors = Vec::new();
    for record in source.open()? {
        let record = record?;
        if record.op == Op::Write {
            sectors.extend(record.offset / SECTOR_BYTES..record.end().div_ceil(SECTOR_BYTES));
        }
    }
    match sectors.is_empty() {
        true => Err(Error::invalid(format!("{}: no writes", source.name()))),
        false => Ok(sectors),
    }
}

/// Those that are written below a cache for the sectors before `data`, the last of them when it is emptied.
fn left(all: &[u64], data: u64) -> Result<Vec<u64>> {
    let recorder = Recorder::new();
    let below: Arc<dyn BlockDevice> = Arc::new(recorder.wrap(Arc::new(Ram::new("volume", VOLUME_BYTES))));
    let nvram = Nvram::new(profile::load("feram")?, NVRAM_BYTES);
    let metadata = Admission::Ranges(std::iter::once(0..data * SECTOR_BYTES).collect());
    let cache = NvramCache::open(below, nvram, metadata)?;
    let zeros = Gather::from_iter([bytes::Bytes::from_static(&[0; SECTOR_BYTES as usize])]);
    for sector in all {
        let write = Request::Write { offset: sector * SECTOR_BYTES, data: zeros.clone(), durable: true };
        cache.submit(Time::ZERO, write).done().result?;
    }
    cache.write_back(Time::ZERO)?;
    Ok(super::references::written(&recorder))
}

fn measure(setting: &ExperimentContext) -> Result<Measured> {
    let modelled = Source::parse(&setting.seeded("gen:camera-vfat"), ReadOptions::default())?;
    let mut measured = Measured::with(serde_json::json!({
        "recorded": RECORDED, "recorded_data_from_sector": RECORDED_DATA,
        "modelled": modelled.name(), "modelled_data_from_sector": MODELLED_DATA, "nvram_bytes": NVRAM_BYTES,
    }))
    .on(Layers::of(&[
        &[("writes", "Camera-MS500 on a VFAT, recorded and modelled")],
        &[("non-volatile write cache", "FeRAM of 128 KiB, for FATs and root directory")],
        &[("volume", "32 MiB in memory, counted")],
    ]));
    let mut one = |of: &str, source: &Source, data: u64| -> Result<()> {
        let all = sectors(source)?;
        let found = References { left: left(&all, data)?, all, data };
        found.add(&mut measured, of);
        measured.charts.extend(setting.first.then(|| found.charts(of)).into_iter().flatten());
        Ok(())
    };
    // The recorded one is one draw.
    if setting.first {
        one("kernel", &setting.trace(RECORDED)?, RECORDED_DATA)?;
    }
    one("model", &modelled, MODELLED_DATA)?;
    Ok(measured)
}
