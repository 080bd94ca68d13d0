//! What a NAND profile states, and the geometry that follows.

use crate::profile::{Described, InvalidField, size};
use bimetal_base::memory::check_room;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use serde::Deserialize;

/// Blocks that a unit of a part made smaller keeps, if there is more than one; of one that stays wide, if its own can be smaller.
const UNIT_BLOCKS: u32 = 64;
/// Fewest pages of a block of a part made smaller.
const PAGES_LEAST: u32 = 64;
/// Most erase blocks of a plane.
const BLOCKS_MAX: u32 = 1 << 24;
/// Memory of a page of a model with the page map over it: owner, sequence number, map entry.
const MODEL_PAGE_BYTES: u64 = 16;
/// Memory of a block.
const MODEL_BLOCK_BYTES: u64 = 48;

/// Most pages a block can have: one past the last is still a `u16`.
pub(super) const PAGES_MAX: u32 = 1 << 15;

/// The figures of a NAND array. Every field must be given in a profile file, but what a part need not be able to do;
/// units end the names.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct NandProfile {
    /// Always `nand`.
    pub kind: String,
    /// The part in words.
    pub model: String,
    /// Buses.
    pub channels: u32,
    /// Chips on a bus.
    pub chips: u32,
    /// Dies in a chip; each works by itself.
    pub dies: u32,
    /// Planes of a die. They work by themselves, unless [`planes_together`](Self::planes_together).
    pub planes: u32,
    /// Erase blocks of a plane.
    pub blocks: u32,
    /// Pages of a block.
    pub pages: u32,
    /// Bytes of a page.
    #[serde(deserialize_with = "size")]
    pub page: u64,
    /// Bytes of a page's spare area.
    #[serde(deserialize_with = "size")]
    pub spare: u64,
    /// In which order the pages of a block may be programmed.
    pub page_order: PageOrder,
    /// Array to register.
    pub read_us: f64,
    /// Register to array.
    pub program_us: f64,
    /// One block.
    pub erase_us: f64,
    /// Transfer between controller and register.
    pub bus_ns_per_byte: f64,
    /// Command and address cycles of one operation, on the bus.
    pub command_us: f64,
    /// A page can be copied within a plane without the bus.
    pub copy_back: bool,
    /// Erases a block lasts.
    pub endurance: u32,
    /// Blocks that are bad when new, in percent.
    pub factory_bad_percent: f64,
    /// Programs and erases that fail and leave the block bad, in a million.
    pub grown_bad_per_million: f64,
    /// Probability that a bit reads wrong in a new block …
    pub bit_errors_new: f64,
    /// … and in one at the end of its endurance; between, it grows with the square of the erases.
    pub bit_errors_worn: f64,
    /// Wrong bits that can be corrected …
    pub ecc_bits: u32,
    /// … in this many bytes.
    #[serde(deserialize_with = "size")]
    pub ecc_bytes: u64,
    /// Bits that a cell holds, from 1 (SLC) to 5: pages that share cells are lost together, so that it has to be said.
    pub cell_bits: u32,
    /// A die does one command at a time: what waits for its other planes and is of the same kind takes part in it
    /// (multi-plane commands). Left out: planes work by themselves.
    #[serde(default)]
    pub planes_together: bool,
    /// A page is transferred while the array works on the one before (cache read, cache program). Left out: it is not.
    #[serde(default)]
    pub cached_commands: bool,
    /// Array to register by the type of the page in its cells (LSB, CSB, MSB …): page `p` of a block is of type `p` mod
    /// their number. Left out: all take `read_us`.
    #[serde(default)]
    pub read_us_by_type: Vec<f64>,
    /// Register to array, likewise. Left out: all take `program_us`.
    #[serde(default)]
    pub program_us_by_type: Vec<f64>,
    /// All pages of a word line, `cell_bits` of them, are programmed by one command that takes `program_us`. Left out: each
    /// page is programmed by itself.
    #[serde(default)]
    pub one_shot: bool,
    /// Array to register, of a block that is used with one bit a cell. Left out: blocks cannot be used so.
    #[serde(default)]
    pub slc_read_us: Option<f64>,
    /// Register to array, of a block that is used with one bit a cell. Left out: blocks cannot be used so.
    #[serde(default)]
    pub slc_program_us: Option<f64>,
    /// What it takes to suspend a program for a read, and to resume it. Left out: the part cannot.
    #[serde(default)]
    pub program_suspend_us: Option<f64>,
    /// What it takes to suspend an erase, and to resume it. Left out: the part cannot.
    #[serde(default)]
    pub erase_suspend_us: Option<f64>,
    /// What each read of a page adds to the probability that a bit of its block reads wrong, until the block is erased. Left out:
    /// reads disturb nothing.
    #[serde(default)]
    pub read_disturb_errors: f64,
    /// What each day since a block was first programmed adds to the probability that a bit of it reads wrong. Left out: nothing
    /// is lost by waiting.
    #[serde(default)]
    pub retention_errors_per_day: f64,
    /// Read retry: a page with more wrong bits than can be corrected is read again with other thresholds, once for each number:
    /// so much of the probability of wrong bits is left then (1: all of it). Left out: it is read twice more as before.
    #[serde(default)]
    pub read_retry: Vec<f64>,
    /// A controller moves what is in a block when reads and time have added so many wrong bits to it on average, in percent of
    /// `ecc_bits`. Left out: it never does.
    #[serde(default)]
    pub refresh_percent: Option<f64>,
    /// In which order a controller has the part do what it decided on.
    #[serde(default)]
    pub ordering: Ordering,
}

