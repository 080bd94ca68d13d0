//! Superblocks: blocks of several units that are written, cleaned and erased as one.
//!
//! [`Array`] shows a page map its NAND as if a superblock were a block of more pages, so that allocation, cleaning,
//! levelling and recovery are the same code for both. Superblock `i` of a group of units is made of block `i` of each of
//! them: its *members*. Its pages are numbered stripe by stripe, page `s` lies on page `s ÷ width` of member
//! `s mod width`. So a stripe, a page of each member with the same number, is what a multi-plane command can program.
//!
//! A member that is bad, from the factory or later, leaves its superblock *narrower*: its pages are left out, and what was
//! valid in it is moved. Which blocks belong together follows from their numbers alone, so there is no table to be kept or
//! found again after power loss, and no good block is lost to bad neighbours.
//!
//! Where a page of the NAND holds several units of the map ([`units`](super::units)) the same is true of it: [`Array`] shows
//! its NAND as if each unit were a page by itself. Of a superblock's pages above, `n` one after the other are then the units of
//! one page of a member.

use super::units::Gathering;
use bimetal_base::Result as OrRefused;
use bimetal_base::time::Time;
use bimetal_media::nand::{Failure, Geometry, Nand, NandProfile, Page, Tag};
use smallvec::SmallVec;

/// Whose blocks make up a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Superblock {
    /// Blocks are by themselves.
    None,
    /// Of the planes of a die.
    Die,
    /// Of all planes on a channel.
    Channel,
    /// Of all planes.
    Device,
}

impl Superblock {
    /// The values of the setting `superblock`.
    pub const CHOICES: [(&'static str, Superblock); 4] = [
        ("none", Superblock::None),
        ("die", Superblock::Die),
        ("channel", Superblock::Channel),
        ("device", Superblock::Device),
    ];

    /// What settings of the page map say, `name=value:name=value`; a wrong one is for the page map to refuse.
    pub fn of_settings(settings: &str) -> Superblock {
        let mut set = settings.split(':').filter_map(|setting| setting.trim().strip_prefix("superblock="));
        let named = |name: &str| Superblock::CHOICES.iter().find(|(choice, _)| *choice == name.trim());
        set.next().and_then(named).map_or(Superblock::None, |(_, superblock)| *superblock)
    }

    /// Into how many groups the units of a part are divided.
    fn groups(self, profile: &NandProfile, geometry: &Geometry) -> u32 {
        match self {
            Superblock::None => geometry.units,
            Superblock::Die => geometry.units / profile.planes,
            Superblock::Channel => geometry.channels,
            Superblock::Device => 1,
        }
    }

    /// How many blocks of a part make up a superblock.
    #[inline]
    pub fn width(self, profile: &NandProfile) -> u32 {
        let geometry = profile.geometry();
        geometry.units / self.groups(profile, &geometry)
    }
}

/// A NAND array in superblocks. With a width of one they are its blocks.
pub(super) struct Array {
    nand: Nand,
    /// In superblocks and units of the map: units are groups of units, and pages units of the map.
    geometry: Geometry,
    width: u32,
    /// Units of the map in a page of the NAND; 1: they are the same, and what is said of pages here holds of both.
    page_units: u32,
    /// Pages of which not all units are written yet.
    pub(super) gathering: Gathering,
    /// Pages of a stripe: of all members' word lines.
    stripe: u32,
    /// Members of each superblock that are not bad; empty with a width of one.
    good: Vec<u16>,
    /// Superblocks that are used with one bit a cell; empty where none can be.
    slc: Vec<bool>,
    /// All of them are blocks as they are: nothing above has to be asked.
    plain: bool,
}

impl Array {
    /// Fails if the array cannot have so many units of the map in a page.
    pub fn new(mut nand: Nand, superblock: Superblock, page_units: u32) -> OrRefused<Array> {
        nand.divide(page_units)?;
        let of_nand = *nand.geometry();
        let groups = superblock.groups(nand.profile(), &of_nand);
        let width = of_nand.units / groups;
        let geometry = Geometry {
            units: groups,
            pages_per_block: of_nand.pages_per_block * width * page_units,
            page_bytes: of_nand.page_bytes / page_units,
            ..of_nand
        };
        let word_line = nand.profile().word_line_pages();
        let mut array = Array {
            nand,
            geometry,
            width,
            page_units,
            gathering: Gathering::new(if page_units > 1 { geometry.blocks() } else { 0 }),
            stripe: width * word_line * page_units,
            good: Vec::new(),
            slc: Vec::new(),
            plain: false,
        };
        if width > 1 {
            array.good = (0..geometry.blocks()).map(|block| array.count_good(block)).collect();
        }
        if array.nand.profile().slc_pages().is_some() {
            let is_slc = |block| array.good_members(block).any(|member| array.nand.is_slc(member));
            array.slc = (0..geometry.blocks()).map(is_slc).collect();
        }
        array.plain = array.good.is_empty() && array.slc.is_empty() && page_units == 1;
        Ok(array)
    }

