//! The inode table when it is full: nothing is bound where something may come back.

use super::*;
use bimetal_base::Error;
use bimetal_base::time::Time;

#[test]
fn a_full_inode_table_is_an_error_and_eviction_helps() {
    let config = Config { bytes_per_slot: 1 << 20, ..one_section(64 << 10, 32 << 20) };
    let (device, mut ssd) = formatted(64 << 20, &config);
    let mut ino = 0;
    let error = loop {
        ino += 1;
        let run = ssd.allocate(0, 1, Time(1)).unwrap()[0];
        let sums = [0];
        let inode = DupInode::default();
        let binding = Binding { file_block: 0, run, sums: &sums, state: CopyState::Both, inode: &inode };
        if let Err(error) = ssd.bind(ino, Ino(ino), &binding) {
            break error;
        }
    };
    assert!(matches!(error, Error::NoSpace(_)) && ino > 60, "{error} at {ino}");
    check(&ssd);
    assert_eq!(ssd.resident(Ino(ino), 0), None);
    assert_eq!(ssd.evict_for_slots(0, |_| false), 6, "a tenth of 64");
    write(&mut ssd, &device, 999, 999, 0, 1, CopyState::Both);
}

#[test]
fn a_remainder_that_finds_no_slot_is_unbound_for_good() {
    let config = Config { bytes_per_slot: 1 << 20, ..one_section(64 << 10, 32 << 20) };
    let (device, mut ssd) = formatted(64 << 20, &config);
    // Eight pieces of four blocks fill the slot of each of two inodes, others the table but for what a bind needs.
    (0..8).for_each(|i| write(&mut ssd, &device, 1, 1, i * 10, 4, CopyState::Both));
    (0..8).for_each(|i| write(&mut ssd, &device, 1, 3, i * 10, 4, CopyState::Ssd));
    write(&mut ssd, &device, 1, 2, 0, 90, CopyState::Both);
    let mut ino = 4;
    while ssd.has_slots(1) {
        write(&mut ssd, &device, 2, ino, 0, 1, CopyState::Both);
        ino += 1;
    }
    let before = everything(&ssd);
    let run = ssd.allocate(ssd.default_section(), 1, Time(3)).expect("room")[0];
    let inode = DupInode::default();
    let binding = Binding { file_block: 11, run, sums: &[0], state: CopyState::Ssd, inode: &inode };
    assert!(ssd.bind(3, Ino(1), &binding).is_err());
    assert_eq!(everything(&ssd), before, "what could not be bound changed nothing");
    // Cutting takes what is left.
    (1..90).step_by(2).for_each(|at| ssd.unbind(3, Ino(2), at, 1));
    assert_eq!(ssd.status().slots_used, ssd.status().slots);
    checkpoint(&mut ssd, &device);
    assert!(
        ssd.would_lose(Ino(3), 11, 1) && !ssd.would_lose(Ino(3), 10, 4) && !ssd.would_lose(Ino(1), 11, 1)
    );
    ssd.unbind(9, Ino(1), 11, 1);
    check(&ssd);
    assert_eq!(
        [10, 11, 12, 13].map(|block| ssd.resident(Ino(1), block).is_some()),
        [true, false, false, false]
    );
    seal_all(&mut ssd, &device);
    assert_eq!(everything(&reopen(&device).ssd), everything(&ssd));
}