/// In which order a controller has units do what it decided on.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// As it was decided: what the host asks for waits for the cleaning decided on before it.
    #[default]
    InOrder,
    /// Reads for the host first; cleaning and wear levelling are a debt, paid while the host writes nothing and, while
    /// it does, in such parts that all is paid by the time the next block is open.
    Background,
    /// Nothing takes time: operations are only counted.
    Off,
}

/// The order in which pages of a block may be programmed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum PageOrder {
    /// Any.
    Any,
    /// From the first to the last; some may be left out.
    Ascending,
}

/// The numbers that addresses are made of.
///
/// Blocks are numbered unit by unit: block `u × blocks_per_unit + i` is the i-th of unit `u`. A unit is
/// what works by itself (a plane), and unit `u` is on channel
/// `u mod channels`. Page `p` of block `b` is physical page `b × pages_per_block + p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Buses.
    pub channels: u32,
    /// What works by itself.
    pub units: u32,
    /// Erase blocks of a unit.
    pub blocks_per_unit: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of a page's spare area.
    pub spare_bytes: u32,
}

impl Geometry {
    /// Erase blocks in all.
    pub fn blocks(&self) -> u32 {
        self.units * self.blocks_per_unit
    }

    /// Pages in all.
    pub fn pages(&self) -> u64 {
        u64::from(self.blocks()) * u64::from(self.pages_per_block)
    }

    /// Bytes in all, spare areas not counted.
    pub fn bytes(&self) -> u64 {
        self.pages() * u64::from(self.page_bytes)
    }

    /// The unit of a block.
    pub fn unit_of(&self, block: u32) -> u32 {
        // Often there is one, and a division takes longer than all else about a page.
        if self.units == 1 { 0 } else { block / self.blocks_per_unit }
    }

    /// The logarithm of the pages of a block, where that is a power of two.
    pub fn shift(&self) -> Option<u32> {
        self.pages_per_block.is_power_of_two().then(|| self.pages_per_block.trailing_zeros())
    }
}

impl NandProfile {
    /// The numbers that addresses are made of.
    pub fn geometry(&self) -> Geometry {
        let units = self.channels * self.chips * self.dies * self.planes;
        Geometry {
            channels: self.channels,
            units,
            blocks_per_unit: self.blocks,
            pages_per_block: self.pages,
            page_bytes: self.page as u32,
            spare_bytes: self.spare as u32,
        }
    }

    /// Pages that one command programs in a block: those of a word line, or one.
    pub fn word_line_pages(&self) -> u32 {
        if self.one_shot { self.cell_bits } else { 1 }
    }

    /// Whether copies within a unit, one after the other, take the same as one operation: in order, each by itself, without
    /// the bus, and each the same time.
    pub(super) fn copies_alone(&self) -> bool {
        self.ordering == Ordering::InOrder
            && self.copy_back
            && !self.planes_together
            && self.word_line_pages() == 1
            && self.read_us_by_type.is_empty()
            && self.program_us_by_type.is_empty()
            && self.slc_pages().is_none()
    }

