//! The SSD's times by hand, and what survives a power cut.

mod units;

use super::*;
use bimetal_base::options::Registered;
use bimetal_base::random::Random;
use bimetal_media::profile;
use bimetal_media::ram::Ram;
use proptest::prelude::*;

const SIZE: u64 = 1 << 20;
/// One page of slc-2k: bus, then program.
const PAGE: u64 = 2112 * 25;
const PROGRAM: u64 = PAGE + 200_000;
const READ: u64 = 15_000 + PAGE;

/// An SSD on one slc-2k part: 10 µs a command, 1 ns a byte.
fn profile_of(change: impl FnOnce(&mut SsdProfile)) -> SsdProfile {
    let mut profile: SsdProfile = profile::load("ssd-tlc").unwrap();
    profile.nand = "slc-2k".into();
    (profile.command_us, profile.bus_mb_per_s, profile.write_cache) = (10.0, 1000.0, 16384);
    profile.settings = String::new();
    change(&mut profile);
    profile
}

fn ssd(change: impl FnOnce(&mut SsdProfile)) -> Ssd {
    Ssd::new(&profile_of(change), Data::Pages(SIZE), 1).unwrap()
}

fn write(ssd: &Ssd, at: u64, offset: u64, len: usize, durable: bool) -> u64 {
    write_placed(ssd, at, (offset, len), durable, 0)
}

fn write_placed(ssd: &Ssd, at: u64, (offset, len): (u64, usize), durable: bool, handle: u8) -> u64 {
    let data = Gather::from_iter([Bytes::from(vec![7; len])]).placed(handle);
    let done = ssd.run(Time(at), Request::Write { offset, data, durable });
    done.result.unwrap();
    done.at.0
}

fn read(ssd: &Ssd, at: u64, offset: u64, len: usize) -> u64 {
    let done = ssd.run(Time(at), Request::Read { offset, len });
    done.result.unwrap();
    done.at.0
}

fn flush(ssd: &Ssd, at: u64) -> u64 {
    ssd.run(Time(at), Request::Flush).at.0
}

#[test]
fn a_write_is_done_in_memory_and_a_flush_in_the_flash() {
    let ssd = ssd(|_| ());
    let written = write(&ssd, 0, 0, 2048, false);
    assert_eq!(written, 10_000 + 2048);
    assert_eq!(flush(&ssd, written), written + PROGRAM);
    assert_eq!(flush(&ssd, 1_000_000), 1_010_000, "nothing left to do");
    assert_eq!(read(&ssd, 2_000_000, 0, 2048), 2_010_000 + READ + 2048);
    assert_eq!(read(&ssd, 3_000_000, 8192, 512), 3_010_000 + 512, "never written: nothing to read");
}

#[test]
fn commands_are_begun_one_after_the_other() {
    let ssd = ssd(|profile| profile.commands_per_s = Some(250_000.0));
    let begun = [0, 4000, 8000];
    assert_eq!(begun.map(|_| read(&ssd, 0, 8192, 512)), begun.map(|at| at + 10_000 + 512));
    assert_eq!(read(&ssd, 100_000, 8192, 512), 110_512, "none is under way");
}

#[test]
fn what_is_placed_apart_is_not_copied_with_the_rest() {
    let copied = |handle| {
        let ssd = Ssd::new(
            &profile_of(|profile| {
                profile.settings = "handles=2:level=none".into();
                profile.write_cache = 0;
            }),
            Data::Nowhere(8 << 20),
            1,
        )
        .unwrap();
        let pages = ssd.info().size_bytes / 2048;
        // The first 256 KiB have the handle.
        let put = |page| {
            let handle = if page < 128 { handle } else { 0 };
            write_placed(&ssd, 0, (page * 2048, 2048), false, handle);
        };
        (0..pages).for_each(put);
        let mut random = Random::new(1, "placed");
        for round in 0..20_000 {
            // Three of four writes go to the first 128 pages, the others anywhere.
            put(if round % 4 == 0 { random.below(pages) } else { random.below(128) });
        }
        ssd.report().nand.copies
    };
    let (mixed, apart) = (copied(0), copied(1));
    assert!(apart * 10 < mixed * 9, "{apart} pages copied, {mixed} without handles");
}

