//! The scheduler's times by hand-computed cases, and what holds of any operations.

use super::super::{Cause, Nand, Payload, Tag};
use super::*;
use crate::profile;
use proptest::prelude::*;

const PAGE: u64 = 2112 * 25;
const READ: u64 = 15_000 + PAGE;
const PROGRAM: u64 = PAGE + 200_000;
const ERASE: u64 = 2_000_000;
const SUSPEND: u64 = 20_000;

/// slc-2k of eight blocks of 64 pages in a plane; a program and an erase can be suspended in 20 µs.
fn part(change: impl FnOnce(&mut NandProfile)) -> NandProfile {
    let part: NandProfile = profile::load("slc-2k").unwrap();
    let mut part = NandProfile {
        blocks: 8,
        ordering: Ordering::Background,
        program_suspend_us: Some(20.0),
        erase_suspend_us: Some(20.0),
        ..part.ideal()
    };
    change(&mut part);
    part
}

fn schedule(change: impl FnOnce(&mut NandProfile)) -> Schedule {
    let part = part(change);
    Schedule::new(&part, part.geometry())
}

fn op(kind: OpKind, cause: Cause, block: u32, page: u32) -> Op {
    Op { kind, cause, after: 0, block, page, from: (0, 0), slc: false, from_slc: false, pages: 1 }
}

fn read(block: u32, page: u32) -> Op {
    op(OpKind::Read, Cause::Host, block, page)
}

fn program(block: u32, page: u32) -> Op {
    op(OpKind::Program, Cause::Host, block, page)
}

fn erase(block: u32) -> Op {
    op(OpKind::Erase, Cause::Cleaning, block, 0)
}

fn copy(from: (u32, u32), block: u32, page: u32) -> Op {
    Op { from, ..op(OpKind::Copy, Cause::Cleaning, block, page) }
}

/// Hands operations in at their instants, in that order, and lets time go on: when each was done.
fn run(schedule: &mut Schedule, asked: &[(u64, Op)]) -> Vec<u64> {
    let mut ends = vec![0; asked.len()];
    let mut tokens = FxHashMap::default();
    let mut take = |schedule: &mut Schedule, tokens: &FxHashMap<u64, usize>| {
        while let Some((token, at)) = schedule.finished() {
            ends[tokens[&token]] = at.0;
        }
    };
    for (index, (at, op)) in asked.iter().enumerate() {
        while schedule.next_event().is_some_and(|next| next.0 <= *at) {
            schedule.step();
        }
        let token = schedule.push(Time(*at), &mut vec![*op], 1).unwrap();
        tokens.insert(token, index);
    }
    while schedule.step() {}
    take(schedule, &tokens);
    ends
}

#[test]
fn a_read_suspends_a_program_and_an_erase() {
    let mut schedule = schedule(|_| ());
    let ends = run(&mut schedule, &[(0, program(0, 0)), (100_000, read(1, 0))]);
    let suspended = 100_000 + SUSPEND;
    assert_eq!(ends, [suspended + READ + PROGRAM - 100_000, suspended + READ]);
    assert_eq!(schedule.stats().suspends, 1);
    let mut schedule = self::schedule(|_| ());
    let ends = run(&mut schedule, &[(0, erase(0)), (500_000, read(1, 0)), (500_000, read(1, 1))]);
    let resumed = 500_000 + SUSPEND + 2 * READ;
    assert_eq!(ends, [resumed + ERASE - 500_000, resumed - READ, resumed]);
    // Of a part that cannot, both wait.
    let mut schedule = self::schedule(|part| (part.program_suspend_us, part.erase_suspend_us) = (None, None));
    let ends = run(&mut schedule, &[(0, erase(0)), (500_000, read(1, 0))]);
    assert_eq!(ends, [ERASE, ERASE + READ]);
}

#[test]
fn a_read_that_comes_while_a_program_is_transferred_waits_for_that() {
    let ends = run(&mut schedule(|_| ()), &[(0, program(0, 0)), (1000, read(1, 0))]);
    assert_eq!(ends, [PAGE + SUSPEND + READ + 200_000, PAGE + SUSPEND + READ]);
    // One that is about to end is not suspended.
    let ends = run(&mut schedule(|_| ()), &[(0, program(0, 0)), (PROGRAM - 10_000, read(1, 0))]);
    assert_eq!(ends, [PROGRAM, PROGRAM + READ]);
}