    /// Pages of a block that is used with one bit a cell; none if the part has no times for that.
    pub fn slc_pages(&self) -> Option<u32> {
        let has_times = self.slc_read_us.is_some() && self.slc_program_us.is_some();
        has_times.then(|| self.pages / self.cell_bits).filter(|pages| *pages > 0)
    }

    /// A part of the same kind with `bytes` or somewhat more.
    ///
    /// A smaller part has fewer planes, chips and channels, until each unit has 64 blocks; then it has fewer
    /// blocks. Every unit keeps `least` blocks.
    pub fn resized(self, bytes: u64, least: u32) -> NandProfile {
        self.narrowed(bytes, UNIT_BLOCKS, least)
    }

    /// A part of the same kind with `bytes` or somewhat more that keeps its planes, chips and channels as far as it can.
    ///
    /// A smaller one has smaller blocks, of [`PAGES_LEAST`] pages at the least, until each unit has 64 of them; then its
    /// units have fewer blocks, and only when those would be fewer than `unit_blocks` there are fewer units.
    pub fn resized_wide(mut self, bytes: u64, unit_blocks: u32) -> NandProfile {
        let has_blocks = |part: &NandProfile| {
            let of_unit = u64::from(part.pages) * part.page * u64::from(part.geometry().units);
            bytes / of_unit >= u64::from(UNIT_BLOCKS)
        };
        while self.pages >= 2 * PAGES_LEAST && !has_blocks(&self) {
            self.pages = (self.pages / 2).next_multiple_of(self.word_line_pages());
        }
        self.narrowed(bytes, unit_blocks, 1)
    }

    /// With fewer units, until each has `unit_blocks`, and then with the blocks of `bytes`, but `least` in each.
    fn narrowed(mut self, bytes: u64, unit_blocks: u32, least: u32) -> NandProfile {
        let block = u64::from(self.pages) * self.page;
        let units = |part: &NandProfile| u64::from(part.geometry().units);
        while units(&self) > 1 && bytes / block / units(&self) < u64::from(unit_blocks) {
            let [planes, chips, dies, channels] =
                [&mut self.planes, &mut self.chips, &mut self.dies, &mut self.channels];
            let shrink = if *planes > 1 {
                planes
            } else if *chips > 1 {
                chips
            } else if *dies > 1 {
                dies
            } else {
                channels
            };
            *shrink = (*shrink / 2).max(1);
        }
        let blocks = bytes.div_ceil(block * units(&self)).max(u64::from(least));
        // One more than there can be: the check refuses it.
        self.blocks = blocks.clamp(1, u64::from(BLOCKS_MAX) + 1) as u32;
        self
    }

    /// What a part has less of than `whole`, which it was resized from, in words; none if nothing.
    pub fn lacks_of(&self, whole: &NandProfile) -> Option<String> {
        let (here, there) = (self.geometry(), whole.geometry());
        let less = [
            ("channels", here.channels, there.channels),
            ("units that work by themselves", here.units, there.units),
            ("pages of a block", here.pages_per_block, there.pages_per_block),
        ];
        let less = less.iter().filter(|(_, here, there)| here < there);
        let told: Vec<_> = less.map(|(what, here, there)| format!("{here} of {there} {what}")).collect();
        (!told.is_empty()).then(|| told.join(", "))
    }

    /// The part, if it can be and memory holds a model of it: for one that was resized, before anything is allocated.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what is wrong and that a smaller size is the remedy.
    pub fn modelled(self) -> Result<NandProfile> {
        self.check().map_err(|bad| {
            let NandProfile { model, pages, page, .. } = &self;
            let least = u64::from(*pages) * page;
            Error::invalid(format!(
                "{model}, in blocks of {}, made so large: {} {}; choose a smaller size",
                show_size(least),
                bad.field,
                bad.why
            ))
        })?;
        let geometry = self.geometry();
        let bytes = geometry.pages() * MODEL_PAGE_BYTES + u64::from(geometry.blocks()) * MODEL_BLOCK_BYTES;
        check_room(format_args!("a model of {} ({})", self.model, show_size(geometry.bytes())), bytes)?;
        Ok(self)
    }
}

impl Described for NandProfile {
    const KIND: &'static str = "nand";

