//! The interface as its owner uses it.

use super::super::layout::Layout;
use super::*;
use bimetal_base::Error;
use bimetal_base::checksum::crc32c;
use bimetal_base::time::Time;
use bimetal_media::{Completion, DeviceInfo, Request, Ticket};
use std::ops::Range;
use std::time::Duration;

const BLOCK: u64 = 4096;

/// Runs of a section for `blocks` blocks, bound to `ino` from `file_block` on; `op` is the content too.
#[test]
fn what_was_bound_is_there_after_a_mount_from_the_log_and_from_the_tables() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    write(&mut ssd, &device, 1, 12, 0, 1, CopyState::Both);
    write(&mut ssd, &device, 2, 13, 7, 40, CopyState::Ssd);
    seal_all(&mut ssd, &device);
    let before = everything(&ssd);
    assert_eq!(before.len(), 41);
    let from_log = reopen(&device).ssd;
    assert_eq!(everything(&from_log), before);
    checkpoint(&mut ssd, &device);
    seal_all(&mut ssd, &device);
    let opened = reopen(&device);
    assert_eq!(everything(&opened.ssd), before);
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    assert_eq!(opened.ssd.dup_inode(Ino(13)).map(|inode| (inode.size, inode.mode)), Some((2, 0o100600)));
    let found = opened.ssd.resident(Ino(13), 10).unwrap();
    assert_eq!((found.len, found.state), (37, CopyState::Ssd));
    assert_eq!(opened.ssd.sums(found.at, 2).values(), Some(&[crc32c(&[2; 4096]); 2][..]));
    let (fresh, expected) = (&opened.records, ssd.resident(Ino(13), 7).unwrap());
    let run = Run { at: expected.at, len: 40 };
    let inode = opened.ssd.dup_inode(Ino(13)).unwrap();
    let body = RecordBody::Fresh { ino: Ino(13), file_block: 7, run, inode };
    assert_eq!(*fresh, [Record { op: 2, body }]);
}

#[test]
fn a_partly_overwritten_file_has_a_state_for_each_part() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    write(&mut ssd, &device, 1, 5, 0, 10, CopyState::Both);
    write(&mut ssd, &device, 2, 5, 4, 2, CopyState::Ssd);
    let states: Vec<_> = ssd.residents(Ino(5)).map(|(at, found)| (at, found.len, found.state)).collect();
    assert_eq!(states, [(0, 4, CopyState::Both), (4, 2, CopyState::Ssd), (6, 4, CopyState::Both)]);
    let sum = ssd.summary(Ino(5));
    assert_eq!(sum, Summary { active: true, wr_done: CopyState::Ssd, blocks: 10 });
    ssd.trim(2);
    assert_eq!(ssd.summary(Ino(5)).wr_done, CopyState::Both);
    ssd.unbind_all(3, Ino(5));
    assert_eq!(ssd.summary(Ino(5)), Summary { active: false, wr_done: CopyState::Disk, blocks: 0 });
    assert_eq!(ssd.resident(Ino(5), 0), None);
}

#[test]
fn trimming_finishes_what_older_operations_bound_and_nothing_newer() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    for op in 1..=4 {
        write(&mut ssd, &device, op, op, 0, 3, CopyState::Ssd);
        ssd.append(op, &[op as u8]).unwrap();
    }
    // Operation 5 writes block 1 of inode 2 again.
    write(&mut ssd, &device, 5, 2, 1, 1, CopyState::Ssd);
    ssd.trim(3);
    let state = |ssd: &Ssd, ino, block| ssd.resident(Ino(ino), block).unwrap().state;
    assert_eq!([1, 3, 4].map(|ino| state(&ssd, ino, 0)), [CopyState::Both, CopyState::Both, CopyState::Ssd]);
    assert_eq!(
        [0, 1, 2].map(|block| state(&ssd, 2, block)),
        [CopyState::Both, CopyState::Ssd, CopyState::Both]
    );
    seal_all(&mut ssd, &device);
    let opened = reopen(&device);
    assert_eq!(everything(&opened.ssd), everything(&ssd));
    let operations: Vec<_> = opened.records.iter().map(|record| record.op).collect();
    assert_eq!(operations, [4, 4, 5], "the operation, then what it bound");
}

