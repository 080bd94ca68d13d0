//! A simulated SSD: a translation layer over NAND behind a bus and a write cache, in virtual time.
//!
//! - *Write*: command, bus, memory; then it is done, unless it was durable. What is written again while it waits in
//!   memory is programmed once. Whole pages are programmed in the background, one for each unit of the flash at a time;
//!   sectors that do not make up a page wait for their neighbours. When memory is full, whole pages and then those that
//!   have waited the longest, completed from the flash (read, then program), go to all units at once, and writes wait
//!   for programs to end: each for as many pages as it put in beyond what memory holds, in the order they came.
//! - *Flush*: what waits is completed and programmed, and every program under way waited for; nothing at all
//!   on a device whose cache is protected, or that lies.
//! - *Read*: from memory where it has the sectors (a page is there until its program ends), else all pages at once from
//!   the flash, then the bus.
//! - *Discard*: whole pages are given up.
//!
//! Pages are the layer's, which may be parts of a page of the flash (`map-unit`): then as many wait as one holds, and a read
//! of several in one page of the flash reads that once.
//!
//! What a request decides (what lies where) it decides when it is submitted; its time goes on with that of the flash, so
//! that requests overtake each other. A page whose program the flash refuses stays in memory; the error is that of the
//! writes that waited for room and of the next write or flush.
//!
//! Where the data lies is a choice ([`Data`]): on another device, beside the model (fast, and lasting);
//! in the modelled pages themselves (then everything the flash does to data can be seen, power cuts
//! included); or nowhere. Cost: one lock and one dynamic call a page.

mod cache;
mod profile;
mod size;

pub use profile::SsdProfile;

use super::scheduled::Scheduled;
use super::{Ftl, HostBytes, Report, page_bytes, report};
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Lane, Nand, NandProfile, Ordering, Payload};
use bimetal_media::profile::{self as profiles, us};
use bimetal_media::under_way::{Simulated, UnderWay};
use bimetal_media::{BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket, check_range, zeros};
use bytes::{Bytes, BytesMut};
use cache::{Cache, Sectors};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Serialize;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Where an SSD's data lies.
pub enum Data {
    /// On this device, by logical address; its size is the SSD's.
    Storage(Arc<dyn BlockDevice>),
    /// In the modelled pages, in memory; of this size in bytes.
    Pages(u64),
    /// Nowhere: reads give zeros; of this size in bytes.
    Nowhere(u64),
}

/// A simulated SSD.
pub struct Ssd {
    info: DeviceInfo,
    storage: Option<Arc<dyn BlockDevice>>,
    model: Mutex<Model>,
}

impl SsdStats {
    /// What it did since `before`.
    pub fn since(&self, before: &SsdStats) -> SsdStats {
        SsdStats {
            page_hits: self.page_hits - before.page_hits,
            completed_pages: self.completed_pages - before.completed_pages,
            dirty_flushes: self.dirty_flushes - before.dirty_flushes,
        }
    }
}

/// What an SSD did beyond its flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SsdStats {
    /// Reads of a page answered from memory.
    pub page_hits: u64,
    /// Pages completed from the flash before they could be programmed.
    pub completed_pages: u64,
    /// Flushes that found something waiting or under way.
    pub dirty_flushes: u64,
}

impl Ssd {
    /// An SSD as `profile` says, with as much flash as its size needs. What is random comes from `seed`.
    ///
    /// Fails with [`Error::Invalid`] on a profile that does not fit together.
    pub fn new(profile: &SsdProfile, data: Data, seed: u64) -> Result<Ssd> {
        Ssd::of_part(profile, profiles::load(&profile.nand)?, data, seed)
    }