#[test]
fn what_is_placed_apart_lies_in_other_blocks() {
    let ssd = ssd(|profile| profile.settings = "handles=2".into());
    for page in 0..16 {
        write_placed(&ssd, 0, (page * 2048, 2048), false, 1);
        write(&ssd, 0, (page + 100) * 2048, 2048, false);
    }
    flush(&ssd, 0);
    let model = ssd.model.lock();
    let block = |page| model.flash.ftl().find(Lpn(page)).map(|(block, _)| block);
    let apart: Vec<_> = (0..16).map(block).collect();
    assert!(apart.iter().all(Option::is_some));
    assert!((100..116).all(|page| !apart.contains(&block(page))));
}

#[test]
fn sectors_wait_for_their_neighbours() {
    let ssd = ssd(|_| ());
    for sector in 0..3 {
        write(&ssd, 0, sector * 512, 512, false);
    }
    assert_eq!(ssd.report().nand.programs, 0);
    let hit = read(&ssd, 100_000, 512, 1024);
    assert_eq!(hit, 110_000 + 1024, "from memory");
    write(&ssd, 200_000, 1536, 512, false);
    assert_eq!((ssd.report().nand.programs, ssd.stats().completed_pages), (1, 0));
    // A sector that is flushed alone: its page is read first, then programmed.
    let at = write(&ssd, 1_000_000, 512, 512, false);
    assert_eq!(flush(&ssd, at), at + 10_000 + READ + PROGRAM);
    assert_eq!(ssd.stats(), SsdStats { page_hits: 1, completed_pages: 1, dirty_flushes: 1 });
}

#[test]
fn a_durable_write_waits_for_its_own_pages_only() {
    let ssd = ssd(|_| ());
    write(&ssd, 0, 0, 512, false);
    let done = write(&ssd, 0, 4096, 2048, true);
    assert_eq!(done, 10_000 + 512 + 2048 + PROGRAM, "after the first write's turn on the bus");
    assert_eq!(ssd.report().nand.programs, 1);
}

#[test]
fn a_protected_cache_and_one_that_lies_flush_at_once() {
    for change in [|p: &mut SsdProfile| p.protected = true, |p: &mut SsdProfile| p.honour_flush = false] {
        let ssd = ssd(change);
        assert_eq!(write(&ssd, 0, 0, 2048, true), 12_048);
        assert_eq!(flush(&ssd, 12_048), 22_048);
    }
}

#[test]
fn what_no_flush_waits_for_is_counted_while_it_waits_and_written_back_when_asked() {
    let ssd = ssd(|profile| profile.protected = true);
    for page in 0..40 {
        write(&ssd, 0, page % 6 * 2048, if page % 3 == 0 { 512 } else { 2048 }, false);
    }
    assert_eq!(flush(&ssd, 0), 10_000, "a flush waits for nothing");
    let balance = |report: &Report| {
        let HostBytes { written, padding, coalesced, waiting, .. } = report.host_bytes;
        (waiting, written + padding == report.nand.programs * 2048 + coalesced + waiting)
    };
    let (waiting, holds) = balance(&ssd.report());
    assert!(waiting > 0 && holds, "{:?}", ssd.report());
    ssd.write_back(Time(1_000_000)).unwrap();
    assert_eq!(balance(&ssd.report()), (0, true), "{:?}", ssd.report());
    assert_eq!(ssd.stats().dirty_flushes, 0);
}

#[test]
fn a_full_cache_makes_a_write_wait_for_the_first_program() {
    let ssd = ssd(|profile| profile.write_cache = 4096);
    write(&ssd, 0, 0, 4096, false);
    assert_eq!(write(&ssd, 0, 4096, 2048, false), 10_000 + 4096 + PROGRAM);
    let uncached = self::ssd(|profile| profile.write_cache = 0);
    assert_eq!(write(&uncached, 0, 0, 2048, false), 12_048 + PROGRAM);
    assert_eq!(
        write(&uncached, 1_000_000, 2048, 512, false),
        1_010_512 + PROGRAM,
        "nothing to complete it from"
    );
}