#[test]
fn unbound_blocks_are_allocated_again_only_when_the_log_is_durable() {
    let (device, mut ssd) = formatted(64 << 20, &one_section(64 << 10, 128 << 10));
    write(&mut ssd, &device, 1, 1, 0, 32, CopyState::Both);
    assert_eq!(ssd.allocate(0, 1, Time(2)), None);
    ssd.unbind_all(2, Ino(1));
    assert_eq!(ssd.allocate(0, 1, Time(3)), None, "the unbind is not durable");
    let group = ssd.seal().unwrap().unwrap();
    assert_eq!(ssd.allocate(0, 1, Time(4)), None, "the unbind is under way");
    ssd.sealed(group.upto);
    assert_eq!(ssd.allocate(0, 1, Time(5)), None, "the operation that unbound them may be lost");
    ssd.append_complete(2);
    assert_eq!(ssd.allocate(0, 1, Time(6)), None, "that it is not is not durable");
    seal_all(&mut ssd, &device);
    assert!(ssd.allocate(0, 32, Time(7)).is_some());
    check(&ssd);
}

#[test]
fn what_a_lost_operation_did_to_promised_copies_never_happened() {
    let open =
        |device: &dyn BlockDevice, op| Ssd::open(device, DiskSide { op, ..DiskSide::default() }).unwrap();
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    (1..=4).for_each(|ino| write(&mut ssd, &device, 5, ino, 0, 4, CopyState::Ssd));
    ssd.append_complete(5);
    seal_all(&mut ssd, &device);
    let promised = everything(&ssd);
    // Bound anew, unbound, cut in the middle, unbound in favour of the disk: all durable in the log, while what did
    // it is neither on the disk nor complete in the log.
    write(&mut ssd, &device, 6, 1, 0, 4, CopyState::Ssd);
    ssd.unbind_all(7, Ino(2));
    ssd.unbind(8, Ino(3), 1, 2);
    ssd.unbind_on_disk(9, Ino(4), 0, 4);
    seal_all(&mut ssd, &device);
    let changed = everything(&ssd);
    assert_eq!(everything(&open(&device, 5).ssd), promised);
    assert_eq!(everything(&open(&device, 9).ssd).len(), changed.len(), "the disk has them");
    // The log becomes complete up to all of them: only what the disk was to have is still as it was.
    let image = device.image();
    ssd.append_complete(9);
    seal_all(&mut ssd, &device);
    let found = everything(&open(&device, 5).ssd);
    assert_eq!((found.len(), changed.len()), (10, 6));
    assert!(changed.iter().all(|(key, value)| found.get(key) == Some(value)));
    // Undone once, undone for ever: the same numbers come again, for other operations.
    let device = Ram::from_bytes("ssd", image);
    let mut ssd = open(&device, 5).ssd;
    check(&ssd);
    write(&mut ssd, &device, 9, 7, 0, 1, CopyState::Ssd);
    ssd.append_complete(9);
    seal_all(&mut ssd, &device);
    assert_eq!(everything(&ssd).len(), promised.len() + 1);
    for op in [5, 9] {
        assert_eq!(everything(&open(&device, op).ssd).len(), promised.len() + 1, "operation {op}");
    }
}

#[test]
fn forgetting_all_spares_what_later_operations_bound_and_waits_for_the_disk() {
    let open =
        |device: &dyn BlockDevice, op| Ssd::open(device, DiskSide { op, ..DiskSide::default() }).unwrap().ssd;
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    write(&mut ssd, &device, 5, 1, 0, 4, CopyState::Both);
    write(&mut ssd, &device, 6, 2, 0, 4, CopyState::Ssd);
    write(&mut ssd, &device, 8, 2, 4, 4, CopyState::Ssd);
    ssd.append_complete(8);
    seal_all(&mut ssd, &device);
    let before = everything(&ssd);
    ssd.forget_on_disk(7);
    check(&ssd);
    write(&mut ssd, &device, 9, 3, 0, 2, CopyState::Ssd);
    ssd.append_complete(9);
    seal_all(&mut ssd, &device);
    let after = everything(&ssd);
    assert_eq!((before.len(), after.len()), (12, 6));
    assert!(after.keys().all(|&(ino, block)| ino == 2 && block >= 4 || ino == 3), "{after:?}");
    assert_eq!(everything(&open(&device, 6)).len(), before.len() + 2, "the disk has no operation 7");
    let with_disk = open(&device, 7);
    assert_eq!(everything(&with_disk), after);
    check(&with_disk);
}