#[test]
fn a_slot_that_a_commit_frees_is_another_inodes_once_the_disk_has_the_commit() {
    let config = Config { bytes_per_slot: 1 << 20, ..one_section(64 << 10, 32 << 20) };
    let (device, mut ssd) = formatted(64 << 20, &config);
    let mut ino = 1;
    while ssd.has_slots(1) {
        write(&mut ssd, &device, 1, ino, 0, 1, CopyState::Ssd);
        ino += 1;
    }
    ssd.append_complete(1);
    // What a commit has of two inodes is newer: until then they are bound as before.
    ssd.unbind_on_disk(2, Ino(1), 0, 1);
    ssd.unbind_on_disk(2, Ino(2), 0, u64::MAX);
    check(&ssd);
    assert!(!ssd.has_slots(1), "a mount may find it in use");
    seal_all(&mut ssd, &device);
    let before = Ssd::open(&device, DiskSide { op: 1, ..DiskSide::default() }).unwrap().ssd;
    let gone: Vec<u64> = (1..ino).filter(|ino| before.resident(Ino(*ino), 0).is_none()).collect();
    assert!(gone.is_empty(), "{gone:?} of {ino}");
    ssd.trim(2);
    check(&ssd);
    assert!(ssd.has_slots(2));
    write(&mut ssd, &device, 3, ino, 0, 1, CopyState::Ssd);
    seal_all(&mut ssd, &device);
    assert!((3..=ino).all(|ino| ssd.resident(Ino(ino), 0).is_some()));
}

#[test]
fn a_slot_of_which_entries_went_for_several_reasons_waits_for_all_of_them() {
    for overflow in [false, true] {
        let config = Config { bytes_per_slot: 1 << 20, ..one_section(64 << 10, 32 << 20) };
        let (device, mut ssd) = formatted(64 << 20, &config);
        // Entries of the head slot stay where the case is about a further slot.
        let first = if overflow { 80 } else { 0 };
        (0..first / 10).for_each(|i| write(&mut ssd, &device, 1, 1, i * 10, 4, CopyState::Both));
        [first, first + 10].into_iter().for_each(|at| write(&mut ssd, &device, 1, 1, at, 1, CopyState::Ssd));
        let mut ino = 2;
        while ssd.has_slots(1) {
            write(&mut ssd, &device, 1, ino, 0, 1, CopyState::Ssd);
            ino += 1;
        }
        ssd.append_complete(1);
        let slots = ssd.status().slots_used;
        // The one until the disk has a commit, the other until the log has an operation.
        ssd.unbind_on_disk(2, Ino(1), first.into(), 1);
        ssd.unbind(3, Ino(1), (first + 10).into(), 1);
        ssd.append_complete(3);
        seal_all(&mut ssd, &device);
        check(&ssd);
        assert_eq!(ssd.status().slots_used, slots, "overflow: {overflow}: a mount may find it in use");
        assert!(!ssd.has_slots(1));
        let before = Ssd::open(&device, DiskSide { op: 1, ..DiskSide::default() }).unwrap();
        assert!(before.ssd.resident(Ino(1), first).is_some(), "overflow: {overflow}");
        ssd.trim(2);
        check(&ssd);
        assert!(ssd.has_slots(1), "overflow: {overflow}");
    }
}