/// Writes of `len` bytes a second, one after the other, to pages in turn, with memory full.
fn writes_a_second(len: usize) -> f64 {
    let profile = profile_of(|profile| {
        (profile.nand, profile.write_cache) = ("slc-4k-x8".into(), 256 << 10);
    });
    let ssd = Ssd::new(&profile, Data::Nowhere(256 << 20), 1).unwrap();
    let pages = ssd.info().size_bytes / 4096;
    let (mut at, mut begun) = (0, 0);
    for number in 0..4000 {
        if number == 1000 {
            begun = at;
        }
        at = write(&ssd, at, number * 31 % pages * 4096, len, false);
    }
    3000.0 / ((at - begun) as f64 / 1e9)
}

#[test]
fn a_full_cache_is_written_by_all_units_at_once() {
    let (parts, whole) = (writes_a_second(512), writes_a_second(4096));
    // A part of a page is read first: 25 us and the bus beside 200 us.
    assert!(parts > whole * 0.6, "{parts:.0} a second in parts, {whole:.0} in whole pages");
    let programs_a_second = 8.0 / (200e-6 + 4224.0 * 25e-9);
    assert!((0.95..1.01).contains(&(whole / programs_a_second)), "{whole:.0} of {programs_a_second:.0}");
}

/// An SSD on one die of four planes that work together, 64 pages of memory.
fn four_planes(superblock: &str) -> Ssd {
    let mut part: NandProfile = profile::load("slc-2k").unwrap();
    (part.planes, part.planes_together, part.copy_back) = (4, true, false);
    part.ordering = Ordering::Background;
    let profile = profile_of(|profile| {
        profile.settings = format!("superblock={superblock}");
        profile.write_cache = 64 * 2048;
    });
    Ssd::of_part(&profile, part.ideal(), Data::Nowhere(16 << 20), 1).unwrap()
}

#[test]
fn whole_stripes_are_programmed_by_one_command_each() {
    let ssd = four_planes("die");
    for page in 0..3 {
        write(&ssd, 0, page * 2048, 2048, false);
    }
    assert_eq!(ssd.report().nand.programs, 0, "three pages wait for the fourth");
    let arrived = write(&ssd, 100_000, 3 * 2048, 2048, false);
    // Four pages over the bus, and all planes program at once.
    assert_eq!(flush(&ssd, arrived), arrived + 4 * PAGE + 200_000);
    let (flushed, before) = (arrived + 4 * PAGE + 200_000, ssd.report());
    let last = write(&ssd, flushed, 1 << 20, 64 * 2048, false);
    let done = flush(&ssd, last);
    let report = ssd.report();
    let commands = report.schedule.since(&before.schedule).multi_plane;
    assert_eq!((report.nand.programs, commands), (68, 16));
    assert_eq!(done, last + 16 * (4 * PAGE + 200_000));
}

#[test]
fn stripes_of_copies_are_read_and_then_programmed_as_whole() {
    // A full device, written at random: nearly all commands take all planes along.
    let share = |superblock: &str| {
        let ssd = four_planes(superblock);
        let pages = (16 << 20) / 2048;
        let mut random = Random::new(1, "pages");
        let (filled, _) = keep_busy(&ssd, (0, 16), pages, write_of_page);
        let before = ssd.report();
        let (done, _) = keep_busy(&ssd, (filled, 16), 2 * pages, |_| write_of_page(random.below(pages)));
        let report = ssd.report();
        let programs = report.nand.since(&before.nand).programs;
        assert!(report.nand.copies > pages, "{report:?}");
        (programs, done - filled)
    };
    let ((striped, striped_ns), (apart, apart_ns)) = (share("die"), share("none"));
    let a_page = |(programs, ns): (u64, u64)| ns as f64 / programs as f64;
    // Four pages over the bus and a program are 102.8 us a page; a copy is read before, by planes that were not asked for
    // equally many.
    let (striped, apart) = (a_page((striped, striped_ns)), a_page((apart, apart_ns)));
    assert!(striped < 200_000.0 && striped < apart, "{striped:.0} ns a page in stripes, {apart:.0} apart");
}

/// A write of one page of 2 KiB.
fn write_of_page(page: u64) -> Request {
    Request::Write { offset: page * 2048, data: Gather::absent(2048), durable: false }
}