    fn count_good(&self, block: u32) -> u16 {
        self.members(block).filter(|member| !self.nand.is_bad(*member)).count() as u16
    }

    /// Whether superblocks are blocks, all of the usual kind: then pages lie where they seem to, one after the other.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The array itself.
    #[inline]
    pub fn nand(&self) -> &Nand {
        &self.nand
    }

    /// The array itself.
    #[inline]
    pub fn nand_mut(&mut self) -> &mut Nand {
        &mut self.nand
    }

    /// The array alone.
    pub fn into_nand(self) -> Nand {
        self.nand
    }

    /// The numbers that addresses are made of.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Blocks of a superblock.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Units of the map in a page of the NAND.
    #[inline]
    pub fn page_units(&self) -> u32 {
        self.page_units
    }

    /// Pages that are programmed or lost together with any one of them, where what is left of them has to be completed: those
    /// of a stripe of word lines, the units of a page, or one alone.
    pub fn whole(&self, block: u32) -> u32 {
        match self.stripe > self.width * self.page_units && !self.is_slc(block) {
            true => self.stripe,
            false => self.page_units,
        }
    }

    /// Pages of a stripe that is programmed together: a word line, or a page, of each member.
    #[inline]
    pub fn stripe(&self) -> u32 {
        self.stripe
    }

    /// The number of the stripe of a page.
    pub fn stripe_of(&self, block: u32, page: u32) -> u32 {
        page / if self.is_slc(block) { self.width * self.page_units } else { self.stripe() }
    }

    /// Whether a superblock is used with one bit a cell.
    #[inline]
    pub fn is_slc(&self, block: u32) -> bool {
        self.slc.get(block as usize).is_some_and(|slc| *slc)
    }

    /// Uses an erased superblock with one bit a cell, or not, until it is erased again.
    pub fn use_as_slc(&mut self, block: u32, slc: bool) {
        if self.is_slc(block) == slc {
            return;
        }
        let members: SmallVec<[u32; 8]> = self.good_members(block).collect();
        members.into_iter().for_each(|member| self.nand.use_as_slc(member, slc));
        self.slc[block as usize] = slc;
    }

    /// One past the last page of a superblock.
    fn end(&self, block: u32) -> u32 {
        match self.is_slc(block) {
            true => self.nand.profile().slc_pages().unwrap_or(0) * self.width * self.page_units,
            false => self.geometry.pages_per_block,
        }
    }

    fn member(&self, block: u32, lane: u32) -> u32 {
        let blocks = self.geometry.blocks_per_unit;
        let (group, index) = (block / blocks, block % blocks);
        (lane * self.geometry.units + group) * blocks + index
    }

    /// The superblock that a block is a member of.
    pub fn superblock_of(&self, member: u32) -> u32 {
        let blocks = self.geometry.blocks_per_unit;
        let (unit, index) = (member / blocks, member % blocks);
        unit % self.geometry.units * blocks + index
    }

    fn members(&self, block: u32) -> impl Iterator<Item = u32> {
        (0..self.width).map(move |lane| self.member(block, lane))
    }

    fn good_members(&self, block: u32) -> impl Iterator<Item = u32> {
        self.members(block).filter(|member| !self.nand.is_bad(*member))
    }

    /// The lane of the member that a page lies on.
    pub fn lane_of(&self, page: u32) -> u32 {
        page / self.page_units % self.width
    }