    /// The same of another part than the profile names.
    ///
    /// # Errors
    /// As [`Ssd::new`].
    pub fn of_part(profile: &SsdProfile, whole: NandProfile, data: Data, seed: u64) -> Result<Ssd> {
        let (size_bytes, storage, payload) = match data {
            Data::Storage(storage) => (storage.info().size_bytes, Some(storage), Payload::None),
            Data::Pages(size) => (size, None, Payload::memory()),
            Data::Nowhere(size) => (size, None, Payload::None),
        };
        let mut model = Model::new(profile, whole, size_bytes, payload, seed)?;
        model.reads_zeros = storage.is_none() && !model.flash.ftl().nand().keeps_bytes();
        let below = storage.as_ref().map_or(1, |storage| storage.info().block_bytes);
        let sector = (profile.sector as u32).max(below);
        let name = storage.as_ref().map_or("memory", |storage| &storage.info().name);
        let info = DeviceInfo {
            name: format!("{name} ({})", profile.model),
            size_bytes: size_bytes / u64::from(sector) * u64::from(sector),
            block_bytes: sector,
            atomic_bytes: sector,
            rotational: false,
        };
        Ok(Ssd { info, storage, model: Mutex::new(model) })
    }

    /// What its flash and translation layer did so far.
    pub fn report(&self) -> Report {
        let model = self.model.lock();
        let bytes = HostBytes { waiting: model.waiting_bytes(), ..model.bytes };
        Report { schedule: model.flash.stats(), ..report(model.flash.ftl(), bytes) }
    }

    /// Erases of each block so far, by its number.
    pub fn erases_by_block(&self) -> Vec<u32> {
        let model = self.model.lock();
        let nand = model.flash.ftl().nand();
        (0..nand.geometry().blocks()).map(|block| nand.erases(block)).collect()
    }

    /// What its flash, made for its size, has less of than the part that its profile names, in words.
    pub fn lacks(&self) -> Option<String> {
        self.model.lock().lacks.clone()
    }

    /// Bytes of an erase block of its flash.
    pub fn erase_block_bytes(&self) -> u64 {
        let model = self.model.lock();
        let geometry = model.flash.ftl().nand().geometry();
        u64::from(geometry.pages_per_block) * u64::from(geometry.page_bytes)
    }

    /// What it did besides.
    pub fn stats(&self) -> SsdStats {
        self.model.lock().stats
    }

    /// Programs all that is in memory, asked or not, from `at` on: also what a flush has not to wait for. Returns when that is done.
    ///
    /// # Errors
    /// The flash refuses a page, or is off.
    pub fn write_back(&self, at: Time) -> Result<Time> {
        self.model.lock().write_back_all(at)
    }

    /// Cuts the power in the `count`-th program or erase from now; then every request fails.
    pub fn cut_power_in(&self, count: u64) {
        self.model.lock().flash.ftl_mut().nand_mut().cut_power_in(count);
    }

    /// Turns it off (if it was not) and on again: memory is lost, the flash is opened anew.
    pub fn restart(self) -> Result<Ssd> {
        let model = self.model.into_inner();
        let mut nand = model.flash.into_nand();
        nand.power_on();
        let ftl = super::open(&model.scheme, nand, &model.settings)?;
        let model = Model {
            flash: noting(ftl),
            cache: Cache::default(),
            deferred: Vec::new(),
            bus: Lane::default(),
            begins: Lane::default(),
            under_way: UnderWay::default(),
            reads: FxHashMap::default(),
            transfers: FxHashMap::default(),
            room: VecDeque::new(),
            owed: 0,
            failed: None,
            ..model
        };
        Ok(Ssd { model: Mutex::new(model), ..self })
    }

    fn serve(&self, at: Time, request: Request) -> Ticket {
        let failed = |error| Ticket::Done(Completion { at, result: Err(error) });
        if let Err(error) = check_range(&self.info, &request) {
            return failed(error);
        }
        // Before the model is asked: once it is, others may let it go on to the end of the request.
        let stored = self.storage.as_ref().map(|storage| match request.clone() {
            Request::Flush => Ok(Bytes::new()),
            Request::Write { offset, data, .. } => {
                storage.run(at, Request::Write { offset, data, durable: false }).result
            }
            other => storage.run(at, other).result,
        });
        let mut model = self.model.lock();
        match model.request(at, &request) {
            Ok((Served::Done(at), bytes)) => {
                Ticket::Done(Completion { at, result: stored.unwrap_or(Ok(bytes)) })
            }
            Ok((Served::UnderWay(number), bytes)) => {
                model.under_way.answer(number, stored.unwrap_or(Ok(bytes)));
                Ticket::Pending(number)
            }
            Err(error) => failed(error),
        }
    }
}

