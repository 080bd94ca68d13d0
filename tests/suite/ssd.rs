//! The SSD half of nfhybrid, from outside: on a file, and after damage of every kind.

use bimetal::Error;
use bimetal::checksum::crc32c;
use bimetal::fs::nfhybrid::ssd::{
    Binding, Config, CopyState, DiskSide, DupInode, Pairing, RecordBody, Run, SectionConfig, Ssd,
};
use bimetal::media::file::FileDevice;
use bimetal::media::ram::Ram;
use bimetal::media::{BlockDevice, Request};
use bimetal::time::Time;
use bimetal::units::{Ino, SsdBlock};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const BLOCK: usize = 1024;
const BYTES: u64 = 1 << 20;

/// (inode, file block) → what was written there.
type Contents = BTreeMap<(u64, u32), u8>;

fn config() -> Config {
    let section =
        |name: &str, extent_bytes, size_bytes| SectionConfig { name: name.into(), extent_bytes, size_bytes };
    Config {
        block_bytes: BLOCK as u32,
        log_bytes: 64 << 10,
        sections: vec![section("small", 8 << 10, Some(128 << 10)), section("large", 32 << 10, None)],
        threshold_blocks: 8,
        ..Config::default()
    }
}

fn write(
    ssd: &mut Ssd,
    device: &dyn BlockDevice,
    op: u64,
    ino: u64,
    file_block: u32,
    blocks: u32,
    contents: &mut Contents,
) {
    let mut at = file_block;
    for run in ssd.allocate(op as usize % 2, blocks, Time(op)).expect("room") {
        let data = vec![op as u8; BLOCK * run.len as usize];
        device.write(run.at.0 * BLOCK as u64, data.clone()).unwrap();
        let sums: Vec<u32> = data.chunks(BLOCK).map(crc32c).collect();
        let inode = DupInode { size: op, ..DupInode::default() };
        let binding = Binding { file_block: at, run, sums: &sums, state: CopyState::Both, inode: &inode };
        ssd.bind(op, Ino(ino), &binding).unwrap();
        contents.extend((at..at + run.len).map(|block| ((ino, block), op as u8)));
        at += run.len;
    }
}

fn seal(ssd: &mut Ssd, device: &dyn BlockDevice) {
    while let Some(group) = ssd.seal().unwrap() {
        let request = Request::Write {
            offset: group.offset,
            data: [group.clone().close()].into_iter().collect(),
            durable: !group.binds,
        };
        device.run(Time::ZERO, request).result.unwrap();
        if group.binds {
            device.flush().unwrap();
        }
        ssd.sealed(group.upto);
    }
}

fn checkpoint(ssd: &mut Ssd, device: &dyn BlockDevice) {
    seal(ssd, device);
    for (offset, bytes) in ssd.checkpoint_begin().unwrap().tables {
        device.write(offset, bytes).unwrap();
    }
    device.flush().unwrap();
    ssd.checkpoint_end();
}

/// A device with tables and a log with everything after them; what there was at the end of each group since, and
/// how far the log reached at the checkpoint, as the disk would know it.
fn populated(device: &dyn BlockDevice) -> (Vec<Contents>, (u32, u64)) {
    Ssd::format(device, &config(), &Pairing::default()).unwrap();
    let mut ssd = Ssd::open(device, DiskSide::default()).unwrap().ssd;
    let mut contents = Contents::new();
    let (mut history, mut reached) = (Vec::new(), (0, 0));
    for op in 1..60 {
        write(&mut ssd, device, op, op % 20, (op * 3 % 17) as u32, 1 + (op % 4) as u32, &mut contents);
        ssd.append(op, &[op as u8; 40]).unwrap();
        if op % 25 == 0 {
            ssd.trim(op - 2);
            checkpoint(&mut ssd, device);
            history.clear();
            reached = ssd.reached();
        } else if op % 3 == 0 {
            seal(&mut ssd, device);
        } else {
            continue;
        }
        history.push(contents.clone());
    }
    seal(&mut ssd, device);
    history.push(contents.clone());
    for (op, ino) in [(60, 3), (61, 4)] {
        ssd.unbind_all(op, Ino(ino));
        contents.retain(|(other, _), _| *other != ino);
    }
    write(&mut ssd, device, 62, 5, 0, 3, &mut contents);
    seal(&mut ssd, device);
    history.push(contents);
    (history, reached)
}