/// An SSD on one plane of a part with three bits a cell, programmed in one shot, and 30 pages of memory.
fn three_bits(settings: &str) -> Ssd {
    let mut part: NandProfile = profile::load("slc-2k").unwrap();
    (part.cell_bits, part.one_shot, part.pages, part.copy_back) = (3, true, 96, false);
    (part.slc_read_us, part.slc_program_us) = (Some(5.0), Some(50.0));
    part.ordering = Ordering::Background;
    let profile = profile_of(|profile| {
        profile.settings = settings.into();
        profile.write_cache = 30 * 2048;
    });
    Ssd::of_part(&profile, part.ideal(), Data::Nowhere(4 << 20), 1).unwrap()
}

#[test]
fn a_word_line_is_programmed_in_one_shot() {
    let ssd = three_bits("");
    let last = write(&ssd, 0, 0, 6 * 2048, false);
    assert_eq!(flush(&ssd, last), last + 2 * (3 * PAGE + 200_000));
    // A page alone has its word line completed.
    let done = write(&ssd, 10_000_000, 0, 2048, true);
    assert_eq!(done, 10_012_048 + 3 * PAGE + 200_000);
    let Report { work, nand, .. } = ssd.report();
    assert_eq!((work.host.programs, work.padding.programs, nand.programs), (7, 2, 9));
    assert_eq!(read(&ssd, 20_000_000, 0, 2048), 20_010_000 + READ + 2048);
}

#[test]
fn a_long_write_is_fast_until_the_cache_is_full_and_again_when_it_was_folded() {
    // 512 KiB: eight blocks of 32 pages.
    let ssd = three_bits("slc=static:slc-size=512KiB");
    let pages = |from: u64, at: u64| {
        let mut at = at;
        let mut took = Vec::new();
        for page in from..from + 512 {
            let begun = at;
            at = write(&ssd, at, page * 2048, 2048, false);
            took.push(at - begun);
        }
        (at, took)
    };
    let mean = |took: &[u64]| took.iter().sum::<u64>() / took.len() as u64;
    let (at, took) = pages(0, 0);
    let at = flush(&ssd, at);
    // 256 pages and what memory holds are taken at the cache's speed, 102.8 us a page, the others at a third of a word line's,
    // 119.5 us: the bus is most of both here.
    let (fast, slow) = (mean(&took[60..200]), mean(&took[320..500]));
    let (slc, tlc) = (PAGE + 50_000, (3 * PAGE + 200_000) / 3);
    assert!(fast.abs_diff(slc) * 50 < slc, "{fast} ns a page, {slc} expected");
    assert!(slow.abs_diff(tlc) * 50 < tlc, "{slow} ns a page, {tlc} expected");
    let work = ssd.report().work;
    assert_eq!((work.host.programs, work.folding.programs), (512, 0));
    // An instant without work is too short, a second is enough; the next write meets an empty cache.
    ssd.next_done(Time(at + 9_000_000));
    assert_eq!(ssd.report().work.folding.copies, 0);
    ssd.next_done(Time(at + 1_000_000_000));
    let Report { work, ftl, .. } = ssd.report();
    assert_eq!((work.folding.copies, work.folding.erases), (256, 8));
    assert_eq!((ftl.host_writes, work.cleaning.copies), (512, 0));
    let (_, again) = pages(1024, at + 1_000_000_000);
    assert!(mean(&again[60..200]).abs_diff(slc) * 50 < slc, "{} ns a page", mean(&again[60..200]));
}

#[test]
fn what_is_written_again_while_it_waits_is_programmed_once() {
    let ssd = ssd(|_| ());
    for _ in 0..100 {
        for page in 0..4 {
            write(&ssd, 0, page * 2048, 2048, false);
        }
    }
    let done = flush(&ssd, 20_000);
    let Report { work, host_bytes, .. } = ssd.report();
    // The first page was under its program at once; the others waited.
    assert_eq!((work.host.programs, host_bytes.coalesced), (5, 395 * 2048));
    assert!(done < 20_000 + 10_000 + 5 * PROGRAM, "{done}");
}

