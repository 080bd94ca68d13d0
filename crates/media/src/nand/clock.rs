//! When operations are done: at once in time lines of their own, in a list for a scheduler to order, or never.

use super::lanes::Lanes;
use super::{Cause, Geometry, NandProfile, Op, OpKind};
use crate::profile::us;
use bimetal_base::time::Time;
use std::ops::Range;

/// What becomes of the time of operations.
pub(super) enum Clock {
    /// Each unit does one after the other, as they are asked for.
    Lanes(Lanes),
    /// They are put down. What they are asked to begin after, and what they return, are places in the list.
    Recorded(Recorded),
    /// They take none.
    Off,
}

/// Operations without a time.
pub(super) struct Recorded {
    pub list: Vec<Op>,
    /// How often it was taken.
    pub taken: u64,
    /// Copies within a unit, one after the other, are one operation.
    joins_copies: bool,
    /// The blocks of the unit in which the last operation is a copy; none if it is none.
    copies_in: Range<u32>,
}

impl Recorded {
    pub fn new(joins_copies: bool) -> Recorded {
        Recorded { list: Vec::new(), taken: 0, joins_copies, copies_in: 0..0 }
    }

    /// Puts an operation down; its place.
    fn push(&mut self, at: Time, geometry: &Geometry, asked: &Asked) -> Time {
        let Asked { kind, cause, place: (block, page), from, slc, from_slc } = *asked;
        let after = at.0 as u32;
        if self.joins_copies && kind == OpKind::Copy {
            let is_within = self.copies_in.contains(&block) && self.copies_in.contains(&from.0);
            let place = self.list.len() as u32;
            if let Some(last) = self.list.last_mut().filter(|last| is_within && last.cause == cause)
                && (after == place || after == last.after)
            {
                last.pages += 1;
                return Time(u64::from(place));
            }
        }
        self.list.push(Op { kind, cause, after, block, page, from, slc, from_slc, pages: 1 });
        if self.joins_copies {
            self.copies_in = 0..0;
            let unit = geometry.unit_of(block);
            if kind == OpKind::Copy && unit == geometry.unit_of(from.0) {
                let first = unit * geometry.blocks_per_unit;
                self.copies_in = first..first + geometry.blocks_per_unit;
            }
        }
        Time(self.list.len() as u64)
    }
}

/// How long things take, ns.
pub(super) struct Timing {
    /// Array to register, by the type of the page; never empty.
    reads: Vec<u64>,
    /// Register to array, likewise.
    programs: Vec<u64>,
    pub erase: u64,
    pub command: u64,
    pub page_transfer: u64,
    pub spare_transfer: u64,
    copy_back: bool,
    /// Pages that one command programs in a block.
    pub word_line: u32,
    slc_read: u64,
    slc_program: u64,
}

/// A page of a block, and whether that is used with one bit a cell.
#[derive(Clone, Copy)]
pub(super) struct Cells {
    pub page: u32,
    pub slc: bool,
}

impl Timing {
    pub fn of(profile: &NandProfile) -> Timing {
        let transfer = |bytes: u64| (bytes as f64 * profile.bus_ns_per_byte) as u64;
        let by_type = |all: &[f64], mean: f64| match all {
            [] => vec![us(mean)],
            all => all.iter().map(|one| us(*one)).collect(),
        };
        Timing {
            reads: by_type(&profile.read_us_by_type, profile.read_us),
            programs: by_type(&profile.program_us_by_type, profile.program_us),
            erase: us(profile.erase_us),
            command: us(profile.command_us),
            page_transfer: transfer(profile.page + profile.spare),
            spare_transfer: transfer(profile.spare),
            copy_back: profile.copy_back,
            word_line: profile.word_line_pages(),
            slc_read: us(profile.slc_read_us.unwrap_or(0.0)),
            slc_program: us(profile.slc_program_us.unwrap_or(0.0)),
        }
    }

    /// Array to register, of a page of a block.
    pub fn read(&self, Cells { page, slc }: Cells) -> u64 {
        if slc { self.slc_read } else { of_type(&self.reads, page) }
    }

    /// Register to array, of a command that programs a page of a block, or all of its word line.
    pub fn program(&self, Cells { page, slc }: Cells) -> u64 {
        if slc { self.slc_program } else { of_type(&self.programs, page) }
    }

    /// The same of a page that is asked for by itself: the last of a word line has it programmed.
    fn program_one(&self, cells: Cells) -> u64 {
        let is_last = cells.slc || (cells.page + 1).is_multiple_of(self.word_line);
        if is_last { self.program(cells) } else { 0 }
    }

