//! Tests of the SSD half as a whole.

mod api;
mod crash;
mod memory;
mod slots;

use super::*;
use bimetal_base::checksum::crc32c;
use bimetal_base::time::Time;
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

/// Writes blocks of a file to the default section, and binds them.
pub(super) fn write(
    ssd: &mut Ssd,
    device: &dyn BlockDevice,
    op: u64,
    ino: u64,
    file_block: u32,
    blocks: u32,
    state: CopyState,
) {
    let section = ssd.default_section();
    let runs = ssd.allocate(section, blocks, Time(op)).expect("room");
    let mut file_block = file_block;
    for run in runs {
        bind(ssd, device, op, ino, file_block, run, state).unwrap();
        file_block += run.len;
    }
}

/// Binds file blocks to blocks, which are written before.
pub(super) fn bind(
    ssd: &mut Ssd,
    device: &dyn BlockDevice,
    op: u64,
    ino: u64,
    file_block: u32,
    run: Run,
    state: CopyState,
) -> bimetal_base::Result<()> {
    let block = u64::from(ssd.block_bytes());
    let data = vec![op as u8; (block * u64::from(run.len)) as usize];
    device.write(run.at.0 * block, data.clone()).unwrap();
    let sums: Vec<u32> = data.chunks(block as usize).map(crc32c).collect();
    let inode = DupInode { size: op, mode: 0o100600, ..DupInode::default() };
    ssd.bind(op, Ino(ino), &Binding { file_block, run, sums: &sums, state, inode: &inode })
}

/// What a mount finds, all of whose invariants hold.
pub(super) fn reopen(device: &dyn BlockDevice) -> Opened {
    let opened = Ssd::open(device, DiskSide::default()).unwrap();
    check(&opened.ssd);
    opened
}

/// An SSD with one section.
pub(super) fn one_section(extent_bytes: u64, bytes: u64) -> Config {
    Config { sections: vec![section("only", extent_bytes, Some(bytes))], ..Config::default() }
}