/// What an SSD says it has, checked against its checksums: a block whose data do not fit counts as absent.
fn readable(ssd: &Ssd, device: &dyn BlockDevice) -> Contents {
    let mut found = Contents::new();
    for ino in ssd.inodes() {
        for (first, run) in ssd.residents(ino) {
            for block in 0..run.len {
                let at = SsdBlock(run.at.0 + u64::from(block));
                let data = device.read(at.0 * BLOCK as u64, BLOCK).unwrap();
                if ssd.sums(at, 1).read(device).is_ok_and(|sums| sums == [crc32c(&data)]) {
                    found.insert((ino.0, first + block), data[0]);
                }
            }
        }
    }
    found
}

fn is_part(found: &Contents, of: &Contents) -> bool {
    found.iter().all(|(key, value)| of.get(key) == Some(value))
}

/// Opens a damaged image: an error, or some of what was there, and nothing else; and it goes on working.
fn survive(image: Vec<u8>, reached: (u32, u64), allowed: &[Contents], name: &str) -> Option<usize> {
    let device = Ram::from_bytes("ssd", image);
    let opened =
        catch_unwind(AssertUnwindSafe(|| Ssd::open(&device, DiskSide { reached, ..DiskSide::default() })))
            .unwrap_or_else(|_| panic!("{name}: panic"));
    let mut ssd = match opened {
        Ok(opened) => opened.ssd,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let found = readable(&ssd, &device);
    assert!(allowed.iter().any(|contents| is_part(&found, contents)), "{name}: wrong contents");
    let mut now = found.clone();
    for op in 100..110 {
        let free = ssd.status().sections[op as usize % 2].extents_clean;
        if free > 1 {
            now.retain(|(ino, _), _| *ino != op);
            write(&mut ssd, &device, op, op, 0, 3, &mut now);
        }
    }
    checkpoint(&mut ssd, &device);
    ssd.append(111, b"after").unwrap();
    seal(&mut ssd, &device);
    let again = Ssd::open(&device, DiskSide::default()).unwrap();
    let notes: Vec<_> = again.notes.iter().filter(|note| !note.contains("superblock")).collect();
    assert!(notes.is_empty(), "{name}: after a checkpoint all is well, but {notes:?}");
    assert_eq!(readable(&again.ssd, &device), now, "{name}");
    Some(found.len())
}

#[test]
fn an_ssd_on_a_file_keeps_what_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ssd.img");
    std::fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
    let device = FileDevice::open(&path, true).unwrap();
    let contents = populated(&device).0.pop().unwrap();
    drop(device);
    let device = FileDevice::open(&path, true).unwrap();
    let opened = Ssd::open(&device, DiskSide::default()).unwrap();
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    assert_eq!(readable(&opened.ssd, &device), contents);
    let operations: Vec<u64> = opened.records.iter().map(|record| record.op).collect();
    assert_eq!(operations, (49..60).collect::<Vec<u64>>());
    assert!(matches!(&opened.records[0].body, RecordBody::Operation(bytes) if bytes[..] == [49; 40]));
}

#[test]
fn a_flipped_bit_anywhere_costs_little_and_never_gives_a_wrong_answer() {
    let ram = Ram::new("ssd", BYTES);
    let (history, reached) = populated(&ram);
    let image = ram.image();
    let mut random = SmallRng::seed_from_u64(8);
    let data = (image.len() * 6 / 10) as u64;
    let mut least = usize::MAX;
    for step in 0..2500u64 {
        // Mostly tables and log, sometimes data.
        let byte =
            if step % 8 == 0 { random.random_range(0..BYTES) } else { random.random_range(0..BYTES - data) };
        let mut bad = image.clone();
        bad[byte as usize] ^= 1 << random.random_range(0..8);
        let found = survive(bad, reached, &history[history.len() - 2..], &format!("bit in byte {byte}"));
        least = least.min(found.expect("one superblock is whole"));
    }
    assert_eq!(least, 0, "a damaged log drops everything");
}