impl BlockDevice for Ssd {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        self.serve(at, request)
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match ticket {
            Ticket::Done(completion) => completion,
            Ticket::Pending(number) => self.model.lock().wait(number),
        }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        match ticket {
            Ticket::Done(_) => true,
            Ticket::Pending(number) => self.model.lock().under_way.is_done(*number),
        }
    }

    fn next_done(&self, until: Time) -> Option<u64> {
        self.model.lock().next_done(until)
    }

    fn next_event(&self) -> Option<Time> {
        self.model.lock().next_time()
    }

    fn handles(&self) -> u8 {
        self.model.lock().flash.ftl().handles()
    }

    fn keeps_contents(&self) -> bool {
        match &self.storage {
            Some(storage) => storage.keeps_contents(),
            None => self.model.lock().flash.ftl().nand().keeps_bytes(),
        }
    }
}

/// Stripes that are handed to each unit before its first is programmed, on average: they go to units in turn, and with fewer
/// of them a unit that has copies to make has others wait, as they get none before it.
const STRIPES_AHEAD: usize = 8;

/// How far a request got when it was submitted.
enum Served {
    /// It is done then.
    Done(Time),
    /// It has this number.
    UnderWay(u64),
}

/// Programs that a request waits for, by their tokens.
type Tokens = SmallVec<[u64; 4]>;

/// Flash, memory and bus.
struct Model {
    flash: Scheduled,
    scheme: String,
    settings: String,
    /// What its flash has less of than the part that the profile names.
    lacks: Option<String>,
    cache: Cache,
    cache_pages: usize,
    /// So many programs are under way at most, unless somebody waits for them: one for each unit of the flash, and another
    /// one where planes work together, since a program that has begun takes no more along; stripes that go to the units in
    /// turn are [more](STRIPES_AHEAD).
    programs_most: usize,
    /// Pages are programmed in stripes: several together, handed over at once.
    in_stripes: bool,
    /// Several pages make up one of the flash: the layer says when they are programmed.
    gathers: bool,
    /// Pages that the layer was given and whose operations were not handed over yet, with the places of these.
    deferred: Vec<(u64, Time)>,
    bus: Lane,
    bus_ns_per_byte: f64,
    command: Duration,
    /// Where commands are begun, one after the other, and how long that takes each, ns.
    begins: Lane,
    begin_ns: u64,
    /// A flush has nothing to wait for.
    lazy_flush: bool,
    /// Data lies nowhere.
    reads_zeros: bool,
    page_bytes: u64,
    /// What is told apart within a page, bytes.
    sector_bytes: u64,
    under_way: UnderWay,
    /// The request that waits for a read of the flash, by the token of that.
    reads: FxHashMap<u64, u64>,
    /// The bytes that a read has to take over the bus when the flash is done with it.
    transfers: FxHashMap<u64, usize>,
    /// Writes that wait for room in memory, and for how many pages of it; how many those are together.
    room: VecDeque<(u64, usize)>,
    owed: usize,
    /// Why the flash takes no more of what is in memory, and nobody was told yet.
    failed: Option<Error>,
    stats: SsdStats,
    bytes: HostBytes,
}

/// The part of a request that lies in one page.
struct Piece {
    page: u64,
    sectors: Sectors,
    /// Its place in the page and in the request, bytes.
    in_page: usize,
    in_request: usize,
    len: usize,
}