#[test]
fn reads_do_not_keep_an_erase_from_ending() {
    let mut schedule = schedule(|_| ());
    let reads: Vec<_> = (0..1000).map(|at| (1000 + at * READ, read(1, 0))).collect();
    let asked: Vec<_> = [(0, erase(0))].into_iter().chain(reads).collect();
    let ends = run(&mut schedule, &asked);
    // Reads without a gap suspend it once; after some of them it ends.
    assert_eq!(schedule.stats().suspends, 1);
    assert_eq!(ends[0], 1000 + SUSPEND + u64::from(READS_MAX) * READ + ERASE - 1000);
    let mut schedule = self::schedule(|_| ());
    let reads: Vec<_> = (0..1000).map(|at| (1000 + at * 2 * READ, read(1, 0))).collect();
    let asked: Vec<_> = [(0, erase(0))].into_iter().chain(reads).collect();
    let ends = run(&mut schedule, &asked);
    assert_eq!(schedule.stats().suspends, u64::from(SUSPENDS_MAX));
    assert!(ends[0] < ERASE + u64::from(SUSPENDS_MAX + 1) * (2 * READ), "{}", ends[0]);
}

#[test]
fn cleaning_is_paid_in_parts_between_programs_and_in_idle_time() {
    // Two of the debt for each program: 128 copies within the 64 programs of a block.
    let mut schedule = schedule(|_| ());
    let mut ops: Vec<Op> =
        (0..128).map(|page| copy((1 + page / 64, page % 64), 3 + page / 64, page % 64)).collect();
    ops.extend([erase(1), erase(2)]);
    schedule.push(Time(0), &mut ops, 0);
    let ends = run(&mut schedule, &(0..64).map(|page| (0, program(0, page))).collect::<Vec<_>>());
    let one = 15_000 + 200_000;
    let longest = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest <= PROGRAM + 3 * one, "{longest}");
    assert!(ends[63] > 64 * PROGRAM + 120 * one, "most of it is paid by the end: {}", ends[63]);
    // With nothing else to do it is paid at once, one operation after the other, and a program waits for one of them.
    let mut schedule = self::schedule(|_| ());
    schedule.push(Time(0), &mut (0..64).map(|page| copy((1, page), 2, page)).collect(), 0);
    let ends = run(&mut schedule, &[(10 * one + 1, program(0, 0))]);
    assert_eq!(ends, [11 * one + PROGRAM]);
}

#[test]
fn a_program_waits_for_the_erase_of_its_block_and_an_erase_for_the_copies_out_of_it() {
    let mut schedule = schedule(|_| ());
    let mut ops = vec![copy((1, 0), 2, 0), erase(1)];
    schedule.push(Time(0), &mut ops, 0);
    let ends = run(&mut schedule, &[(0, program(1, 0)), (0, program(3, 0))]);
    let paid = 15_000 + 200_000 + ERASE;
    assert_eq!(ends[0], paid + PROGRAM);
    assert_eq!(ends[1], paid + 2 * PROGRAM, "programs for the host stay in order");
    // What is to be cleaned was written before it was decided on.
    let mut schedule = self::schedule(|_| ());
    schedule.push(Time(0), &mut vec![program(1, 0), program(1, 1), copy((1, 1), 2, 0)], 0);
    assert_eq!(run(&mut schedule, &[(0, erase(1))]), [2 * PROGRAM + 215_000 + ERASE]);
}

#[test]
fn in_order_a_program_waits_for_all_that_was_decided_on_before_it() {
    let mut schedule = schedule(|part| part.ordering = Ordering::InOrder);
    schedule.push(Time(0), &mut vec![copy((1, 0), 2, 0), erase(1)], 0);
    let paid = 15_000 + 200_000 + ERASE;
    assert_eq!(
        run(&mut schedule, &[(0, program(3, 0)), (0, read(4, 0))]),
        [paid + PROGRAM, paid + PROGRAM + READ]
    );
}

#[test]
fn planes_that_work_together_share_commands() {
    let together = |part: &mut NandProfile| (part.planes, part.planes_together) = (4, true);
    let mut schedule = schedule(together);
    let ends = run(&mut schedule, &[0, 8, 16, 24].map(|block| (0, program(block, 0))));
    // The first was begun before the others came.
    let second = PROGRAM + 3 * PAGE + 200_000;
    assert_eq!(ends, [PROGRAM, second, second, second]);
    assert_eq!(schedule.stats().multi_plane, 1);
    let alone =
        run(&mut self::schedule(|part| part.planes = 4), &[0, 8, 16, 24].map(|block| (0, program(block, 0))));
    assert_eq!(alone, [PROGRAM, PROGRAM + PAGE, PROGRAM + 2 * PAGE, PROGRAM + 3 * PAGE]);
    // A page of another type takes as long by itself.
    let mut schedule = self::schedule(|part| {
        together(part);
        part.program_us_by_type = vec![200.0, 400.0];
    });
    schedule.push(Time(0), &mut vec![program(0, 0), program(8, 1), program(16, 0)], 0);
    while schedule.step() {}
    assert_eq!(schedule.arrays[0].free, 2 * PAGE + 200_000 + PAGE + 400_000);
}