/// When all of the log's end is gone, what was before it is found: only the disk knows better then.
#[test]
fn damaged_regions_give_what_was_there_once_or_nothing() {
    let ram = Ram::new("ssd", BYTES);
    let (history, reached) = populated(&ram);
    let image = ram.image();
    let mut random = SmallRng::seed_from_u64(9);
    for step in 0..600 {
        let mut bad = image.clone();
        for _ in 0..random.random_range(1..4) {
            let start = random.random_range(0..bad.len());
            let len = random.random_range(1..30_000).min(bad.len() - start);
            match random.random_range(0..3) {
                0 => bad[start..start + len].fill(0),
                1 => random.fill(&mut bad[start..start + len]),
                // Another place's contents.
                _ => {
                    let from = random.random_range(0..image.len() - len);
                    bad[start..start + len].copy_from_slice(&image[from..from + len]);
                }
            }
        }
        survive(bad, reached, &history, &format!("step {step}"));
    }
}

#[test]
fn a_device_that_was_cut_short_is_refused_with_both_sizes() {
    let ram = Ram::new("ssd", BYTES);
    populated(&ram);
    for bytes in [0, 512, 4096, 8192, 70_000 / 512 * 512, BYTES / 2, BYTES - 512] {
        let device = Ram::from_bytes("ssd", ram.image()[..bytes as usize].to_vec());
        let error = Ssd::open(&device, DiskSide::default()).unwrap_err();
        let clear = matches!(&error, Error::Mismatch(text) if text.contains(&BYTES.to_string()));
        assert!(clear || bytes < 8192 && matches!(error, Error::Corrupt { .. }), "{bytes}: {error}");
    }
}

#[test]
fn a_larger_device_than_at_format_time_is_fine() {
    let ram = Ram::new("ssd", BYTES);
    let contents = populated(&ram).0.pop().unwrap();
    let mut image = ram.image();
    image.resize(image.len() + 100_000 / 512 * 512, 0);
    let device = Ram::from_bytes("ssd", image);
    let opened = Ssd::open(&device, DiskSide::default()).unwrap();
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    assert_eq!(readable(&opened.ssd, &device), contents);
}

#[test]
fn a_log_that_lost_its_end_reaches_less_far_than_its_owner_remembers() {
    let ram = Ram::new("ssd", BYTES);
    populated(&ram);
    let mut ssd = Ssd::open(&ram, DiskSide::default()).unwrap().ssd;
    ssd.append(70, b"the last").unwrap();
    let group = ssd.seal().unwrap().unwrap();
    let request = Request::Write {
        offset: group.offset,
        data: [group.clone().close()].into_iter().collect(),
        durable: true,
    };
    (&ram as &dyn BlockDevice).run(Time::ZERO, request).result.unwrap();
    ssd.sealed(group.upto);
    let remembered = ssd.reached();
    assert!(Ssd::open(&ram, DiskSide::default()).unwrap().ssd.reached() == remembered);
    (&ram as &dyn BlockDevice).write(group.offset, vec![0; 4096]).unwrap();
    let opened = Ssd::open(&ram, DiskSide::default()).unwrap();
    assert!(opened.notes.is_empty() && opened.ssd.reached() < remembered);
    let opened = Ssd::open(&ram, DiskSide { reached: remembered, ..DiskSide::default() }).unwrap();
    assert!(opened.notes[0].contains("dropped") && opened.ssd.inodes().count() == 0, "{:?}", opened.notes);
}