impl Model {
    fn new(
        profile: &SsdProfile,
        whole: NandProfile,
        size_bytes: u64,
        payload: Payload,
        seed: u64,
    ) -> Result<Model> {
        if whole.ordering == Ordering::Off {
            return Err(Error::invalid(format!(
                "{}: what its memory holds follows from time, so its flash needs some: choose an ordering other than off",
                profile.model
            )));
        }
        let part = size::fitted(whole.clone(), profile, size_bytes, seed)?;
        let lacks = part.lacks_of(&whole);
        let together = part.planes_together;
        let settings = format!("logical={size_bytes}:{}", profile.settings);
        let nand = Nand::new(part, seed, true, payload);
        let units = nand.geometry().units as usize;
        let flash = noting(super::open(&profile.ftl, nand, &settings)?);
        let (page_bytes, stripe) = (page_bytes(flash.ftl()), flash.ftl().stripe_pages());
        let page_units = flash.ftl().page_units();
        let of_unit = match (stripe > page_units, together) {
            (true, _) => STRIPES_AHEAD * flash.ftl().nand().profile().word_line_pages() as usize,
            (false, true) => 2,
            (false, false) => 1,
        };
        Ok(Model {
            programs_most: units * of_unit * page_units as usize,
            in_stripes: stripe > 1,
            gathers: page_units > 1,
            deferred: Vec::new(),
            flash,
            scheme: profile.ftl.clone(),
            settings,
            lacks,
            cache: Cache::default(),
            cache_pages: (profile.write_cache / page_bytes) as usize,
            bus: Lane::default(),
            bus_ns_per_byte: 1e3 / profile.bus_mb_per_s,
            command: Duration::from_nanos(us(profile.command_us)),
            begins: Lane::default(),
            begin_ns: profile.commands_per_s.map_or(0, |rate| (1e9 / rate) as u64),
            lazy_flush: profile.protected || !profile.honour_flush,
            reads_zeros: false,
            page_bytes,
            sector_bytes: profile.sector.min(page_bytes),
            under_way: UnderWay::default(),
            reads: FxHashMap::default(),
            transfers: FxHashMap::default(),
            room: VecDeque::new(),
            owed: 0,
            failed: None,
            stats: SsdStats::default(),
            bytes: HostBytes::default(),
        })
    }

    /// Serves a checked request: how far it got, and the bytes of a read where the pages keep them.
    fn request(&mut self, at: Time, request: &Request) -> Result<(Served, Bytes)> {
        let nand = self.flash.ftl().nand();
        if nand.is_off() {
            return Err(Error::Gone { device: nand.profile().model.clone() });
        }
        self.go_on(at);
        self.flash.see(at);
        if let Some(failed) = self.failed.take_if(|_| !matches!(request, Request::Read { .. })) {
            return Err(failed);
        }
        let ready = self.begin(at) + self.command;
        match request {
            Request::Read { len, .. } => self.bytes.read += *len as u64,
            Request::Write { data, .. } => self.bytes.written += data.bytes(),
            Request::Discard { len, .. } => self.bytes.discarded += len,
            Request::Flush => {}
        }
        let served = match request {
            Request::Read { offset, len } => return self.read(ready, *offset, *len),
            Request::Write { offset, data, durable } => self.write(ready, *offset, data, *durable),
            Request::Flush => self.flush(ready),
            Request::Discard { offset, len } => {
                return Ok((self.discard(ready, *offset, *len)?, Bytes::new()));
            }
        };
        if let Err(error) = &served {
            self.refuse_room(error, ready);
        }
        served.map(|served| (served, Bytes::new()))
    }

    /// When a command that came at `at` is begun.
    fn begin(&mut self, at: Time) -> Time {
        match self.begin_ns {
            0 => at,
            takes => Time(self.begins.take(at.0, takes)),
        }
    }

    /// Takes the bus for `len` bytes, not before `ready`; the end of that.
    fn transfer(&mut self, ready: Time, len: usize) -> Time {
        let len_ns = (len as f64 * self.bus_ns_per_byte) as u64;
        Time(self.bus.take(ready.0, len_ns) + len_ns)
    }

    fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> + use<> {
        let (page_bytes, sector) = (self.page_bytes, self.sector_bytes);
        let end = offset + len as u64;
        (offset / page_bytes..end.div_ceil(page_bytes)).map(move |page| {
            let start = page * page_bytes;
            let (from, to) = (offset.max(start), end.min(start + page_bytes));
            let count = (to - from).div_ceil(sector);
            let bits = if count >= 128 { Sectors::MAX } else { (1 << count) - 1 };
            Piece {
                page,
                sectors: bits << ((from - start) / sector),
                in_page: (from - start) as usize,
                in_request: (from - offset) as usize,
                len: (to - from) as usize,
            }
        })
    }