#[test]
fn a_scattered_file_is_evicted_with_a_record_for_each_stretch_that_stays() {
    let (device, mut ssd) = formatted(64 << 20, &one_section(16 << 10, 4 << 20));
    for block in 0..200 {
        write(&mut ssd, &device, 1, 1, block * 2, 1, CopyState::Both);
    }
    write(&mut ssd, &device, 2, 1, 601, 1, CopyState::Ssd);
    seal_all(&mut ssd, &device);
    let before = ssd.used();
    assert_eq!(ssd.evict(0, u32::MAX / 2, |_| false), 1);
    let (bytes, left) = (ssd.used() - before, everything(&ssd));
    assert_eq!(left.keys().copied().collect::<Vec<_>>(), [(1, 601)]);
    assert!(bytes < 1000, "{bytes} bytes of log");
    seal_all(&mut ssd, &device);
    assert_eq!(everything(&Ssd::open(&device, DiskSide::default()).unwrap().ssd).len(), 1);
}

#[test]
fn released_blocks_can_be_allocated_at_once() {
    let (_, mut ssd) = formatted(64 << 20, &one_section(64 << 10, 128 << 10));
    let runs = ssd.allocate(0, 32, Time(1)).unwrap();
    assert_eq!(runs.len(), 1, "adjacent extents make one run: {runs:?}");
    // Half of the first extent, and the second one.
    ssd.release(Run { at: SsdBlock(runs[0].at.0 + 8), len: 24 });
    check(&ssd);
    assert_eq!(ssd.allocate(0, 16, Time(2)).unwrap()[0].at.0, runs[0].at.0 + 16);
    assert_eq!(ssd.allocate(0, 8, Time(3)).unwrap()[0].at.0, runs[0].at.0 + 8);
    check(&ssd);
}

#[test]
fn a_small_file_fills_an_extent_that_waits_until_its_time_is_over() {
    let config = Config { wait: Duration::from_nanos(10), ..one_section(64 << 10, 256 << 10) };
    let (_, mut ssd) = formatted(64 << 20, &config);
    let mut at = |now| ssd.allocate(0, 1, Time(now)).map(|runs| runs[0].at.0);
    let first = at(0).unwrap();
    assert_eq!(at(5), Some(first + 1), "the hole begins at seg[0]");
    assert_eq!(at(9), Some(first + 2));
    let second = at(10).unwrap();
    assert_eq!(second, first + 16, "the wait is over: a clean extent");
    let clean: Vec<_> = [30, 50].iter().map(|now| at(*now).unwrap()).collect();
    assert_eq!(clean, [first + 32, first + 48]);
    assert_eq!(at(100), Some(first + 4), "no clean extent is left: the first one waits again");
    assert_eq!(at(101), Some(first + 8));
    assert_eq!(at(102), Some(second + 1), "the first is full");
}

#[test]
fn allocations_of_an_extent_and_more_are_aligned_to_the_flash_block() {
    let flash = 256 << 10;
    let sections = vec![section("a", 64 << 10, Some(8 << 20)), section("b", 512 << 10, None)];
    let config = Config { flash_block_bytes: Some(flash), sections, ..Config::default() };
    let (_, mut ssd) = formatted(64 << 20, &config);
    for blocks in [128, 130, 300] {
        for run in ssd.allocate(1, blocks, Time(1)).unwrap() {
            assert_eq!(run.at.0 * BLOCK % flash, 0, "{run:?}");
        }
    }
    assert_eq!(
        ssd.allocate(0, 16, Time(1)).unwrap()[0].at.0 * BLOCK % flash,
        0,
        "the section begins aligned"
    );
}

#[test]
fn eviction_begins_below_the_threshold_takes_the_oldest_and_spares_what_it_must() {
    let config = Config { evict_below: 200, evict_to: 500, ..one_section(64 << 10, 1 << 20) };
    let (device, mut ssd) = formatted(64 << 20, &config);
    for ino in 1..=12 {
        let state = if ino == 2 { CopyState::Ssd } else { CopyState::Both };
        write(&mut ssd, &device, ino, ino, 0, 16, state);
    }
    assert_eq!(ssd.evict(0, 0, |_| false), 0, "4 of 16 extents are clean");
    write(&mut ssd, &device, 13, 13, 0, 32, CopyState::Both);
    ssd.touch(Ino(1));
    assert_eq!(ssd.evict(0, 0, |ino| ino.0 == 3), 6, "from 2 clean extents to 8");
    check(&ssd);
    let left: Vec<bool> = (1..=13).map(|ino| ssd.summary(Ino(ino)).active).collect();
    let expected = [true, true, true, false, false, false, false, false, false, true, true, true, true];
    assert_eq!(left, expected, "1 was accessed, 2 is not on the disk, 3 is busy");
    assert_eq!(ssd.status().sections[0].extents_clean, 2, "not before the log is durable");
    seal_all(&mut ssd, &device);
    let status = ssd.status();
    assert_eq!((status.sections[0].extents_clean, status.sections[0].evicted_inodes), (8, 6));
    assert_eq!(ssd.evict(0, 10, |_| false), 2, "room for ten extents was asked for");
    seal_all(&mut ssd, &device);
    assert!(ssd.allocate(0, 160, Time(99)).is_some());
    assert_eq!(everything(&reopen(&device).ssd), everything(&ssd));
}