/// The entries that an operation unbinds are there again without it, beside those that were made meanwhile.
#[test]
fn a_mount_has_slots_for_what_is_unbound_no_more_and_for_what_came_since() {
    for on_disk in [false, true] {
        let config = Config { bytes_per_slot: 1 << 20, ..one_section(64 << 10, 32 << 20) };
        let (device, mut ssd) = formatted(64 << 20, &config);
        let inodes = 1..=8;
        for (ino, i) in inodes.clone().flat_map(|ino| (0..8).map(move |i| (ino, i))) {
            write(&mut ssd, &device, 1, ino, i * 10, 4, CopyState::Both);
        }
        let mut ino = 9;
        while ssd.has_slots(4) {
            write(&mut ssd, &device, 1, ino, 0, 1, CopyState::Both);
            ino += 1;
        }
        ssd.append_complete(1);
        checkpoint(&mut ssd, &device);
        for (ino, at) in inodes.clone().flat_map(|ino| (1..8).map(move |i| (Ino(ino), i * 10))) {
            match on_disk {
                true => ssd.unbind_on_disk(2, ino, at, 4),
                false => ssd.unbind(4, ino, at, 4),
            }
        }
        // What comes to the SSD counts: by an fsync, or as a copy of what the disk has.
        let (op, state) = if on_disk { (3, CopyState::Ssd) } else { (1, CopyState::Both) };
        let mut bound = Vec::new();
        for (ino, file_block) in (0..7).flat_map(|i| inodes.clone().map(move |ino| (ino, 100 + i * 10))) {
            let Some(run) = ssd.allocate(ssd.default_section(), 1, Time(3)) else { break };
            if bind(&mut ssd, &device, op, ino, file_block, run[0], state).is_ok() {
                bound.push((ino, file_block));
            }
        }
        if on_disk {
            ssd.append_complete(3);
        }
        seal_all(&mut ssd, &device);
        check(&ssd);
        let opened = Ssd::open(&device, DiskSide { op: 1, ..DiskSide::default() }).unwrap();
        let said = format!("on disk: {on_disk}: {:?} {:?}", opened.lost, opened.notes);
        assert!(opened.lost.is_none() && opened.notes.is_empty(), "{said}");
        check(&opened.ssd);
        assert!(!bound.is_empty(), "{said}");
        let before = inodes.flat_map(|ino| (0..8).map(move |i| (ino, i * 10)));
        for (ino, file_block) in bound.into_iter().chain(before) {
            let found = opened.ssd.resident(Ino(ino), file_block);
            assert!(found.is_some(), "{said}: block {file_block} of inode {ino}");
        }
        let head = ssd.residency.head_of(1).unwrap();
        assert_eq!(ssd.residency.slots.room(head), 0, "{said}");
        ssd.trim(4);
        assert!(
            ssd.residency.slots.room(head) > 0,
            "{said}: once it is settled, the entries can be used again"
        );
    }
}

/// What is bound in the middle of what a commit unbinds cuts that in two for a mount that finds the disk without the commit.
#[test]
fn a_mount_has_slots_for_the_parts_of_what_is_unbound_no_more() {
    let config = Config { bytes_per_slot: 1 << 20, ..one_section(64 << 10, 32 << 20) };
    let (device, mut ssd) = formatted(64 << 20, &config);
    let inodes = 1..=8;
    // A piece of each stays, so that its slot does.
    for (ino, at) in inodes.clone().flat_map(|ino| [(ino, 0), (ino, 100)]) {
        write(&mut ssd, &device, 1, ino, at, 16, CopyState::Both);
    }
    let mut ino = 9;
    while ssd.has_slots(5) {
        write(&mut ssd, &device, 1, ino, 0, 1, CopyState::Both);
        ino += 1;
    }
    ssd.append_complete(1);
    checkpoint(&mut ssd, &device);
    inodes.clone().for_each(|ino| ssd.unbind_on_disk(2, Ino(ino), 0, 16));
    let mut bound = Vec::new();
    for (ino, file_block) in (0..7).flat_map(|i| inodes.clone().map(move |ino| (ino, 1 + i * 2))) {
        let Some(run) = ssd.allocate(ssd.default_section(), 1, Time(3)) else { break };
        if bind(&mut ssd, &device, 3, ino, file_block, run[0], CopyState::Ssd).is_ok() {
            bound.push((ino, file_block));
        }
    }
    ssd.append_complete(3);
    seal_all(&mut ssd, &device);
    check(&ssd);
    let opened = Ssd::open(&device, DiskSide { op: 1, ..DiskSide::default() }).unwrap();
    assert!(opened.lost.is_none() && opened.notes.is_empty(), "{:?} {:?}", opened.lost, opened.notes);
    check(&opened.ssd);
    assert!(!bound.is_empty());
    let state = |ino, block| opened.ssd.resident(Ino(ino), block).map(|found| found.state);
    for (ino, block) in inodes.flat_map(|ino| (0..16).map(move |block| (ino, block))) {
        let is_new = bound.contains(&(ino, block));
        let wanted = if is_new { CopyState::Ssd } else { CopyState::Both };
        assert_eq!(state(ino, block), Some(wanted), "block {block} of inode {ino}");
    }
}