    fn whole_page(&self) -> Sectors {
        let count = self.page_bytes / self.sector_bytes;
        if count >= 128 { Sectors::MAX } else { (1 << count) - 1 }
    }

    fn write(&mut self, ready: Time, offset: u64, data: &Gather, durable: bool) -> Result<Served> {
        let len = data.bytes() as usize;
        // Where pages keep no bytes there is nothing to copy.
        let bytes = match self.flash.ftl().nand().keeps_bytes() {
            true if data.is_absent() => {
                return Err(Error::invalid("flash with contents: a write without its bytes"));
            }
            true => data.concat(),
            false => Vec::new(),
        };
        let arrived = self.transfer(ready, len);
        let now = durable && !self.lazy_flush;
        let mut programs = Tokens::new();
        let written = self.pieces(offset, len).try_for_each(|piece| {
            let part = bytes.get(piece.in_request..piece.in_request + piece.len).unwrap_or_default();
            let program = self.write_piece(arrived, &piece, (part, data.handle()), now)?;
            programs.extend(program.filter(|_| now));
            Ok(())
        });
        let padded = if now { self.flash.ftl_mut().pad(Time::ZERO) } else { Ok(()) };
        programs.extend(self.issue_deferred(arrived));
        programs.sort_unstable();
        programs.dedup();
        written.and(padded)?;
        self.destage(arrived)?;
        let excess = self.excess();
        let needs = excess.saturating_sub(self.owed);
        let parts = programs.len() + usize::from(needs > 0);
        if parts == 0 {
            return Ok(Served::Done(arrived));
        }
        let number = self.under_way.begin(arrived, parts as u64);
        programs.into_iter().for_each(|token| self.cache.wait_for(token, number));
        if needs > 0 {
            self.room.push_back((number, needs));
            self.owed += needs;
        }
        Ok(Served::UnderWay(number))
    }

    /// Pages in memory beyond what it holds.
    fn excess(&self) -> usize {
        self.cache.pages().saturating_sub(self.cache_pages)
    }

    /// Has whole pages programmed, and if memory is too full what has waited the longest, as far as units are free.
    fn destage(&mut self, at: Time) -> Result<()> {
        if self.in_stripes {
            return self.destage_stripes(at);
        }
        while self.cache.programs() < self.programs_most {
            let oldest = match self.cache.oldest_whole(0) {
                None if self.excess() > 0 => self.cache.oldest(),
                whole => whole,
            };
            let Some(page) = oldest else { break };
            self.complete(at, page)?;
        }
        Ok(())
    }