#[test]
fn a_remapped_inode_is_in_the_queue_of_each_section_it_has_blocks_in() {
    let sections = vec![section("a", 64 << 10, Some(1 << 20)), section("b", 128 << 10, Some(1 << 20))];
    let config = Config { sections, evict_below: 900, evict_to: 1000, ..Config::default() };
    let (device, mut ssd) = formatted(64 << 20, &config);
    let a = ssd.allocate(0, 40, Time(1)).unwrap()[0];
    bind(&mut ssd, &device, 1, 9, 0, a, CopyState::Both).unwrap();
    let b = ssd.allocate(1, 70, Time(2)).unwrap()[0];
    bind(&mut ssd, &device, 2, 9, 40, b, CopyState::Both).unwrap();
    assert_eq!(ssd.status().sections.iter().map(|s| s.inodes).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(ssd.evict(0, 0, |_| false), 1);
    check(&ssd);
    assert_eq!((ssd.resident(Ino(9), 0), ssd.summary(Ino(9)).blocks), (None, 70));
    assert_eq!(ssd.evict(1, 0, |_| false), 1);
    assert_eq!(ssd.inodes().count(), 0);
    seal_all(&mut ssd, &device);
    assert!(everything(&reopen(&device).ssd).is_empty());
}

#[test]
fn groups_are_whole_pages_and_one_of_4_kib_that_shrink_is_a_single_page() {
    for log_bytes in [1 << 20, 4 << 20] {
        let config = Config { log_bytes, ..Config::default() };
        let (_, mut ssd) = formatted(64 << 20, &config);
        let mut random = bimetal_base::random::Random::new(1, "record");
        let noise: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
        for (record, pages) in [(&noise[..], 2), (&[7; 4096][..], 1)] {
            ssd.append(1, record).unwrap();
            if let Some(packing) = ssd.begin_packing() {
                ssd.end_packing(packing.pack());
            }
            let group = ssd.seal().unwrap().unwrap();
            assert!(!group.binds, "nothing is bound by it");
            assert_eq!((group.offset % 4096, group.close().len()), (0, pages * 4096));
        }
        (2..30).for_each(|op| ssd.append(op, &[1; 100]).unwrap());
        let bytes = ssd.seal().unwrap().unwrap().close().len();
        assert_eq!((bytes, ssd.seal().unwrap().is_none()), (4096, true));
        let error = ssd.append(99, &vec![0; log_bytes as usize / 8]).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
}

#[test]
fn packed_groups_are_read_back_and_go_on_to_be_appended_to() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    let records: Vec<Vec<u8>> = (1..40_u8).map(|op| vec![op; 4096]).collect();
    for (op, record) in (1..).zip(&records) {
        ssd.append(op, record).unwrap();
        let packing = ssd.begin_packing().unwrap();
        // Another one comes while it is packed.
        ssd.append(op, b"beside it").unwrap();
        ssd.end_packing(packing.pack());
        seal_all(&mut ssd, &device);
    }
    let opened = reopen(&device);
    let found: Vec<(u64, Bytes)> = opened
        .records
        .iter()
        .map(|record| match &record.body {
            RecordBody::Operation(bytes) => (record.op, bytes.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let wanted = (1..).zip(&records).flat_map(|(op, record)| [(op, &record[..]), (op, &b"beside it"[..])]);
    assert!(found.iter().map(|(op, bytes)| (*op, &bytes[..])).eq(wanted));
}

#[test]
fn an_ssd_whose_log_has_blocks_of_512_bytes_goes_on_with_them() {
    let device = Ram::new("ssd", 64 << 20);
    let config = Config::default();
    let new = Layout::plan(device.info(), &config).unwrap();
    let old = Layout { log_unit: 512, ..new };
    Ssd::format_as(&device, &config, (&Pairing::default(), [1; 16]), old).unwrap();
    for round in 0..3 {
        let mut ssd = Ssd::open(&device, DiskSide::default()).unwrap().ssd;
        ssd.append(round + 1, &[7; 4096]).unwrap();
        let group = ssd.seal().unwrap().unwrap();
        assert_eq!(group.clone().close().len(), 4608);
        (&device as &dyn BlockDevice).write(group.offset, group.clone().close()).unwrap();
        ssd.sealed(group.upto);
        for (offset, bytes) in ssd.set_pairing(Pairing::default()) {
            (&device as &dyn BlockDevice).write(offset, bytes).unwrap();
        }
        assert_eq!(reopen(&device).records.len() as u64, round + 1);
    }
}

#[test]
fn records_come_back_by_operation_number_each_once() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    for op in [3, 1, 2, 2] {
        ssd.append(op, format!("operation {op}").as_bytes()).unwrap();
        seal_all(&mut ssd, &device);
    }
    let live = [(2, b"two".to_vec()), (3, b"three".to_vec())];
    ssd.trim(1);
    ssd.restart(live).unwrap();
    ssd.append(4, b"four").unwrap();
    let found = |device: &Ram| {
        let records = reopen(device).records.into_iter();
        let text = |record: Record| match record.body {
            RecordBody::Operation(payload) => (record.op, String::from_utf8(payload.to_vec()).unwrap()),
            RecordBody::Fresh { .. } => unreachable!("nothing is bound"),
        };
        records.map(text).collect::<Vec<_>>()
    };
    let before: Vec<_> = [1, 2, 2, 3].map(|op| (op, format!("operation {op}"))).to_vec();
    assert_eq!(found(&device), before, "the restart is not durable");
    seal_all(&mut ssd, &device);
    let after = [(2, "two"), (3, "three"), (4, "four")].map(|(op, text)| (op, text.to_string()));
    assert_eq!(found(&device), after);
}

#[test]
fn the_log_goes_round_for_ever_with_checkpoints_and_restarts() {
    let config = Config { log_bytes: 64 << 10, ..Config::default() };
    let (device, mut ssd) = formatted(64 << 20, &config);
    let mut live: Vec<(u64, Vec<u8>)> = Vec::new();
    for op in 1..4000u64 {
        let payload = vec![op as u8; (op * 37 % 1500) as usize];
        ssd.append(op, &payload).unwrap();
        live.push((op, payload));
        write(&mut ssd, &device, op, op % 50, 0, 1 + (op % 3) as u32, CopyState::Both);
        seal_all(&mut ssd, &device);
        if live.len() > 12 {
            let done = live.remove(0).0;
            ssd.trim(done);
        }
        if ssd.needs_checkpoint() || ssd.needs_restart() {
            checkpoint(&mut ssd, &device);
            ssd.restart(live.iter().cloned()).unwrap();
            seal_all(&mut ssd, &device);
            ssd.append(op, b"").unwrap();
            seal_all(&mut ssd, &device);
            ssd.trim(op.saturating_sub(1).min(live[0].0 - 1));
        }
        assert!(ssd.used() <= ssd.capacity());
    }
    let opened = reopen(&device);
    assert_eq!(everything(&opened.ssd), everything(&ssd));
    assert!(opened.records.len() >= live.len());
}

#[test]
fn a_full_log_refuses_to_seal_and_goes_on_when_the_disk_has_caught_up() {
    let config = Config { log_bytes: 64 << 10, ..Config::default() };
    let (device, mut ssd) = formatted(64 << 20, &config);
    let mut op = 0;
    let error = loop {
        op += 1;
        ssd.append(op, &[op as u8; 3000]).unwrap();
        match ssd.seal() {
            Ok(Some(group)) => {
                (&device as &dyn BlockDevice).write(group.offset, group.clone().close()).unwrap();
                ssd.sealed(group.upto);
            }
            Ok(None) => unreachable!("something waits"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert!(op >= 14 && ssd.needs_restart(), "{op} groups of 4 KiB in 64 KiB");
    assert_eq!(reopen(&device).records.len() as u64, op - 1, "what was sealed is there");
    checkpoint_without_log(&mut ssd);
    ssd.trim(op - 2);
    seal_all(&mut ssd, &device);
    assert!(ssd.used() < 20 << 10, "{}", ssd.used());
    let left: Vec<u64> = reopen(&device).records.iter().map(|record| record.op).collect();
    assert_eq!(left, [op - 1, op]);
}

/// The residency records of a new SSD (format's first group) hold the tail too.
fn checkpoint_without_log(ssd: &mut Ssd) {
    let batch = ssd.log.durable_batch() + 1;
    ssd.log.checkpointed(batch, 0);
}

#[test]
fn several_groups_can_be_under_way() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    let mut groups = Vec::new();
    for op in 1..=3 {
        ssd.append(op, &[op as u8]).unwrap();
        groups.push(ssd.seal().unwrap().unwrap());
    }
    assert!(!ssd.is_durable());
    // The second one never arrives.
    for group in [&groups[0], &groups[2]] {
        (&device as &dyn BlockDevice).write(group.offset, group.clone().close()).unwrap();
    }
    let mut opened = reopen(&device);
    assert_eq!(opened.records.iter().map(|record| record.op).collect::<Vec<_>>(), [1]);
    assert!(opened.notes.is_empty(), "it was never reported durable: {:?}", opened.notes);
    // What is written now must not bring the third one back.
    opened.ssd.append(9, &[9]).unwrap();
    seal_all(&mut opened.ssd, &device);
    assert_eq!(reopen(&device).records.iter().map(|record| record.op).collect::<Vec<_>>(), [1, 9]);
    ssd.sealed(groups[2].upto);
    assert!(ssd.is_durable());
}

#[test]
fn a_file_of_many_pieces_survives_checkpoints_and_rewriting() {
    let (device, mut ssd) = formatted(64 << 20, &Config { slot_bytes: 512, ..Config::default() });
    for op in 1..=400u64 {
        write(&mut ssd, &device, op, 77, (op * 7919 % 1200) as u32, 1, CopyState::Both);
        if op % 50 == 0 {
            checkpoint(&mut ssd, &device);
        }
        seal_all(&mut ssd, &device);
    }
    assert!(ssd.residents(Ino(77)).count() > 200);
    assert!(ssd.status().slots_used > 8);
    let opened = reopen(&device);
    assert_eq!(everything(&opened.ssd), everything(&ssd));
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
}

#[test]
fn after_a_mount_a_checkpoint_writes_only_what_changed() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    (1..=300).for_each(|op| write(&mut ssd, &device, op, op, 0, 1, CopyState::Both));
    checkpoint(&mut ssd, &device);
    ssd.append(301, b"").unwrap();
    seal_all(&mut ssd, &device);
    let mut opened = reopen(&device);
    assert!(opened.ssd.checkpoint_begin().unwrap().tables.is_empty());
    opened.ssd.checkpoint_end();
    opened.ssd.unbind_all(302, Ino(5));
    let tables = opened.ssd.checkpoint_begin().unwrap().tables;
    let bytes: usize = tables.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= 7 * 4096, "five bitmaps, the inode bitmap, a block of slots: {bytes}");
}

#[test]
fn a_checkpoint_that_was_given_up_is_begun_anew_with_all_of_it() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    (1..=300).for_each(|op| write(&mut ssd, &device, op, op, 0, 1, CopyState::Both));
    let first = ssd.checkpoint_begin().unwrap();
    first.log.iter().for_each(|group| ssd.sealed(group.upto));
    ssd.unbind_all(301, Ino(5));
    let mut second = ssd.checkpoint_begin().unwrap();
    let offsets = |checkpoint: &Checkpoint| {
        checkpoint.tables.iter().map(|(at, bytes)| (*at, bytes.len())).collect::<Vec<_>>()
    };
    assert_eq!(offsets(&first), offsets(&second));
    assert_eq!(second.log.len(), 1);
    ssd.sealed(second.log.remove(0).upto);
    ssd.checkpoint_end();
    assert!(ssd.checkpoint_begin().unwrap().tables.is_empty());
}

#[test]
fn runs_the_ssd_does_not_have_are_dropped_at_a_mount() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    for (ino, state) in
        [(1, CopyState::Init), (2, CopyState::Disk), (3, CopyState::Ssd), (4, CopyState::Both)]
    {
        write(&mut ssd, &device, ino, ino, 0, 4, state);
    }
    ssd.set_state(5, Ino(4), 1, 2, CopyState::Disk);
    seal_all(&mut ssd, &device);
    let mut opened = reopen(&device);
    let left: Vec<_> = everything(&opened.ssd).into_keys().collect();
    assert_eq!(left, [(3, 0), (3, 1), (3, 2), (3, 3), (4, 0), (4, 3)]);
    assert!(opened.notes[0].contains("not written"), "{:?}", opened.notes);
    seal_all(&mut opened.ssd, &device);
    assert!(reopen(&device).notes.is_empty(), "it is dropped once");
}

#[test]
fn dropping_all_is_durable_with_the_log_and_frees_everything() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    (1..=50).for_each(|op| write(&mut ssd, &device, op, op, 0, 5, CopyState::Both));
    checkpoint(&mut ssd, &device);
    ssd.drop_all();
    write(&mut ssd, &device, 60, 60, 0, 1, CopyState::Both);
    check(&ssd);
    seal_all(&mut ssd, &device);
    check(&ssd);
    assert_eq!(everything(&reopen(&device).ssd).into_keys().collect::<Vec<_>>(), [(60, 0)]);
    let status = ssd.status();
    assert_eq!((status.inodes, status.slots_used, status.sections[0].resident_bytes), (1, 1, 4096));
}

