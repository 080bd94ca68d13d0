//! The policies by what they admit of rows of reads.

use super::*;
use std::collections::HashSet;

const CAPACITY: u64 = 64 << 20;

fn policy(name: &str) -> Box<dyn Admission> {
    name.parse::<Promote>().unwrap().make(CAPACITY)
}

/// Reads a file of `frames` frames in `dir` whole, 32 frames at a time; the frames admitted.
fn read_whole(policy: &mut dyn Admission, ino: u64, dir: u64, frames: u64) -> u64 {
    let mut admitted = 0;
    for start in (0..frames).step_by(32) {
        admitted += read_part(policy, ino, dir, start..frames.min(start + 32), frames);
    }
    admitted
}

fn read_part(policy: &mut dyn Admission, ino: u64, dir: u64, frames: Range<u64>, file_frames: u64) -> u64 {
    let mut path = [Ino(0); PATH];
    (path[0], path[1]) = (Ino(dir), Ino(2));
    let judged = policy.judge(&DiskRead { ino: Ino(ino), path, frames: frames.clone(), file_frames });
    let admitted = judged.admitted.iter().map(|range| range.end - range.start).sum::<u64>();
    assert_eq!(admitted + judged.first + judged.swept + judged.never, frames.end - frames.start);
    assert!(judged.admitted.iter().all(|range| range.start >= frames.start && range.end <= frames.end));
    admitted
}

#[test]
fn every_policy_has_a_name_of_its_own_and_text_that_is_no_name_is_answered_with_all() {
    let names: HashSet<_> = POLICIES.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), POLICIES.len());
    assert_eq!(Promote::default().name(), "second");
    let error = "third".parse::<Promote>().unwrap_err().to_string();
    assert!(names.iter().all(|name| error.contains(name)), "{error}");
}

#[test]
fn first_admits_everything_and_never_nothing() {
    assert_eq!(read_whole(&mut *policy("first"), 12, 3, 100), 100);
    let mut never = policy("never");
    assert_eq!((read_whole(&mut *never, 12, 3, 100), read_whole(&mut *never, 12, 3, 100)), (0, 0));
}

#[test]
fn a_cold_tree_that_is_read_once_is_not_copied_however_large_it_is() {
    for files in [100, 1000, 20_000] {
        let mut second = policy("second");
        let admitted: u64 =
            (0..files).map(|file| read_whole(&mut *second, 100 + file, 10 + file / 50, 1 + file % 40)).sum();
        assert_eq!(admitted, 0, "of {files} files");
    }
}

#[test]
fn a_set_that_fits_is_admitted_whole_at_its_second_reading() {
    let mut second = policy("second");
    let mut round = || (0..100).map(|file| read_whole(&mut *second, 100 + file, 10, 70)).sum::<u64>();
    assert_eq!((round(), round()), (0, 7000));
}

#[test]
fn random_pages_are_admitted_one_by_one_when_they_are_read_again() {
    let mut second = policy("second");
    let pages: Vec<u64> = (0..500).map(|at| at * 7919 % 100_000).collect();
    let mut round = |shift: u64| -> u64 {
        pages.iter().map(|at| read_part(&mut *second, 5, 10, at + shift..at + shift + 1, 200_000)).sum()
    };
    assert_eq!((round(0), round(1), round(0)), (0, 0, 500));
}

#[test]
fn what_comes_back_after_more_reads_than_the_ssd_holds_is_read_for_the_first_time() {
    let mut second = policy("second");
    assert_eq!(read_part(&mut *second, 5, 10, 3..4, 9000), 0);
    second.pass(CAPACITY - (4 << 20));
    assert_eq!(read_part(&mut *second, 5, 10, 3..4, 9000), 1);
    second.pass(CAPACITY + (4 << 20));
    assert_eq!(read_part(&mut *second, 5, 10, 3..4, 9000), 0);
}

#[test]
fn a_stream_longer_than_half_the_ssd_is_refused_and_known_again_from_its_start() {
    let mut second = policy("second");
    let frames = CAPACITY / FRAME as u64 * 3 / 4;
    assert_eq!((0..4).map(|_| read_whole(&mut *second, 5, 10, frames)).sum::<u64>(), 0);
}

#[test]
fn tonights_backup_is_known_by_its_first_file() {
    let mut second = policy("second");
    // 48 MiB in 3000 files of 300 directories: it fits the window, so that all of it would be read again.
    let mut backup = || (0..3000).map(|file| read_whole(&mut *second, 100 + file, 50, 4)).sum::<u64>();
    assert_eq!((backup(), backup(), backup()), (0, 0, 0));
}

#[test]
fn who_reads_his_files_beside_a_backup_has_them_on_the_ssd_all_the_same() {
    let mut second = policy("second");
    let (mut hot, mut cold) = (0, 0);
    for file in 0..40_000 {
        cold += read_whole(&mut *second, 1000 + file, 50, 4);
        if file % 100 == 0 {
            hot += read_whole(&mut *second, 10 + file / 100 % 40, 60, 4);
        }
    }
    // 40 files of 4 frames, read 10 times each: all but the first reading would do.
    assert_eq!((hot, cold), (9 * 40 * 4, 0));
}

#[test]
fn reads_of_two_trees_in_turn_as_diff_does_them_are_a_sweep() {
    let mut second = policy("second");
    let mut round = || -> u64 {
        let pair = |file: u64| {
            read_whole(&mut *second, 10_000 + file, 50, 4) + read_whole(&mut *second, 90_000 + file, 51, 4)
        };
        (0..3000).map(pair).sum()
    };
    assert_eq!(round(), 0);
    assert_eq!(round(), 0);
}

#[test]
fn read_ahead_out_of_order_is_still_a_stream() {
    let mut second = policy("second");
    let frames = CAPACITY / FRAME as u64;
    let mut admitted = 0;
    for _ in 0..2 {
        for start in (0..frames).step_by(128) {
            for part in [64..96, 0..32, 96..128, 32..64] {
                admitted += read_part(&mut *second, 5, 10, start + part.start..start + part.end, frames);
            }
        }
    }
    // Of the first stretch, whatever came before the file's first frame.
    assert!(admitted <= 32, "{admitted} of {frames} frames");
}