    /// The same in stripes: whole pages wait until there are enough of them to fill one, or memory is too full.
    fn destage_stripes(&mut self, at: Time) -> Result<()> {
        while self.cache.programs() < self.programs_most {
            let fills = |model: &mut Model, queue: &u8| {
                model.cache.whole_pages(*queue) >= model.flash.ftl_mut().next_stripe(*queue) as usize
            };
            let queue = (0..self.flash.ftl().handles()).find(|queue| fills(self, queue));
            let destaged = match queue {
                Some(queue) => self.destage_stripe(at, queue, false),
                None if self.excess() > 0 => self.destage_stripe(at, 0, true),
                None => break,
            };
            let padded = if queue.is_none() { self.flash.ftl_mut().pad(Time::ZERO) } else { Ok(()) };
            let handed_over = self.issue_deferred(at).len();
            destaged.and(padded)?;
            if handed_over == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Programs as many pages as fill a stripe, whole ones of a queue; if memory is `full`, what has waited the longest.
    fn destage_stripe(&mut self, at: Time, queue: u8, full: bool) -> Result<()> {
        for _ in 0..self.flash.ftl_mut().next_stripe(queue) {
            let page = if full { self.cache.oldest() } else { self.cache.oldest_whole(queue) };
            let Some(page) = page else { break };
            self.complete(at, page)?;
        }
        Ok(())
    }

    /// Hands over the operations of pages that the layer was given, all at once; their tokens.
    fn issue_deferred(&mut self, at: Time) -> Tokens {
        if self.gathers {
            let programmed = self.flash.ftl_mut().take_programmed();
            self.deferred.extend(programmed.into_iter().map(|(page, place)| (page.0, place)));
        }
        if self.deferred.is_empty() {
            return Tokens::new();
        }
        let deferred = std::mem::take(&mut self.deferred);
        let tokens = self.flash.issue_all(at, deferred.iter().map(|(_, place)| *place));
        for ((page, _), token) in deferred.iter().zip(&tokens) {
            self.cache.begin_program(*page, *token);
        }
        tokens.into()
    }

    /// A program has ended: memory has room for what waits.
    fn ended(&mut self, token: u64, at: Time) {
        let Some(program) = self.cache.end_program(token) else { return };
        for request in program.waiters {
            self.part(request, at);
        }
        if let Err(error) = self.destage(at) {
            self.refuse_room(&error, at);
            self.failed = Some(error);
        }
        self.give_room(at);
    }

    /// Memory takes no more, for this reason: those who wait for room in it fail.
    fn refuse_room(&mut self, error: &Error, at: Time) {
        while let Some((request, _)) = self.room.pop_front() {
            self.under_way.answer(request, Err(alike(error)));
            self.part(request, at);
        }
        self.owed = 0;
    }

    /// Gives the room that there is by now to those who wait for it, in their order.
    fn give_room(&mut self, at: Time) {
        let mut given = self.owed.saturating_sub(self.excess());
        self.owed -= given;
        while let Some((request, needs)) = self.room.front_mut().filter(|_| given > 0) {
            let part = given.min(*needs);
            (*needs, given) = (*needs - part, given - part);
            if *needs == 0 {
                let request = *request;
                self.room.pop_front();
                self.part(request, at);
            }
        }
    }

    /// A part of a request is done; with the last of a read the bus is needed.
    fn part(&mut self, request: u64, at: Time) {
        let Some(done) = self.under_way.part(request, at) else { return };
        let end = match self.transfers.remove(&request) {
            Some(len) => self.transfer(done, len),
            None => done,
        };
        self.under_way.end(request, end);
    }

    /// Puts a piece into memory, and programs its page if that is complete and flash is idle, or must be now: the token
    /// of the program.
    fn write_piece(&mut self, at: Time, piece: &Piece, data: (&[u8], u8), now: bool) -> Result<Option<u64>> {
        let whole = self.whole_page();
        let idle = self.cache.programs() < self.programs_most && !self.in_stripes;
        if piece.sectors == whole && (idle || now) {
            self.forget(piece.page);
            return self.program(at, piece.page, data, Time::ZERO);
        }
        let page_bytes = self.page_bytes as usize;
        let (partial, (bytes, handle)) = (self.cache.wait(piece.page), data);
        let had = partial.have;
        self.bytes.coalesced += u64::from((had & piece.sectors).count_ones()) * self.sector_bytes;
        partial.have |= piece.sectors;
        partial.handle = handle;
        if !bytes.is_empty() {
            partial.bytes.resize(page_bytes, 0);
            partial.bytes[piece.in_page..piece.in_page + piece.len].copy_from_slice(bytes);
        }
        let is_whole = partial.have == whole;
        if now || is_whole && idle {
            return self.complete(at, piece.page);
        }
        if is_whole && had != whole {
            self.cache.completed(piece.page, if self.in_stripes { handle } else { 0 });
        }
        Ok(None)
    }

    /// Programs a page with bytes of a placement handle, once the operation at a place was done; the token of that.
    fn program(
        &mut self,
        at: Time,
        page: u64,
        (bytes, handle): (&[u8], u8),
        after: Time,
    ) -> Result<Option<u64>> {
        let done = self.flash.ftl_mut().write_placed(after, Lpn(page), bytes, handle);
        if let Ok(place) = done
            && self.in_stripes
        {
            if !self.gathers {
                self.deferred.push((page, place));
            }
            return Ok(None);
        }
        let token = self.flash.issue(at, *done.as_ref().unwrap_or(&Time::ZERO));
        done?;
        if let Some(token) = token {
            self.cache.begin_program(page, token);
        }
        Ok(token)
    }

    /// Drops what waits of a page: it is written anew, or given up.
    fn forget(&mut self, page: u64) {
        if let Some(waiting) = self.cache.take(page) {
            self.bytes.coalesced += u64::from(waiting.have.count_ones()) * self.sector_bytes;
        }
    }

    /// Fetches what is missing of a waiting page and programs it; the token of that. A page that cannot be programmed
    /// waits on; one whose rest cannot be read is lost.
    fn complete(&mut self, at: Time, page: u64) -> Result<Option<u64>> {
        let Some(waiting) = self.cache.take(page) else { return Ok(None) };
        let token = self.complete_with(at, page, &waiting);
        if matches!(&token, Err(error) if !matches!(error, Error::Corrupt { .. })) {
            self.cache.put_back(page, waiting);
        }
        token
    }

    fn complete_with(&mut self, at: Time, page: u64, waiting: &cache::Partial) -> Result<Option<u64>> {
        if waiting.have == self.whole_page() {
            return self.program(at, page, (&waiting.bytes, waiting.handle), Time::ZERO);
        }
        // What is under its program still has all of it in memory.
        let (place, read) = match self.cache.is_programming(page) {
            true => (self.flash.ftl().find(Lpn(page)), Time::ZERO),
            false => {
                let found = self.flash.ftl_mut().read(Time::ZERO, Lpn(page));
                if found.is_err() {
                    self.flash.issue(at, Time::ZERO);
                }
                found.map(|found| (found.place, found.at))?
            }
        };
        self.stats.completed_pages += 1;
        self.bytes.padding += self.page_bytes - u64::from(waiting.have.count_ones()) * self.sector_bytes;
        let mut bytes = BytesMut::from(self.stored(place, page)?);
        self.overlay(waiting, &mut bytes);
        self.program(at, page, (&bytes, waiting.handle), read)
    }

    /// The bytes of a page in flash; zeros if it was never written, nothing where none are kept.
    fn stored(&self, place: Option<(u32, u32)>, page: u64) -> Result<Bytes> {
        let nand = self.flash.ftl().nand();
        match place {
            _ if !nand.keeps_bytes() => Ok(Bytes::new()),
            Some(_) if self.gathers => Ok(self.flash.ftl().bytes(Lpn(page))?.unwrap_or_default()),
            None => Ok(Bytes::from(vec![0; self.page_bytes as usize])),
            Some((block, number)) => {
                nand.bytes(block, number).map_err(|failure| super::error_of(nand, failure, Lpn(page)))
            }
        }
    }

    /// Lays the sectors that wait over the bytes of their page.
    fn overlay(&self, waiting: &cache::Partial, bytes: &mut [u8]) {
        let sector = self.sector_bytes as usize;
        for (index, target) in bytes.chunks_mut(sector).enumerate() {
            if waiting.have >> index & 1 == 1 {
                target.copy_from_slice(&waiting.bytes[index * sector..(index + 1) * sector]);
            }
        }
    }

    fn read(&mut self, ready: Time, offset: u64, len: usize) -> Result<(Served, Bytes)> {
        let mut reads = Tokens::new();
        let (mut bytes, mut last) = (BytesMut::new(), None);
        let keeps_bytes = self.flash.ftl().nand().keeps_bytes();
        for piece in self.pieces(offset, len) {
            let here = self.cache.waiting(piece.page).map_or(0, |waiting| waiting.have);
            let place = if here & piece.sectors == piece.sectors || self.cache.is_programming(piece.page) {
                self.stats.page_hits += 1;
                self.flash.ftl().find(Lpn(piece.page))
            } else if self.gathers && last.is_some() && self.flash.ftl().find(Lpn(piece.page)) == last {
                last
            } else {
                let found = self.flash.ftl_mut().read(Time::ZERO, Lpn(piece.page));
                reads.extend(self.flash.issue(ready, found.as_ref().map_or(Time::ZERO, |found| found.at)));
                last = found?.place;
                last
            };
            if keeps_bytes {
                let mut page = BytesMut::from(self.stored(place, piece.page)?);
                if let Some(waiting) = self.cache.waiting(piece.page) {
                    self.overlay(waiting, &mut page);
                }
                bytes.extend_from_slice(&page[piece.in_page..piece.in_page + piece.len]);
            }
        }
        let bytes = if self.reads_zeros { zeros(len) } else { bytes.freeze() };
        if reads.is_empty() {
            return Ok((Served::Done(self.transfer(ready, len)), bytes));
        }
        let number = self.under_way.begin(ready, reads.len() as u64);
        self.reads.extend(reads.into_iter().map(|token| (token, number)));
        self.transfers.insert(number, len);
        self.under_way.answer(number, Ok(bytes.clone()));
        Ok((Served::UnderWay(number), bytes))
    }

    fn flush(&mut self, ready: Time) -> Result<Served> {
        if self.lazy_flush {
            return Ok(Served::Done(ready));
        }
        self.stats.dirty_flushes += u64::from(self.cache.pages() > 0);
        self.write_back(ready)
    }

    /// Has all that waits programmed, and gives the number that is done with the last program.
    fn write_back(&mut self, ready: Time) -> Result<Served> {
        let mut written = Ok(());
        while let Some(page) = self.cache.oldest().filter(|_| written.is_ok()) {
            written = self.complete(ready, page).map(drop);
        }
        let padded = self.flash.ftl_mut().pad(Time::ZERO);
        self.issue_deferred(ready);
        written.and(padded)?;
        self.give_room(ready);
        if self.cache.programs() == 0 {
            return Ok(Served::Done(ready));
        }
        let number = self.under_way.begin(ready, self.cache.commands() as u64);
        self.cache.wait_for_all(number);
        Ok(Served::UnderWay(number))
    }

    /// Programs all that is in memory, and waits for it.
    fn write_back_all(&mut self, at: Time) -> Result<Time> {
        let nand = self.flash.ftl().nand();
        if nand.is_off() {
            return Err(Error::Gone { device: nand.profile().model.clone() });
        }
        self.go_on(at);
        self.flash.see(at);
        let done = match self.write_back(at)? {
            Served::Done(done) => done,
            Served::UnderWay(number) => {
                self.under_way.answer(number, Ok(Bytes::new()));
                let ended = self.wait(number);
                ended.result?;
                ended.at
            }
        };
        self.failed.take().map_or(Ok(done), Err)
    }

    /// Bytes that were written and are in memory alone; what is under its program counts as programmed.
    fn waiting_bytes(&self) -> u64 {
        self.cache.waiting_sectors() * self.sector_bytes + self.flash.ftl().waiting_pages() * self.page_bytes
    }

    fn discard(&mut self, ready: Time, offset: u64, len: u64) -> Result<Served> {
        for page in offset.div_ceil(self.page_bytes)..(offset + len) / self.page_bytes {
            self.forget(page);
            let trimmed = self.flash.ftl_mut().trim(Time::ZERO, Lpn(page));
            self.flash.issue(ready, Time::ZERO);
            trimmed?;
        }
        self.give_room(ready);
        Ok(Served::Done(ready))
    }
}

impl Simulated for Model {
    fn under_way(&mut self) -> &mut UnderWay {
        &mut self.under_way
    }

    fn next_event(&mut self) -> Option<Time> {
        self.flash.next_event()
    }

    fn step(&mut self) -> bool {
        let stepped = self.flash.step();
        while let Some((token, at)) = self.flash.finished() {
            match self.reads.remove(&token) {
                Some(request) => self.part(request, at),
                None => self.ended(token, at),
            }
        }
        stepped
    }
}

/// A layer that says from now on which pages were programmed that waited for others.
fn noting(mut ftl: Box<dyn Ftl>) -> Scheduled {
    ftl.take_programmed();
    Scheduled::new(ftl)
}

/// The same error once more: several requests meet it.
fn alike(error: &Error) -> Error {
    match error {
        Error::Io { what, source } => {
            let again = source.raw_os_error().map_or(source.kind().into(), std::io::Error::from_raw_os_error);
            Error::io(what.clone(), again)
        }
        Error::Gone { device } => Error::Gone { device: device.clone() },
        other => Error::io(other.to_string(), std::io::Error::from_raw_os_error(libc::EIO)),
    }
}

#[cfg(test)]
mod tests;
