//! A simulated SSD: a translation layer over NAND behind a bus and a write cache, in virtual time.
//!
//! - *Write*: command, bus, memory; then it is done, unless it was durable. What is written again while it waits in
//!   memory is programmed once. Whole pages are programmed in the background, one for each unit of the flash at a time;
//!   sectors that do not make up a page wait for their neighbours. When memory is full, whole pages and then those that
//!   have waited the longest, completed from the flash (read, then program), go to all units at once, and the write
//!   waits for the program that ends first.
//! - *Flush*: what waits is completed and programmed, and every program under way waited for; nothing at all
//!   on a device whose cache is protected, or that lies.
//! - *Read*: from memory where it has the sectors (a page is there until its program ends), else all pages at once from
//!   the flash, then the bus.
//! - *Discard*: whole pages are given up.
//!
//! Where the data lies is a choice ([`Data`]): on another device, beside the model (fast, and lasting);
//! in the modelled pages themselves (then everything the flash does to data can be seen, power cuts
//! included); or nowhere. Cost: one lock and one dynamic call a page.

mod cache;
mod profile;
mod size;

pub use profile::SsdProfile;

use super::{Found, Ftl, HostBytes, Report, report};
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_base::{Error, Result};
use bimetal_media::nand::{Lane, Nand, NandProfile, Payload};
use bimetal_media::profile::{self as profiles, us};
use bimetal_media::{
    BlockDevice, Completion, DeviceInfo, Gather, Request, Ticket, check_range, completed, zeros,
};
use bytes::{Bytes, BytesMut};
use cache::{Cache, Sectors};
use parking_lot::Mutex;
use serde::Serialize;
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
        let (size_bytes, storage, payload) = match data {
            Data::Storage(storage) => (storage.info().size_bytes, Some(storage), Payload::None),
            Data::Pages(size) => (size, None, Payload::memory()),
            Data::Nowhere(size) => (size, None, Payload::None),
        };
        let mut model = Model::new(profile, size_bytes, payload, seed)?;
        model.reads_zeros = storage.is_none() && !model.ftl.nand().keeps_bytes();
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
        report(&*model.ftl, model.bytes)
    }

    /// What its flash, made for its size, has less of than the part that its profile names, in words.
    pub fn lacks(&self) -> Option<String> {
        self.model.lock().lacks.clone()
    }

    /// Bytes of an erase block of its flash.
    pub fn erase_block_bytes(&self) -> u64 {
        let model = self.model.lock();
        u64::from(model.ftl.nand().geometry().pages_per_block) * model.page_bytes
    }

    /// What it did besides.
    pub fn stats(&self) -> SsdStats {
        self.model.lock().stats
    }

    /// Cuts the power in the `count`-th program or erase from now; then every request fails.
    pub fn cut_power_in(&self, count: u64) {
        self.model.lock().ftl.nand_mut().cut_power_in(count);
    }

    /// Turns it off (if it was not) and on again: memory is lost, the flash is opened anew.
    pub fn restart(self) -> Result<Ssd> {
        let model = self.model.into_inner();
        let mut nand = model.ftl.into_nand();
        nand.power_on();
        let ftl = super::open(&model.scheme, nand, &model.settings)?;
        let model =
            Model { ftl, cache: Cache::default(), bus: Lane::default(), last_end: Time::ZERO, ..model };
        Ok(Ssd { model: Mutex::new(model), ..self })
    }

    fn serve(&self, at: Time, request: Request) -> Completion {
        if let Err(error) = check_range(&self.info, &request) {
            return Completion { at, result: Err(error) };
        }
        let modelled = self.model.lock().request(at, &request);
        let Some(storage) = &self.storage else { return completed(at, modelled) };
        match (modelled, request) {
            (Err(error), _) => Completion { at, result: Err(error) },
            (Ok((at, _)), Request::Flush) => Completion { at, result: Ok(Bytes::new()) },
            (Ok((done, _)), Request::Write { offset, data, .. }) => {
                let result = storage.run(at, Request::Write { offset, data, durable: false }).result;
                Completion { at: done, result }
            }
            (Ok((done, _)), other) => Completion { at: done, result: storage.run(at, other).result },
        }
    }
}

impl BlockDevice for Ssd {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        Ticket::Done(self.serve(at, request))
    }

    fn handles(&self) -> u8 {
        self.model.lock().ftl.handles()
    }

    fn keeps_contents(&self) -> bool {
        match &self.storage {
            Some(storage) => storage.keeps_contents(),
            None => self.model.lock().ftl.nand().keeps_bytes(),
        }
    }
}