    /// Where a page lies in the array, of a unit the page that it lies in.
    #[inline]
    pub fn place(&self, block: u32, page: u32) -> (u32, u32) {
        if self.page_units > 1 {
            let page = page / self.page_units;
            return (self.member(block, page % self.width), page / self.width);
        }
        match self.width {
            1 => (block, page),
            width => (self.member(block, page % width), page / width),
        }
    }

    /// Whether none of a superblock's members can be used.
    pub fn is_bad(&self, block: u32) -> bool {
        match self.good.get(block as usize) {
            None => self.nand.is_bad(block),
            Some(good) => *good == 0,
        }
    }

    /// Whether a page's member can be used.
    pub fn is_usable(&self, (block, page): (u32, u32)) -> bool {
        !self.nand.is_bad(self.place(block, page).0)
    }

    /// Whether superblocks are not all of the same size.
    pub fn are_unequal(&self) -> bool {
        self.good.iter().any(|good| u32::from(*good) < self.width)
    }

    /// Members that a superblock lacks.
    #[inline]
    pub fn lacks(&self, block: u32) -> u32 {
        self.good.get(block as usize).map_or(0, |good| self.width - u32::from(*good))
    }

    /// Pages of a superblock that can be programmed and erased again.
    pub fn capacity(&self, block: u32) -> u32 {
        match self.width {
            1 => self.geometry.pages_per_block,
            width => self.geometry.pages_per_block / width * (width - self.lacks(block)),
        }
    }

    /// The first page of a superblock from `page` on whose member can be used.
    #[inline]
    pub fn usable_from(&self, block: u32, page: u32) -> Option<u32> {
        if self.plain {
            return (page < self.geometry.pages_per_block).then_some(page);
        }
        self.usable_member_from(block, page)
    }

    fn usable_member_from(&self, block: u32, page: u32) -> Option<u32> {
        let pages = self.end(block);
        if self.lacks(block) == 0 {
            return (page < pages).then_some(page);
        }
        // What comes first on each of the next members.
        let units = self.page_units;
        let next = (page.next_multiple_of(units)..pages).step_by(units as usize).take(self.width as usize);
        (page..pages).take(1).chain(next).find(|page| self.is_usable((block, *page)))
    }

    /// How many pages one after the other can be used, from a usable one on, up to `most`.
    pub fn run(&self, (block, page): (u32, u32), most: u32) -> u32 {
        let most = most.min(self.end(block) - page);
        if self.lacks(block) == 0 {
            return most;
        }
        let usable = (page..page + most).take_while(|page| self.is_usable((block, *page)));
        usable.count() as u32
    }

    /// Usable pages of the stripe of `page`, from that on.
    pub fn left_in_stripe(&self, block: u32, page: u32) -> u32 {
        let of_stripe = |next: &u32| self.stripe_of(block, *next) == self.stripe_of(block, page);
        (page..self.end(block)).take_while(of_stripe).filter(|page| self.is_usable((block, *page))).count()
            as u32
    }

    /// The pages of a superblock that lie on one of its members.
    pub fn pages_on(&self, lane: u32) -> impl Iterator<Item = u32> + use<> {
        let units = self.page_units;
        let firsts = (lane * units..self.geometry.pages_per_block).step_by((self.width * units) as usize);
        firsts.flat_map(move |first| first..first + units)
    }

    /// Erases of a superblock so far.
    #[inline]
    pub fn erases(&self, block: u32) -> u32 {
        match self.width {
            1 => self.nand.erases(block),
            // They are erased together, unless the array was used otherwise before.
            _ => self.good_members(block).map(|member| self.nand.erases(member)).max().unwrap_or(0),
        }
    }

    /// What a page is.
    #[inline]
    pub fn page(&self, block: u32, page: u32) -> Page {
        if self.page_units > 1 {
            return self.unit(block, page);
        }
        let (block, page) = self.place(block, page);
        self.nand.page(block, page)
    }

    /// Whose the pages are, as their tags say; none of a page that is erased or torn.
    #[inline]
    pub fn owner(&self, block: u32, page: u32) -> Option<u32> {
        match self.page(block, page) {
            Page::Programmed(tag) => Some(tag.owner),
            _ => None,
        }
    }