#[test]
fn a_page_under_its_program_is_completed_from_memory() {
    let ssd = ssd(|_| ());
    let first = write(&ssd, 0, 0, 2048, false);
    let second = write(&ssd, first, 512, 512, true);
    assert_eq!(ssd.report().nand.reads, 0);
    assert_eq!(second, first + 2 * PROGRAM);
    assert_eq!((&ssd as &dyn BlockDevice).read(0, 2048).unwrap(), vec![7; 2048]);
}

#[test]
fn discarded_pages_read_as_zeros_and_cost_no_copies() {
    let ssd = ssd(|_| ());
    let device: &dyn BlockDevice = &ssd;
    device.write(0, vec![7; 8192]).unwrap();
    device.run(Time(0), Request::Discard { offset: 1024, len: 6144 }).result.unwrap();
    let read = device.read(0, 8192).unwrap();
    assert!(read[..2048].iter().all(|&byte| byte == 7), "half a page cannot be given up");
    assert!(read[2048..6144].iter().all(|&byte| byte == 0));
    assert!(read[6144..].iter().all(|&byte| byte == 7));
    assert_eq!(ssd.report().ftl.host_trims, 2);
}

#[test]
fn data_beside_the_model_is_kept_and_timed_alike() {
    let storage = Arc::new(Ram::new("ram", SIZE));
    let beside = Ssd::new(&profile_of(|_| ()), Data::Storage(storage.clone()), 1).unwrap();
    let inside = ssd(|_| ());
    let nowhere = Ssd::new(&profile_of(|_| ()), Data::Nowhere(SIZE), 1).unwrap();
    let mut random = Random::new(1, "requests");
    for at in 0..2000u64 {
        let (offset, len) = (random.below(SIZE / 512 - 16) * 512, (1 + random.below(16)) as usize * 512);
        let data = Gather::from_iter([Bytes::from(vec![at as u8; len])]);
        let request = match random.below(4) {
            0 => Request::Read { offset, len },
            1 => Request::Flush,
            2 => Request::Write { offset, data, durable: true },
            _ => Request::Write { offset, data, durable: false },
        };
        let [a, b, c] = [&beside, &inside, &nowhere].map(|ssd| ssd.run(Time(at * 100_000), request.clone()));
        assert_eq!((a.at, a.result.unwrap()), (b.at, b.result.unwrap()));
        assert_eq!((b.at, c.result.is_ok()), (c.at, true));
    }
    assert_eq!(beside.report().nand, inside.report().nand);
    flush(&inside, 1 << 40);
    let Report { work, host_bytes, page_bytes, .. } = inside.report();
    let reached = host_bytes.written - host_bytes.coalesced + host_bytes.padding;
    assert_eq!(work.host.programs * page_bytes, reached, "{host_bytes:?}");
    assert!(host_bytes.coalesced > 0 && host_bytes.padding > 0);
    let whole = |ssd: &Ssd| (ssd as &dyn BlockDevice).read(0, SIZE as usize).unwrap();
    assert_eq!(whole(&beside), whole(&inside));
    assert_eq!(storage.image(), whole(&inside));
}

/// Has `count` requests made, so many of them under way; when the last is done, and the greatest latency of a read and of
/// a write.
fn keep_busy(
    ssd: &Ssd,
    (start, depth): (u64, usize),
    count: u64,
    mut next: impl FnMut(u64) -> Request,
) -> (u64, [u64; 2]) {
    let (mut known, mut pending) = (std::collections::BinaryHeap::new(), FxHashMap::default());
    let (mut now, mut end, mut most) = (start, start, [0; 2]);
    let mut note = |is_write: bool, arrived: u64, at: Time| {
        let slot = &mut most[usize::from(is_write)];
        *slot = (*slot).max(at.0 - arrived);
        end = end.max(at.0);
    };
    for number in 0..count + depth as u64 {
        while known.len() + pending.len() >= depth || number >= count && !pending.is_empty() {
            let first = known.peek().map_or(Time(u64::MAX), |std::cmp::Reverse(at)| *at);
            match ssd.next_done(first) {
                Some(ticket) => {
                    let (is_write, arrived) = pending.remove(&ticket).expect("each is named once");
                    let done = ssd.wait(Ticket::Pending(ticket));
                    done.result.unwrap();
                    assert!(done.at.0 >= now, "in the order of time");
                    now = done.at.0;
                    note(is_write, arrived, done.at);
                }
                None => now = now.max(known.pop().map_or(now, |std::cmp::Reverse(at)| at.0)),
            }
        }
        if number >= count {
            break;
        }
        let request = next(number);
        let is_write = matches!(request, Request::Write { .. });
        match ssd.submit(Time(now), request) {
            Ticket::Done(done) => {
                done.result.unwrap();
                note(is_write, now, done.at);
                known.push(std::cmp::Reverse(done.at));
            }
            Ticket::Pending(ticket) => drop(pending.insert(ticket, (is_write, now))),
        }
    }
    (end, most)
}