#[test]
fn a_group_whose_data_never_arrived_does_not_count_and_never_will() {
    let ram = Ram::new("ssd", BYTES);
    let device: &dyn BlockDevice = &ram;
    let before = populated(&ram).0.pop().unwrap();
    let mut ssd = Ssd::open(&ram, DiskSide::default()).unwrap().ssd;
    let (mut after, old) = (before.clone(), ram.image());
    write(&mut ssd, &ram, 70, 70, 0, 4, &mut after);
    let group = ssd.seal().unwrap().unwrap();
    assert!(group.binds);
    let new = ram.image();
    let torn = new.iter().zip(&old).position(|(new, old)| new != old).unwrap() / BLOCK * BLOCK;
    device.write(group.offset, group.clone().close()).unwrap();
    let whole = ram.image();
    assert_eq!(readable(&Ssd::open(&ram, DiskSide::default()).unwrap().ssd, &ram), after);
    device.write(torn as u64, old[torn..torn + BLOCK].to_vec()).unwrap();
    let mut opened = Ssd::open(&ram, DiskSide::default()).unwrap();
    assert_eq!((readable(&opened.ssd, &ram), opened.notes.len()), (before.clone(), 0));
    seal(&mut opened.ssd, &ram);
    // The data arrives after all.
    device.write(torn as u64, whole[torn..torn + BLOCK].to_vec()).unwrap();
    assert_eq!(readable(&Ssd::open(&ram, DiskSide::default()).unwrap().ssd, &ram), before);
}

#[test]
fn superblocks_that_are_gone_swapped_or_foreign_are_handled() {
    let ram = Ram::new("ssd", BYTES);
    let contents = populated(&ram).0.pop().unwrap();
    let (image, end) = (ram.image(), BYTES as usize - 4096);
    for gone in [0, end] {
        let mut bad = image.clone();
        bad[gone..gone + 4096].fill(0);
        assert_eq!(
            survive(bad, (0, 0), std::slice::from_ref(&contents), "one superblock"),
            Some(contents.len())
        );
    }
    let mut bad = image.clone();
    bad[..4096].fill(0);
    bad[end..].fill(0);
    let error = Ssd::open(&Ram::from_bytes("ssd", bad), DiskSide::default()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");

    let other = Ram::new("other", BYTES);
    populated(&other);
    let mut mixed = image.clone();
    mixed[end..].copy_from_slice(&other.image()[end..]);
    assert_eq!(
        survive(mixed, (0, 0), std::slice::from_ref(&contents), "a foreign second superblock"),
        Some(contents.len())
    );
    let mut mixed = image;
    mixed[..4096].copy_from_slice(&other.image()[..4096]);
    assert_eq!(survive(mixed, (0, 0), &[Contents::new()], "a foreign first superblock"), Some(0));
}

#[test]
fn tables_of_an_earlier_format_do_not_come_back() {
    let ram = Ram::new("ssd", BYTES);
    populated(&ram);
    Ssd::format(&ram, &config(), &Pairing::default()).unwrap();
    let opened = Ssd::open(&ram, DiskSide::default()).unwrap();
    assert!(opened.notes.is_empty() && opened.records.is_empty());
    assert_eq!(opened.ssd.inodes().count(), 0);
    let contents = populated(&ram).0.pop().unwrap();
    assert_eq!(readable(&Ssd::open(&ram, DiskSide::default()).unwrap().ssd, &ram), contents);
}

#[test]
fn an_impossible_format_writes_nothing() {
    let ram = Ram::new("ssd", BYTES);
    let contents = populated(&ram).0.pop().unwrap();
    let error = Ssd::format(&ram, &Config::default(), &Pairing::default()).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    assert_eq!(readable(&Ssd::open(&ram, DiskSide::default()).unwrap().ssd, &ram), contents);
}

#[test]
fn runs_of_other_than_allocated_blocks_are_a_bug_of_the_caller() {
    let ram = Ram::new("ssd", BYTES);
    Ssd::format(&ram, &config(), &Pairing::default()).unwrap();
    let mut ssd = Ssd::open(&ram, DiskSide::default()).unwrap().ssd;
    let run = ssd.allocate(0, 2, Time(1)).unwrap()[0];
    let wrong = Run { at: SsdBlock(run.at.0 + 1), len: 2 };
    assert!(catch_unwind(AssertUnwindSafe(|| ssd.release(wrong))).is_err());
}