#[test]
fn a_command_takes_along_what_waits_behind_another_kind() {
    let mut schedule = schedule(|part| (part.planes, part.planes_together) = (2, true));
    // The second plane would program first; the copy that waits there goes with the first plane's.
    let mut ops = vec![copy((1, 0), 2, 0), copy((9, 0), 10, 0), program(11, 0)];
    schedule.push(Time(0), &mut ops, 0);
    while schedule.step() {}
    let one = 15_000 + 200_000;
    assert_eq!((schedule.stats().multi_plane, schedule.arrays[0].free), (1, one + PROGRAM));
}

#[test]
fn in_stripes_copies_are_read_first_and_programs_of_other_stripes_do_not_join() {
    let die = |part: &mut NandProfile| (part.planes, part.planes_together) = (2, true);
    // Both pages of the stripe come from the first plane: two reads, one program. The erase of its block waits for them.
    let mut schedule = schedule(die).in_stripes();
    let copies = vec![copy((1, 0), 2, 0), copy((1, 1), 10, 0), erase(1), erase(9)];
    schedule.push(Time(0), &mut copies.clone(), 0);
    while schedule.step() {}
    let stripe = 2 * PAGE + 200_000;
    assert_eq!((schedule.stats().multi_plane, schedule.arrays[0].free), (2, 2 * READ + stripe + ERASE));
    // A host's page of another stripe is programmed by itself.
    let mut schedule = self::schedule(die).in_stripes();
    schedule.push(Time(0), &mut vec![program(0, 0), program(8, 1), program(1, 1)], 0);
    while schedule.step() {}
    assert_eq!((schedule.stats().multi_plane, schedule.arrays[0].free), (0, 3 * PROGRAM));
}

#[test]
fn pages_take_what_their_type_takes() {
    let mut schedule = schedule(|part| {
        part.program_us_by_type = vec![100.0, 200.0, 300.0];
        part.read_us_by_type = vec![10.0, 20.0, 30.0];
    });
    let ends = run(&mut schedule, &[(0, program(0, 3)), (1_000_000, program(0, 5)), (2_000_000, read(0, 4))]);
    assert_eq!(ends, [PAGE + 100_000, 1_000_000 + PAGE + 300_000, 2_000_000 + 20_000 + PAGE]);
}

#[test]
fn one_command_programs_what_waits_of_a_word_line() {
    let tlc = |part: &mut NandProfile| (part.cell_bits, part.one_shot, part.pages) = (3, true, 63);
    let mut schedule = schedule(tlc);
    schedule.push(Time(0), &mut (0..6).map(|page| program(0, page)).collect(), 0);
    while schedule.step() {}
    assert_eq!(schedule.arrays[0].free, 2 * (3 * PAGE + 200_000));
    // Two planes' word lines at once; copies come over the bus, each page read by itself.
    let mut schedule = self::schedule(|part| {
        tlc(part);
        (part.planes, part.planes_together, part.copy_back) = (2, true, false);
    });
    let from = |plane: u32| (0..3).map(move |page| copy((1 + 8 * plane, page), 2 + 8 * plane, page));
    schedule.push(Time(0), &mut from(0).chain(from(1)).collect(), 0);
    while schedule.step() {}
    assert_eq!(
        (schedule.stats().multi_plane, schedule.arrays[0].free),
        (1, 3 * 15_000 + 12 * PAGE + 200_000)
    );
    // What is alone takes as long.
    let ends = run(&mut self::schedule(tlc), &[(0, program(0, 0)), (1_000_000, program(0, 1))]);
    assert_eq!(ends, [PROGRAM, 1_000_000 + PROGRAM]);
}