/// Flash, memory and bus.
struct Model {
    ftl: Box<dyn Ftl>,
    scheme: String,
    settings: String,
    /// What its flash has less of than the part that the profile names.
    lacks: Option<String>,
    cache: Cache,
    cache_pages: usize,
    /// What works by itself in the flash: so many programs are under way at most, unless somebody waits for them.
    units: usize,
    bus: Lane,
    bus_ns_per_byte: f64,
    command: Duration,
    /// A flush has nothing to wait for.
    lazy_flush: bool,
    /// Data lies nowhere.
    reads_zeros: bool,
    page_bytes: u64,
    /// What is told apart within a page, bytes.
    sector_bytes: u64,
    /// The end of the last program so far.
    last_end: Time,
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
    fn new(profile: &SsdProfile, size_bytes: u64, payload: Payload, seed: u64) -> Result<Model> {
        let whole: NandProfile = profiles::load(&profile.nand)?;
        let page_bytes = whole.page;
        let part = size::fitted(whole.clone(), profile, size_bytes, seed)?;
        let lacks = part.lacks_of(&whole);
        let settings = format!("logical={size_bytes}:{}", profile.settings);
        let nand = Nand::new(part, seed, true, payload);
        Ok(Model {
            units: nand.geometry().units as usize,
            ftl: super::open(&profile.ftl, nand, &settings)?,
            scheme: profile.ftl.clone(),
            settings,
            lacks,
            cache: Cache::default(),
            cache_pages: (profile.write_cache / page_bytes) as usize,
            bus: Lane::default(),
            bus_ns_per_byte: 1e3 / profile.bus_mb_per_s,
            command: Duration::from_nanos(us(profile.command_us)),
            lazy_flush: profile.protected || !profile.honour_flush,
            reads_zeros: false,
            page_bytes,
            sector_bytes: profile.sector.min(page_bytes),
            last_end: Time::ZERO,
            stats: SsdStats::default(),
            bytes: HostBytes::default(),
        })
    }