#[test]
fn the_pairing_and_the_clean_mark_are_kept() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    assert!(ssd.is_clean());
    let pairing = Pairing {
        disk_uuid: [3; 16],
        epoch: 7,
        before: 6,
        disk_op: 5,
        mount_count: 8,
        mount_time: 9,
        last_check: 10,
        write_time: 11,
    };
    let write_all = |writes: SuperblockWrites| {
        for (offset, bytes) in writes {
            (&device as &dyn BlockDevice).write(offset, bytes).unwrap();
        }
    };
    write_all(ssd.set_pairing(pairing));
    let mut opened = reopen(&device).ssd;
    assert_eq!((*opened.pairing(), opened.is_clean(), opened.uuid()), (pairing, false, ssd.uuid()));
    write_all(opened.mark_clean(Pairing { mount_count: 9, ..pairing }));
    let last = reopen(&device).ssd;
    assert_eq!((last.pairing().mount_count, last.is_clean()), (9, true));
}

#[test]
fn an_ssd_can_be_formatted_again_as_it_was() {
    let sections = vec![section("a", 16 << 10, Some(4 << 20)), section("b", 256 << 10, None)];
    let config = Config {
        block_bytes: 1024,
        flash_block_bytes: Some(128 << 10),
        default_section: 1,
        sections,
        ..Config::default()
    };
    let (device, ssd) = formatted(40 << 20, &config);
    assert_eq!((ssd.section_named("b"), ssd.section_named("c"), ssd.default_section()), (Some(1), None, 1));
    let again = ssd.config();
    Ssd::format(&device, &again, ssd.pairing()).unwrap();
    let second = reopen(&device).ssd;
    assert_eq!(second.config(), again);
    assert_ne!(second.uuid(), ssd.uuid());
}