/// The greatest latencies of reads and writes, ms, of a full SSD of eight dies that is read and written at random.
fn worst_ms(change: impl FnOnce(&mut NandProfile)) -> [f64; 2] {
    let mut part: NandProfile = profile::load("slc-4k-x8").unwrap();
    (part.ordering, part.program_suspend_us, part.erase_suspend_us) =
        (Ordering::Background, Some(20.0), Some(20.0));
    change(&mut part);
    let profile = profile_of(|profile| profile.write_cache = 256 << 10);
    let ssd = Ssd::of_part(&profile, part, Data::Nowhere(128 << 20), 1).unwrap();
    let pages = ssd.info().size_bytes / 4096;
    let mut random = Random::new(1, "mixed");
    let write = |page| Request::Write { offset: page * 4096, data: Gather::absent(4096), durable: false };
    let (filled, _) = keep_busy(&ssd, (0, 16), pages, write);
    let (aged, _) = keep_busy(&ssd, (filled, 16), 2 * pages, |_| write(random.below(pages)));
    let mixed = |_| match random.chance(0.7) {
        true => Request::Read { offset: random.below(pages) * 4096, len: 4096 },
        false => write(random.below(pages)),
    };
    keep_busy(&ssd, (aged, 16), pages, mixed).1.map(|ns| ns as f64 / 1e6)
}

#[test]
fn reads_wait_for_no_cleaning_and_writes_for_a_part_of_it() {
    let [read, written] = worst_ms(|_| ());
    // A read is 0.13 ms with its transfer, and 16 are under way; a copy is 0.23 ms.
    assert!(read < 2.5, "{read} ms");
    let [alone, _] = worst_ms(|part| (part.program_suspend_us, part.erase_suspend_us) = (None, None));
    assert!(alone > read, "{alone} ms without suspending, {read} ms with it");
    let [in_order, _] = worst_ms(|part| part.ordering = Ordering::InOrder);
    assert!(in_order > 10.0 * read, "{in_order} ms in order");
    assert!(written < 15.0, "{written} ms");
}

#[test]
fn writes_wait_for_room_in_the_order_they_came() {
    let ssd = ssd(|profile| profile.write_cache = 4096);
    let submit = |page: u64| {
        let data = Gather::from_iter([Bytes::from(vec![7; 2048])]);
        ssd.submit(Time(0), Request::Write { offset: page * 2048, data, durable: false })
    };
    let tickets: Vec<Ticket> = (0..8).map(submit).collect();
    let waiting: Vec<u64> = tickets
        .iter()
        .filter_map(|ticket| match ticket {
            Ticket::Pending(number) => Some(*number),
            Ticket::Done(_) => None,
        })
        .collect();
    assert_eq!(waiting.len(), 6, "two pages have room");
    let done: Vec<u64> = std::iter::from_fn(|| ssd.next_done(Time(u64::MAX))).collect();
    assert_eq!(done, waiting);
    let ends = done.iter().map(|number| ssd.wait(Ticket::Pending(*number)).at.0);
    assert!(ends.collect::<Vec<_>>().windows(2).all(|pair| pair[1] == pair[0] + PROGRAM));
}