#[test]
fn blocks_with_one_bit_a_cell_have_times_of_their_own() {
    let mut schedule = schedule(|part| {
        (part.cell_bits, part.one_shot, part.pages) = (3, true, 63);
        (part.slc_read_us, part.slc_program_us) = (Some(5.0), Some(50.0));
    });
    let slc = |op: Op| Op { slc: true, ..op };
    let ends = run(&mut schedule, &[(0, slc(program(0, 0))), (1_000_000, slc(read(0, 0)))]);
    assert_eq!(ends, [PAGE + 50_000, 1_000_000 + 5_000 + PAGE]);
}

#[test]
fn a_copy_between_dies_passes_through_the_controller() {
    let mut schedule = schedule(|part| part.chips = 2);
    let ends = run(&mut schedule, &[(0, copy((0, 0), 8, 0)), (0, erase(0))]);
    assert_eq!(ends, [READ + PROGRAM, READ + ERASE], "the source is free once it is read");
}

#[test]
fn cached_commands_transfer_while_the_array_works() {
    let ends = run(
        &mut schedule(|part| part.cached_commands = true),
        &[(0, program(0, 0)), (0, program(0, 1)), (0, program(0, 2))],
    );
    assert_eq!(ends, [PROGRAM, PROGRAM + 200_000, PROGRAM + 400_000]);
    let ends = run(
        &mut schedule(|part| part.cached_commands = true),
        &[(0, read(0, 0)), (0, read(0, 1)), (0, read(0, 2))],
    );
    assert_eq!(ends, [READ, READ + PAGE, READ + 2 * PAGE]);
}

#[test]
fn dies_scale_until_the_bus_is_full() {
    // A program is 200 µs of array and 52.8 µs of bus: 4.8 dies fill a channel.
    let rate = |chips: u32, channels: u32| {
        let mut schedule = schedule(|part| (part.chips, part.channels) = (chips, channels));
        let dies = chips * channels;
        let asked: Vec<_> = (0..640).map(|page| (0, program(page % dies * 8, page / dies))).collect();
        640.0 * 1e9 / *run(&mut schedule, &asked).iter().max().unwrap() as f64
    };
    let one = rate(1, 1);
    for dies in 2..=4 {
        assert!((rate(dies, 1) / one / f64::from(dies) - 1.0).abs() < 0.01, "{dies} dies");
    }
    assert!((rate(8, 1) / (1e9 / PAGE as f64) - 1.0).abs() < 0.01, "the bus is full");
    assert!((rate(1, 8) / one / 8.0 - 1.0).abs() < 0.01, "channels scale");
}

/// Random decisions that an array allows: programs in order, copies of what there is, erases of what is full.
fn decisions() -> impl Strategy<Value = Vec<(u8, u64)>> {
    proptest::collection::vec((0u8..10, 0u64..400_000), 1..400)
}

proptest! {
    /// Everything decided on is done, in whichever order; nothing takes less than it must, and in order on one unit it
    /// is done when an array asked directly says.
    #[test]
    fn all_that_is_decided_on_is_done(decisions in decisions(), planes in 1u32..3, chips in 1u32..3, together: bool) {
        for ordering in [Ordering::InOrder, Ordering::Background] {
            let part = part(|part| {
                (part.planes, part.chips, part.planes_together, part.ordering) = (planes, chips, together, ordering);
            });
            let blocks = part.geometry().blocks();
            let mut nand = Nand::new(part.clone(), 1, false, Payload::None);
            let mut direct = Nand::new(part.clone(), 1, false, Payload::None);
            nand.record(true);
            let mut schedule = Schedule::new(&part, part.geometry());
            let (mut at, mut tokens, mut last) = (0, 0, 0);
            let mut open = 0;
            for (number, (what, later)) in decisions.iter().enumerate() {
                at += later;
                let block = number as u32 % blocks;
                let tag = Tag { owner: number as u32, sequence: 0 };
                let next = nand.next_page(open);
                for (array, from) in [(&mut nand, Time::ZERO), (&mut direct, Time(at))] {
                    let done = match what {
                        0..4 if next < 64 => array.program(from, open, next, tag, &[]),
                        4..6 if next < 64 && array.next_page(block) > 0 && block != open => {
                            array.set_cause(Cause::Cleaning);
                            let done = array.copy(from, (block, 0), (open, next), tag);
                            array.set_cause(Cause::Host);
                            done
                        }
                        6 if block != open => {
                            array.set_cause(Cause::Cleaning);
                            let done = array.erase(from, block);
                            array.set_cause(Cause::Host);
                            done
                        }
                        _ if array.next_page(block) > 0 => array.read(from, block, 0),
                        _ => continue,
                    };
                    last = last.max(done.unwrap().0);
                }
                if next >= 63 {
                    open = (0..blocks).find(|block| nand.next_page(*block) == 0).unwrap_or(open);
                }
                let mut ops = Vec::new();
                nand.take_ops(&mut ops);
                while schedule.next_event().is_some_and(|next| next.0 <= at) {
                    schedule.step();
                }
                let watched = ops.len() as u64;
                tokens += u64::from(schedule.push(Time(at), &mut ops, watched).is_some());
            }
            while schedule.step() {}
            let ends: Vec<_> = std::iter::from_fn(|| schedule.finished()).collect();
            prop_assert_eq!(ends.len() as u64, tokens);
            prop_assert!(schedule.awaited.is_empty());
            prop_assert!(schedule.queued.iter().all(|queued| *queued == [0, 0]));
            if ordering == Ordering::InOrder && planes == 1 && chips == 1 {
                prop_assert_eq!(ends.iter().map(|(_, at)| at.0).max().unwrap_or(0), last);
            }
        }
    }
}