    /// The word line of a page.
    pub fn word_line_of(&self, Cells { page, slc }: Cells) -> u32 {
        if slc { page } else { page / self.word_line }
    }

    /// Whether a copy within a unit needs no bus.
    pub fn copies_back(&self) -> bool {
        self.copy_back
    }

    /// What a copy within a unit takes without the bus; none if the part cannot do it so.
    fn copied_back(&self, from: Cells, to: Cells) -> Option<u64> {
        self.copy_back.then(|| 2 * self.command + self.read(from) + self.program_one(to))
    }

    /// The same of copies of any pages to so many from `to` on.
    pub fn many_copied_back(&self, count: u64, to: u32) -> u64 {
        match (&self.reads[..], &self.programs[..]) {
            ([read], [program]) if self.word_line == 1 => count * (2 * self.command + read + program),
            _ => {
                let cells = |page| Cells { page, slc: false };
                (to..to + count as u32).filter_map(|page| self.copied_back(cells(page), cells(page))).sum()
            }
        }
    }
}

fn of_type(all: &[u64], page: u32) -> u64 {
    match all {
        [one] => *one,
        all => all[page as usize % all.len()],
    }
}

/// An operation that is to be timed: what, what for, where, and where a copy comes from.
pub(super) struct Asked {
    pub kind: OpKind,
    pub cause: Cause,
    pub place: (u32, u32),
    pub from: (u32, u32),
    pub slc: bool,
    pub from_slc: bool,
}

impl Clock {
    /// When an operation is done that is asked for at `at`.
    pub fn time(&mut self, at: Time, geometry: &Geometry, timing: &Timing, asked: &Asked) -> Time {
        match self {
            Clock::Off => at,
            Clock::Recorded(recorded) => recorded.push(at, geometry, asked),
            Clock::Lanes(lanes) => Time(lanes.time(at.0, geometry, timing, asked)),
        }
    }

    /// How often the operations that were put down were taken.
    pub fn times_taken(&self) -> u64 {
        match self {
            Clock::Recorded(recorded) => recorded.taken,
            _ => 0,
        }
    }

    /// When the unit of a block has done all it was asked so far.
    pub fn free_at(&self, unit: u32) -> Time {
        match self {
            Clock::Lanes(lanes) => Time(lanes.unit_free(unit)),
            _ => Time::ZERO,
        }
    }
}

impl Lanes {
    fn time(&mut self, at: u64, geometry: &Geometry, timing: &Timing, asked: &Asked) -> u64 {
        let Asked { kind, place: (block, page), from, slc, from_slc, .. } = *asked;
        let (cells, from_cells) = (Cells { page, slc }, Cells { page: from.1, slc: from_slc });
        let unit = geometry.unit_of(block);
        let done = match kind {
            OpKind::Read => self.read(at, unit, timing, timing.read(cells), timing.page_transfer),
            OpKind::ReadSpare => self.read(at, unit, timing, timing.read(cells), timing.spare_transfer),
            OpKind::Program => {
                let from = at.max(self.unit_free(unit));
                self.write(from, unit, timing) + timing.program_one(cells)
            }
            OpKind::Erase => self.commanded(at, unit, timing) + timing.erase,
            OpKind::Copy => {
                let source = geometry.unit_of(from.0);
                match timing.copied_back(from_cells, cells).filter(|_| source == unit) {
                    Some(takes) => at.max(self.unit_free(unit)) + takes,
                    None => {
                        let read =
                            self.read(at, source, timing, timing.read(from_cells), timing.page_transfer);
                        self.occupy(source, read);
                        let ready = read.max(self.unit_free(unit));
                        self.write(ready, unit, timing) + timing.program_one(cells)
                    }
                }
            }
        };
        self.occupy(unit, done);
        done
    }

    fn read(&mut self, at: u64, unit: u32, timing: &Timing, sense: u64, transfer: u64) -> u64 {
        let sensed = self.commanded(at, unit, timing) + sense;
        self.transfer(unit, sensed, transfer) + transfer
    }

    fn write(&mut self, from: u64, unit: u32, timing: &Timing) -> u64 {
        let transfer = timing.command + timing.page_transfer;
        self.transfer(unit, from, transfer) + transfer
    }

    /// When a unit that is free at `at` or later has got a command over its bus.
    fn commanded(&mut self, at: u64, unit: u32, timing: &Timing) -> u64 {
        let free = at.max(self.unit_free(unit));
        match timing.command {
            0 => free,
            takes => self.transfer(unit, free, takes) + takes,
        }
    }
}