    fn check(&self) -> Result<(), InvalidField> {
        for (value, most, field) in [
            (self.channels, 1024, "channels"),
            (self.chips, 1024, "chips"),
            (self.dies, 64, "dies"),
            (self.planes, 64, "planes"),
            (self.blocks, BLOCKS_MAX, "blocks"),
            (self.pages, PAGES_MAX, "pages"),
            (self.endurance, u32::MAX, "endurance"),
        ] {
            let holds = (1..=most).contains(&value);
            InvalidField::unless(holds, field, format_args!("must be from 1 to {most}"))?;
        }
        let all = [self.channels, self.chips, self.dies, self.planes, self.blocks, self.pages];
        let pages = all.iter().try_fold(1u64, |product, value| product.checked_mul(u64::from(*value)));
        let few = pages.is_some_and(|pages| pages < u64::from(u32::MAX) - 2);
        InvalidField::unless(few, "blocks", "must leave fewer than 2^32 pages in all")?;
        InvalidField::unless(
            self.page.is_power_of_two() && (512..=65536).contains(&self.page),
            "page",
            "must be a power of two from 512 to 65536 bytes",
        )?;
        InvalidField::unless((8..=self.page).contains(&self.spare), "spare", "must be from 8 to page bytes")?;
        InvalidField::unless(
            self.ecc_bytes > 0 && self.page.is_multiple_of(self.ecc_bytes),
            "ecc_bytes",
            "must divide page",
        )?;
        InvalidField::unless((1..=5).contains(&self.cell_bits), "cell_bits", "must be from 1 (SLC) to 5")?;
        InvalidField::unless(
            self.pages.is_multiple_of(self.word_line_pages()),
            "pages",
            "must be a multiple of cell_bits where one_shot programs word lines",
        )?;
        InvalidField::unless(
            !self.one_shot || self.program_us_by_type.is_empty(),
            "program_us_by_type",
            "must be left out where one_shot programs all types at once",
        )?;
        InvalidField::unless(
            self.slc_read_us.is_some() == self.slc_program_us.is_some(),
            "slc_read_us",
            "must be given with slc_program_us, or neither",
        )?;
        self.check_rates()
    }
}

impl NandProfile {
    fn check_rates(&self) -> Result<(), InvalidField> {
        for (value, least, most, field) in [
            (self.read_us, 0.0, 1e7, "read_us"),
            (self.program_us, 0.0, 1e7, "program_us"),
            (self.erase_us, 0.0, 1e8, "erase_us"),
            (self.bus_ns_per_byte, 0.0, 1e6, "bus_ns_per_byte"),
            (self.command_us, 0.0, 1e6, "command_us"),
            (self.factory_bad_percent, 0.0, 50.0, "factory_bad_percent"),
            (self.grown_bad_per_million, 0.0, 1e6, "grown_bad_per_million"),
            (self.bit_errors_new, 0.0, 0.1, "bit_errors_new"),
            (self.bit_errors_worn, self.bit_errors_new, 0.1, "bit_errors_worn"),
            (self.read_disturb_errors, 0.0, 0.1, "read_disturb_errors"),
            (self.retention_errors_per_day, 0.0, 0.1, "retention_errors_per_day"),
            (self.refresh_percent.unwrap_or(1.0), 0.1, 100.0, "refresh_percent"),
            (self.slc_read_us.unwrap_or(0.0), 0.0, 1e7, "slc_read_us"),
            (self.slc_program_us.unwrap_or(0.0), 0.0, 1e7, "slc_program_us"),
            (self.program_suspend_us.unwrap_or(0.0), 0.0, 1e6, "program_suspend_us"),
            (self.erase_suspend_us.unwrap_or(0.0), 0.0, 1e6, "erase_suspend_us"),
        ] {
            let holds = (least..=most).contains(&value);
            InvalidField::unless(holds, field, format_args!("must be from {least} to {most}"))?;
        }
        for (values, field) in
            [(&self.read_us_by_type, "read_us_by_type"), (&self.program_us_by_type, "program_us_by_type")]
        {
            let holds = values.len() <= 8 && values.iter().all(|value| (0.0..=1e7).contains(value));
            InvalidField::unless(holds, field, "must be at most 8 numbers from 0 to 10000000")?;
        }
        let holds =
            self.read_retry.len() <= 64 && self.read_retry.iter().all(|left| (0.0..=1.0).contains(left));
        InvalidField::unless(holds, "read_retry", "must be at most 64 numbers from 0 to 1")?;
        Ok(())
    }
}
