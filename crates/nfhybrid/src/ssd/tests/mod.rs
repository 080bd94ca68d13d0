//! Tests of the SSD half as a whole.

mod api;
mod crash;
mod memory;

use super::*;
use bimetal_media::BlockDevice;
use bimetal_media::ram::Ram;

/// A section configuration.
pub(super) fn section(name: &str, extent_bytes: u64, size_bytes: Option<u64>) -> SectionConfig {
    SectionConfig { name: name.into(), extent_bytes, size_bytes }
}

/// A freshly formatted SSD in memory.
pub(super) fn formatted(bytes: u64, config: &Config) -> (Ram, Ssd) {
    let device = Ram::new("ssd", bytes);
    Ssd::format(&device, config, &Pairing::default()).unwrap();
    let opened = Ssd::open(&device, DiskSide::default()).unwrap();
    assert!(opened.records.is_empty() && opened.notes.is_empty(), "{:?}", opened.notes);
    (device, opened.ssd)
}

/// Writes everything the log has to write.
pub(super) fn seal_all(ssd: &mut Ssd, device: &dyn BlockDevice) {
    while let Some(write) = ssd.seal().unwrap() {
        let bytes: Vec<u8> = write.clone().close().to_vec();
        device.write(write.offset, bytes).unwrap();
        ssd.sealed(write.upto);
    }
}

/// A whole checkpoint.
pub(super) fn checkpoint(ssd: &mut Ssd, device: &dyn BlockDevice) {
    let mut checkpoint = ssd.checkpoint_begin().unwrap();
    for write in std::mem::take(&mut checkpoint.log) {
        device.write(write.offset, write.clone().close()).unwrap();
        ssd.sealed(write.upto);
    }
    checkpoint.merge(device).unwrap();
    for (offset, bytes) in checkpoint.tables {
        device.write(offset, bytes).unwrap();
    }
    ssd.checkpoint_end();
}

/// Everything bound, block by block: (inode, file block) → (SSD block, state).
pub(super) fn everything(ssd: &Ssd) -> std::collections::BTreeMap<(u64, u32), (u64, CopyState)> {
    let blocks = |ino: Ino| {
        ssd.residents(ino).flat_map(move |(first, found)| {
            (0..found.len).map(move |i| ((ino.0, first + i), (found.at.0 + u64::from(i), found.state)))
        })
    };
    ssd.inodes().flat_map(blocks).collect()
}

/// Checks every invariant of the state in memory, and that no block has two owners.
pub(super) fn check(ssd: &Ssd) {
    ssd.residency.check();
    ssd.data.iter().for_each(|data| data.section.check());
    let bound = everything(ssd);
    let mut blocks: Vec<u64> = bound.values().map(|(at, _)| *at).collect();
    blocks.sort_unstable();
    assert!(blocks.windows(2).all(|pair| pair[0] < pair[1]), "a block has two owners");
    let live: u64 = ssd.data.iter().map(|data| data.section.counts().live_blocks).sum();
    assert_eq!(live, blocks.len() as u64);
    for data in &ssd.data {
        let range = data.section.range();
        blocks.iter().filter(|at| (u64::from(range.start)..u64::from(range.end)).contains(at)).for_each(
            |at| {
                assert!(data.section.is_live(*at as u32));
            },
        );
    }
}