#[test]
fn the_status_counts() {
    let (device, mut ssd) = formatted(64 << 20, &one_section(64 << 10, 4 << 20));
    write(&mut ssd, &device, 1, 1, 0, 20, CopyState::Both);
    write(&mut ssd, &device, 2, 2, 0, 1, CopyState::Both);
    [true, true, false].into_iter().for_each(|hit| ssd.note_read(0, hit));
    let status = ssd.status();
    let one = &status.sections[0];
    assert_eq!((one.extents, one.extents_clean, one.extents_partly, one.extents_full), (64, 62, 1, 1));
    assert_eq!((one.extents_waiting, one.resident_bytes, one.inodes), (1, 21 * 4096, 2));
    assert_eq!((one.hits, one.misses, status.slots_used), (2, 1, 2));
    assert_eq!((one.name.as_str(), one.size_bytes, one.extent_bytes), ("only", 4 << 20, 64 << 10));
    assert!(status.log_used_bytes > 512 && status.log_bytes == 4 << 20);
}

/// A device whose bytes in a range cannot be read.
struct BadRange(Ram, Range<u64>);

impl BlockDevice for BadRange {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        if let Request::Read { offset, len } = request
            && offset < self.1.end
            && offset + len as u64 > self.1.start
        {
            let error = std::io::Error::from_raw_os_error(5);
            return Ticket::Done(Completion { at, result: Err(Error::io("ssd", error)) });
        }
        self.0.submit(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        self.0.wait(ticket)
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        self.0.is_done(ticket)
    }
}