    /// Serves a checked request; when it is done, and the bytes of a read where the pages keep them.
    fn request(&mut self, at: Time, request: &Request) -> Result<(Time, Bytes)> {
        if self.ftl.nand().is_off() {
            return Err(Error::Gone { device: self.ftl.nand().profile().model.clone() });
        }
        self.advance(at)?;
        let ready = at + self.command;
        match request {
            Request::Read { len, .. } => self.bytes.read += *len as u64,
            Request::Write { data, .. } => self.bytes.written += data.bytes(),
            Request::Discard { len, .. } => self.bytes.discarded += len,
            Request::Flush => {}
        }
        let done = match request {
            Request::Read { offset, len } => return self.read(ready, *offset, *len),
            Request::Write { offset, data, durable } => self.write(ready, *offset, data, *durable)?,
            Request::Flush => self.flush(ready)?,
            Request::Discard { offset, len } => self.discard(ready, *offset, *len)?,
        };
        Ok((done, Bytes::new()))
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

    fn write(&mut self, ready: Time, offset: u64, data: &Gather, durable: bool) -> Result<Time> {
        let len = data.bytes() as usize;
        // Where pages keep no bytes there is nothing to copy.
        let bytes = match self.ftl.nand().keeps_bytes() {
            true if data.is_absent() => {
                return Err(Error::invalid("flash with contents: a write without its bytes"));
            }
            true => data.concat(),
            false => Vec::new(),
        };
        let arrived = self.transfer(ready, len);
        let mut done = arrived;
        for piece in self.pieces(offset, len) {
            let part = bytes.get(piece.in_request..piece.in_request + piece.len).unwrap_or_default();
            let end =
                self.write_piece(arrived, &piece, (part, data.handle()), durable && !self.lazy_flush)?;
            if durable && !self.lazy_flush {
                done = done.max(end);
            }
        }
        self.make_room(done)
    }

    /// Programs that have ended by `now` make room for whole pages that wait.
    fn advance(&mut self, now: Time) -> Result<()> {
        while let Some(end) = self.cache.end_program(now) {
            if let Some(page) = self.cache.oldest_whole() {
                self.complete(end, page)?;
            }
        }
        Ok(())
    }

    /// Puts a piece into memory, and programs its page if that is complete and flash is idle, or must be now; the end of
    /// that.
    fn write_piece(&mut self, at: Time, piece: &Piece, data: (&[u8], u8), now: bool) -> Result<Time> {
        let whole = self.whole_page();
        let idle = self.cache.programs() < self.units;
        if piece.sectors == whole && (idle || now) {
            self.forget(piece.page);
            return self.program(at, piece.page, data);
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
            self.cache.completed(piece.page);
        }
        Ok(at)
    }

    /// Waits until memory holds no more than it can: all units of the flash write what it holds.
    fn make_room(&mut self, mut now: Time) -> Result<Time> {
        while self.cache.pages() > self.cache_pages {
            let idle = self.cache.programs() < self.units;
            match self.oldest().filter(|_| idle) {
                Some(page) => drop(self.complete(now, page)?),
                None => {
                    let Some(end) = self.cache.first_end() else { break };
                    now = now.max(end);
                    self.advance(now)?;
                }
            }
        }
        Ok(now)
    }

    /// What is to leave memory next: whole pages, since they need no read, then what has waited the longest.
    fn oldest(&mut self) -> Option<u64> {
        self.cache.oldest_whole().or_else(|| self.cache.oldest())
    }

    /// Programs a page with bytes of a placement handle; the end of that.
    fn program(&mut self, at: Time, page: u64, (bytes, handle): (&[u8], u8)) -> Result<Time> {
        let end = self.ftl.write_placed(at, Lpn(page), bytes, handle)?;
        self.cache.begin_program(page, end);
        self.last_end = self.last_end.max(end);
        Ok(end)
    }

    /// Drops what waits of a page: it is written anew, or given up.
    fn forget(&mut self, page: u64) {
        if let Some(waiting) = self.cache.take(page) {
            self.bytes.coalesced += u64::from(waiting.have.count_ones()) * self.sector_bytes;
        }
    }

    /// Fetches what is missing of a waiting page and programs it; the end of that.
    fn complete(&mut self, at: Time, page: u64) -> Result<Time> {
        let Some(waiting) = self.cache.take(page) else { return Ok(at) };
        if waiting.have == self.whole_page() {
            return self.program(at, page, (&waiting.bytes, waiting.handle));
        }
        // What is under its program still has all of it in memory.
        let in_memory = self.cache.is_programming(page);
        self.stats.completed_pages += 1;
        self.bytes.padding += self.page_bytes - u64::from(waiting.have.count_ones()) * self.sector_bytes;
        let found = match in_memory {
            true => Found { at, place: self.ftl.find(Lpn(page)) },
            false => self.ftl.read(at, Lpn(page))?,
        };
        let mut bytes = BytesMut::from(self.stored(found.place, page)?);
        self.overlay(&waiting, &mut bytes);
        self.program(found.at, page, (&bytes, waiting.handle))
    }

    /// The bytes of a page in flash; zeros if it was never written, nothing where none are kept.
    fn stored(&self, place: Option<(u32, u32)>, page: u64) -> Result<Bytes> {
        let nand = self.ftl.nand();
        match place {
            _ if !nand.keeps_bytes() => Ok(Bytes::new()),
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

    fn read(&mut self, ready: Time, offset: u64, len: usize) -> Result<(Time, Bytes)> {
        let mut found = ready;
        let mut bytes = BytesMut::new();
        for piece in self.pieces(offset, len) {
            let here = self.cache.waiting(piece.page).map_or(0, |waiting| waiting.have);
            let place = if here & piece.sectors == piece.sectors || self.cache.is_programming(piece.page) {
                self.stats.page_hits += 1;
                self.ftl.find(Lpn(piece.page))
            } else {
                let read = self.ftl.read(ready, Lpn(piece.page))?;
                found = found.max(read.at);
                read.place
            };
            if self.ftl.nand().keeps_bytes() {
                let mut page = BytesMut::from(self.stored(place, piece.page)?);
                if let Some(waiting) = self.cache.waiting(piece.page) {
                    self.overlay(waiting, &mut page);
                }
                bytes.extend_from_slice(&page[piece.in_page..piece.in_page + piece.len]);
            }
        }
        let bytes = if self.reads_zeros { zeros(len) } else { bytes.freeze() };
        Ok((self.transfer(found, len), bytes))
    }

    fn flush(&mut self, ready: Time) -> Result<Time> {
        if self.lazy_flush {
            return Ok(ready);
        }
        self.stats.dirty_flushes += u64::from(self.cache.pages() > 0);
        while let Some(page) = self.cache.oldest() {
            self.complete(ready, page)?;
        }
        Ok(ready.max(self.last_end))
    }

    fn discard(&mut self, ready: Time, offset: u64, len: u64) -> Result<Time> {
        for page in offset.div_ceil(self.page_bytes)..(offset + len) / self.page_bytes {
            self.forget(page);
            self.ftl.trim(ready, Lpn(page))?;
        }
        Ok(ready)
    }
}

#[cfg(test)]
mod tests;