proptest! {
    /// Copies that are one operation are done when the same copies one by one are, and so is all that comes after them.
    #[test]
    fn copies_in_one_operation_end_when_they_do_one_by_one(
        requests in proptest::collection::vec((0u64..3_000_000, proptest::collection::vec((0u32..6, 0u32..6, 1u32..9), 1..6)), 1..40),
        planes in 1u32..3,
        chips in 1u32..3,
    ) {
        let part = part(|part| (part.planes, part.chips, part.ordering) = (planes, chips, Ordering::InOrder));
        let blocks = part.geometry().blocks();
        let run = |joins: bool| {
            let mut nand = Nand::new(part.clone(), 1, false, Payload::None);
            nand.record(joins);
            let mut schedule = Schedule::new(&part, part.geometry());
            let (mut at, mut operations, mut tokens) = (0, 0, Vec::new());
            for (later, calls) in &requests {
                at += later;
                let mut place = Time::ZERO;
                for (what, block, pages) in calls {
                    let (from, to) = (block % blocks, (block + what) % blocks);
                    nand.set_cause(if *what < 3 { Cause::Host } else { Cause::Cleaning });
                    let next = nand.next_page(to);
                    let left = 64 - next;
                    place = match what {
                        0 if left > 0 => {
                            let tag = Tag { owner: 1, sequence: 0 };
                            nand.program(place, to, next, tag, &[]).unwrap()
                        }
                        1 if nand.next_page(from) > 0 => nand.read(place, from, 0).unwrap(),
                        2.. if from != to && nand.next_page(from) > 0 && left >= *pages => {
                            (next..next + pages).fold(place, |place, page| {
                                let tag = Tag { owner: 1, sequence: 0 };
                                nand.copy(place, (from, 0), (to, page), tag).unwrap()
                            })
                        }
                        _ if left == 0 => nand.erase(place, to).unwrap(),
                        _ => continue,
                    };
                }
                let mut ops = Vec::new();
                nand.take_ops(&mut ops);
                operations += ops.len();
                tokens.extend(schedule.push(Time(at), &mut ops, place.0).map(|token| (token, tokens.len())));
            }
            while schedule.step() {}
            let numbers: FxHashMap<u64, usize> = tokens.into_iter().collect();
            let mut ends: Vec<_> =
                std::iter::from_fn(|| schedule.finished()).map(|(token, at)| (numbers[&token], at)).collect();
            ends.sort_unstable();
            (operations, ends)
        };
        let (joined, singly) = (run(true), run(false));
        prop_assert!(joined.0 <= singly.0);
        prop_assert_eq!(joined.1, singly.1);
    }
}

#[test]
fn copies_of_a_block_are_one_operation_in_order_and_several_where_others_can_come_between() {
    let recorded = |ordering| {
        let mut nand = Nand::new(part(|part| part.ordering = ordering), 1, false, Payload::None);
        nand.record(true);
        let tag = Tag { owner: 1, sequence: 0 };
        let programmed = nand.program(Time::ZERO, 0, 0, tag, &[]).unwrap();
        (0..5).fold(programmed, |place, page| nand.copy(place, (0, 0), (1, page), tag).unwrap());
        let mut ops = Vec::new();
        nand.take_ops(&mut ops);
        ops.iter().map(|op| (op.kind, op.pages)).collect::<Vec<_>>()
    };
    assert_eq!(recorded(Ordering::InOrder), [(OpKind::Program, 1), (OpKind::Copy, 5)]);
    assert_eq!(recorded(Ordering::Background).len(), 6);
}