    /// The first page after all that are programmed.
    pub fn next_page(&self, block: u32) -> u32 {
        if self.width == 1 {
            return self.nand.next_page(block) * self.page_units;
        }
        let after = |(lane, member): (u32, u32)| match self.nand.next_page(member) {
            0 => 0,
            next => ((next - 1) * self.width + lane + 1) * self.page_units,
        };
        let members = (0..).zip(self.members(block));
        members.filter(|(_, member)| !self.nand.is_bad(*member)).map(after).max().unwrap_or(0)
    }

    /// Whether a superblock has to be erased before it is written to.
    pub fn is_used(&self, block: u32) -> bool {
        self.good_members(block)
            .any(|member| self.nand.next_page(member) > 0 || self.nand.page(member, 0) != Page::Erased)
    }

    /// Whether only some members of a superblock were erased, as when whoever keeps the array ended in between: a member is
    /// blank and one behind it, which is written after it, is not. All that was valid in it was copied before.
    pub fn is_half_erased(&self, block: u32) -> bool {
        let is_blank = |member: &u32| self.nand.next_page(*member) == 0;
        let mut members = self.good_members(block);
        self.width > 1 && members.any(|member| is_blank(&member)) && members.any(|member| !is_blank(&member))
    }

    /// Whether an erase of a superblock was cut off: it cannot be written to before it is erased again.
    pub fn is_torn(&self, block: u32) -> bool {
        self.good_members(block)
            .any(|member| self.nand.next_page(member) == 0 && self.nand.page(member, 0) != Page::Erased)
    }

    /// As [`Nand::program`].
    #[inline]
    pub fn program(
        &mut self,
        at: Time,
        (block, page): (u32, u32),
        tag: Tag,
        data: &[u8],
    ) -> Result<Time, Failure> {
        let (member, number) = self.place(block, page);
        let programmed = self.nand.program(at, member, number, tag, data);
        self.note(block, &programmed);
        programmed
    }

    /// As [`Nand::copy`].
    pub fn copy(&mut self, at: Time, from: (u32, u32), to: (u32, u32), tag: Tag) -> Result<Time, Failure> {
        let (source, target) = (self.place(from.0, from.1), self.place(to.0, to.1));
        let copied = self.nand.copy(at, source, target, tag);
        self.note(to.0, &copied);
        copied
    }

    /// As [`Nand::copy_many`], to pages that can be used; of a superblock one after the other.
    pub fn copy_many(
        &mut self,
        at: Time,
        sources: &[u32],
        to: (u32, u32),
        renumber: impl Fn(u64) -> u64,
    ) -> bool {
        if self.width == 1 {
            return self.nand.copy_many(at, sources, to, renumber);
        }
        let pages = self.geometry.pages_per_block;
        (to.1..).zip(sources).all(|(page, source)| {
            let from = ((source - 1) / pages, (source - 1) % pages);
            let Page::Programmed(tag) = self.page(from.0, from.1) else { return false };
            let tag = Tag { sequence: renumber(tag.sequence), ..tag };
            self.copy(at, from, (to.0, page), tag).is_ok()
        })
    }

    /// Erases the members of a superblock that are not bad. One that fails leaves it narrower; it fails when none is left.
    pub fn erase(&mut self, at: Time, block: u32) -> Result<Time, Failure> {
        if self.width == 1 {
            let done = self.nand.erase(at, block)?;
            self.erased(block);
            return Ok(done);
        }
        let members: SmallVec<[u32; 8]> = self.good_members(block).collect();
        let done = self.nand.erase_together(at, &members)?;
        self.erased(block);
        self.good[block as usize] = self.count_good(block);
        done.ok_or(Failure::Erase)
    }

    fn erased(&mut self, block: u32) {
        if let Some(slc) = self.slc.get_mut(block as usize) {
            *slc = false;
        }
    }

    /// Notes that a member went bad, if it did.
    #[inline]
    pub(super) fn note<T>(&mut self, block: u32, done: &Result<T, Failure>) {
        if self.width > 1 && matches!(done, Err(Failure::Program)) {
            self.good[block as usize] -= 1;
        }
    }
}