#[test]
fn a_table_block_that_cannot_be_read_costs_only_what_was_in_it() {
    let (device, mut ssd) = formatted(64 << 20, &Config::default());
    (1..=100).for_each(|op| write(&mut ssd, &device, op, op, 0, 1, CopyState::Both));
    checkpoint(&mut ssd, &device);
    ssd.append(101, b"").unwrap();
    seal_all(&mut ssd, &device);
    ssd.checkpoint = None;
    let layout = ssd.superblock.layout.clone();
    let with = |start: u64| {
        let bad = BadRange(Ram::from_bytes("ssd", device.image()), start..start + 1);
        let opened = reopen(&bad);
        assert!(!opened.notes.is_empty(), "{start}");
        let found = everything(&opened.ssd);
        assert!(found.iter().all(|(key, value)| everything(&ssd).get(key) == Some(value)));
        found.len()
    };
    assert_eq!(with(layout.slots), 100 - 16);
    assert_eq!(with(layout.sections[0].bitmaps), 100);
    assert_eq!(with(layout.inode_bitmap), 100);
    assert_eq!(with(0), 100, "the second superblock serves");
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Tables that were never written to the device are written by the next checkpoint.
fn mark_all_dirty(ssd: &mut Ssd) {
    let slots = &mut ssd.residency.slots;
    (0..slots.high()).for_each(|slot| slots.changed(slot));
    for data in &mut ssd.data {
        let extents = data.section.extents();
        data.section.dirty().set_range(0..extents.div_ceil(section::EXTENTS_PER_BITMAP_BLOCK));
        data.dirty_sums.set_range(0..(data.section.range().len() as u32).div_ceil(SUMS_PER_BLOCK));
    }
}

/// Numbers for the budget, in processor time: run with `cargo test --release --lib cost_of -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_small_file() {
    const FILES: u64 = 50_000;
    let config = Config { bytes_per_slot: 8 << 10, ..Config::default() };
    let (device, mut ssd) = formatted(4 << 30, &config);
    let (inode, payload, sums) = (DupInode::default(), [5u8; 120], [1]);
    let mut op = 0;
    for round in 0..6u64 {
        let mut spent = [Duration::ZERO; 6];
        let mut timed = |which: usize, work: &mut dyn FnMut()| {
            let start = processor_time();
            work();
            spent[which] += processor_time() - start;
        };
        for group in 0..FILES / 100 {
            let mut runs = Vec::with_capacity(100);
            let inos = round * FILES + group * 100..round * FILES + group * 100 + 100;
            timed(0, &mut || runs.extend((0..100).map(|_| ssd.allocate(0, 1, Time(op * 1000)).unwrap()[0])));
            timed(1, &mut || {
                for (ino, run) in inos.clone().zip(&runs) {
                    op += 1;
                    let binding = Binding {
                        file_block: 0,
                        run: *run,
                        sums: &sums,
                        state: CopyState::Both,
                        inode: &inode,
                    };
                    ssd.bind(op, Ino(ino), &binding).unwrap();
                }
            });
            timed(2, &mut || inos.clone().for_each(|op| ssd.append(op, &payload).unwrap()));
            timed(3, &mut || {
                while let Some(group) = ssd.seal().unwrap() {
                    ssd.sealed(group.upto);
                }
                ssd.trim(op);
            });
            timed(4, &mut || {
                if ssd.needs_checkpoint() {
                    ssd.checkpoint_begin().unwrap().log.iter().for_each(|group| ssd.sealed(group.upto));
                    ssd.checkpoint_end();
                }
            });
            if let Some(old) = inos.start.checked_sub(2 * FILES) {
                timed(5, &mut || (old..old + 100).for_each(|ino| ssd.unbind_all(op, Ino(ino))));
            }
        }
        let [allocate, bind, append, seal, checkpoint, unbind] =
            spent.map(|span| span.as_nanos() as u64 / FILES);
        println!(
            "round {round}: allocate {allocate} + bind {bind} + append {append} = {} ns; seal {seal}, \
             checkpoint {checkpoint}, unbind {unbind}",
            allocate + bind + append
        );
    }
    let all: Vec<Ino> = ssd.inodes().collect();
    let each = |span: Duration| span.as_nanos() as u64 / all.len() as u64;
    let start = processor_time();
    all.iter().for_each(|ino| assert!(ssd.resident(*ino, 0).is_some()));
    println!("resident: {} ns", each(processor_time() - start));
    let start = processor_time();
    all.iter().for_each(|ino| ssd.touch(*ino));
    println!("touch: {} ns", each(processor_time() - start));
    mark_all_dirty(&mut ssd);
    checkpoint(&mut ssd, &device);
    ssd.append(op, b"").unwrap();
    seal_all(&mut ssd, &device);
    let start = processor_time();
    let opened = Ssd::open(&device, DiskSide::default()).unwrap();
    let (span, found) = (processor_time() - start, opened.ssd.inodes().count());
    assert_eq!((found, opened.notes.len()), (all.len(), 0));
    println!("open: {} ms for {found} inodes", span.as_millis());
    let start = processor_time();
    let evicted = ssd.evict(0, u32::MAX / 2, |_| false);
    println!("evict: {} ns an inode, {evicted} inodes", each(processor_time() - start));
}