#[test]
fn when_the_flash_is_worn_out_those_who_wait_for_room_are_told() {
    let part = NandProfile { endurance: 2, ..profile::load::<NandProfile>("slc-2k").unwrap().ideal() };
    let ssd = Ssd::of_part(&profile_of(|_| ()), part, Data::Pages(SIZE), 1).unwrap();
    let mut random = Random::new(1, "wear");
    let mut refused = 0;
    for round in 0..20_000u64 {
        let submit = |offset| {
            let data = Gather::from_iter([Bytes::from(vec![round as u8; 512])]);
            ssd.submit(Time(round * 1000), Request::Write { offset, data, durable: false })
        };
        let tickets: Vec<Ticket> = (0..8).map(|_| submit(random.below(SIZE / 512) * 512)).collect();
        for ticket in tickets {
            refused += u32::from(ssd.wait(ticket).result.is_err());
        }
        if refused > 100 {
            break;
        }
    }
    assert!(refused > 100);
    assert!(ssd.run(Time(1 << 50), Request::Flush).result.is_err(), "what is in memory stays there");
    assert!(ssd.run(Time(1 << 50), Request::Read { offset: 0, len: 512 }).result.is_ok());
}

#[test]
fn an_ssd_needs_time() {
    let part = NandProfile { ordering: Ordering::Off, ..profile::load("slc-2k").unwrap() };
    let why = Ssd::of_part(&profile_of(|_| ()), part, Data::Pages(SIZE), 1).err().unwrap().to_string();
    assert!(why.contains("choose an ordering other than off"), "{why}");
}

#[test]
fn every_built_in_profile_makes_an_ssd() {
    for listed in profile::PROFILES.into_iter().filter(|listed| listed.kind() == "ssd") {
        let profile: SsdProfile = profile::load(listed.name()).unwrap();
        for size in [64 << 20, 4 << 30] {
            let ssd = Ssd::new(&profile, Data::Nowhere(size), 1).unwrap();
            write(&ssd, 0, 0, 65536, true);
            let flash = ssd.model.lock().flash.ftl().nand().geometry().bytes();
            assert!(flash < size * 2 + (64 << 20), "{}: {flash} bytes of flash for {size}", listed.name());
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, bool),
    Flush,
    Cut(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => (0u64..2000, 1u64..12, any::<bool>()).prop_map(|(at, len, durable)| {
            Op::Write(at, len, durable && at % 4 == 0)
        }),
        3 => Just(Op::Flush),
        1 => (1u64..30).prop_map(Op::Cut),
    ];
    proptest::collection::vec(op, 1..300)
}

proptest! {
    #![proptest_config(crate::tests::cases(96))]

    /// After a cut each sector shows its last flushed version or one written since.
    #[test]
    fn what_was_flushed_survives_any_power_cut(ops in ops(), scheme in 0..crate::SCHEMES.len()) {
        survives(ssd(|profile| profile.ftl = crate::SCHEMES[scheme].name.into()), &ops)?;
    }
}

/// Does what is asked for, and reads all after each cut.
fn survives(mut ssd: Ssd, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut versions = vec![vec![0u32]; (SIZE / 512) as usize];
    for (number, op) in ops.iter().enumerate() {
        let value = number as u32 + 1;
        match *op {
            Op::Cut(after) => ssd.cut_power_in(after),
            Op::Flush => {
                if ssd.run(Time::ZERO, Request::Flush).result.is_ok() {
                    versions.iter_mut().for_each(|list| drop(list.drain(..list.len() - 1)));
                }
            }
            Op::Write(at, len, durable) => {
                let bytes: Vec<u8> = value.to_le_bytes().repeat(len as usize * 128);
                let data = Gather::from_iter([Bytes::from(bytes)]);
                let done = ssd.run(Time::ZERO, Request::Write { offset: at * 512, data, durable });
                for list in &mut versions[at as usize..(at + len) as usize] {
                    if durable && done.result.is_ok() {
                        list.clear();
                    }
                    list.push(value);
                }
            }
        }
        if ssd.run(Time::ZERO, Request::Read { offset: 0, len: 512 }).result.is_err() {
            ssd = ssd.restart().unwrap();
            let whole = (&ssd as &dyn BlockDevice).read(0, SIZE as usize).unwrap();
            for (sector, (bytes, may)) in whole.chunks(512).zip(&mut versions).enumerate() {
                let found = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                prop_assert!(may.contains(&found), "sector {} shows {} of {:?}", sector, found, may);
                prop_assert!(bytes.chunks(4).all(|word| word == &bytes[..4]));
                *may = vec![found];
            }
        }
    }
    Ok(())
}
