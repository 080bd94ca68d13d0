//! A translation layer as a block device, without electronics around it: what a page costs is what the flash takes.
//!
//! Requests may begin and end at any byte. A page that is written in part is read first. It keeps no contents: pages
//! are checked by their tags in the layers' own tests. For a bus, a write cache and contents see [`Ssd`](super::ssd).
//! Of a layer whose map units are smaller than pages, units that do not make up a page wait for others, those of later writes
//! too: such a write is done at once, a flush or a durable write has what waits padded, and is done when it was programmed.
//! What is decided takes effect when a request is submitted, and its time when the array's scheduler comes to it.
//! Cost: one lock a request, one dynamic call a page; where nothing takes time no more.

use super::scheduled::Scheduled;
use super::{Ftl, HostBytes, Report, page_bytes, report};
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_base::units::Lpn;
use bimetal_media::under_way::{Simulated, UnderWay};
use bimetal_media::{BlockDevice, Completion, DeviceInfo, Request, Ticket, check_range};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::ops::Range;

/// A translation layer addressed in bytes.
pub struct FtlDevice {
    info: DeviceInfo,
    /// Bytes of a logical page.
    page_bytes: u64,
    handles: u8,
    state: Mutex<State>,
}

struct State {
    flash: Scheduled,
    partial_writes: u64,
    bytes: HostBytes,
    under_way: UnderWay,
    /// The requests that wait for an operation of the flash, by its token.
    waits: FxHashMap<u64, Waiting>,
    /// Units wait for others: they are written without it.
    gathers: bool,
}

/// Numbers of requests.
type Waiting = SmallVec<[u64; 1]>;

/// Tokens of what a request waits for.
type Tokens = SmallVec<[u64; 4]>;

impl FtlDevice {
    /// Over `ftl`, whose operations are ordered as its part says ([`Ordering`](bimetal_media::nand::Ordering)).
    pub fn new(ftl: Box<dyn Ftl>) -> FtlDevice {
        let part = ftl.nand().profile();
        let info = DeviceInfo {
            name: part.model.clone(),
            size_bytes: ftl.logical_pages() * page_bytes(&*ftl),
            block_bytes: 1,
            atomic_bytes: page_bytes(&*ftl) as u32,
            rotational: false,
        };
        let (page_bytes, handles) = (page_bytes(&*ftl), ftl.handles());
        let mut flash = Scheduled::new(ftl);
        let gathers = flash.ftl().page_units() > 1;
        if gathers {
            flash.ftl_mut().take_programmed();
        }
        let state = State {
            flash,
            gathers,
            partial_writes: 0,
            bytes: HostBytes::default(),
            under_way: UnderWay::default(),
            waits: FxHashMap::default(),
        };
        FtlDevice { info, page_bytes, handles, state: Mutex::new(state) }
    }

    /// What the translation layer and its flash did so far.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        Report { schedule: state.flash.stats(), ..report(state.flash.ftl(), state.bytes) }
    }

    /// Erases of each block so far, by its number.
    pub fn erases_by_block(&self) -> Vec<u32> {
        let state = self.state.lock();
        let nand = state.flash.ftl().nand();
        (0..nand.geometry().blocks()).map(|block| nand.erases(block)).collect()
    }

    /// Pages written in part only.
    pub fn partial_writes(&self) -> u64 {
        self.state.lock().partial_writes
    }

    /// Bytes of a logical page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The block of flash in which a page lies, if it was written.
    pub fn block_of(&self, page: Lpn) -> Option<u32> {
        self.state.lock().flash.ftl().find(page).map(|(block, _)| block)
    }

    /// Bytes of an erase block.
    pub fn erase_block_bytes(&self) -> u64 {
        let state = self.state.lock();
        let geometry = state.flash.ftl().nand().geometry();
        u64::from(geometry.pages_per_block) * u64::from(geometry.page_bytes)
    }

    /// Serves a request: its number if it is under way then, and done at once otherwise.
    fn serve(&self, at: Time, request: &Request) -> Result<Option<u64>> {
        check_range(&self.info, request)?;
        let Some((offset, len)) = request.extent() else { return self.flush(at, request) };
        let (touched, whole) = pages(offset, len, self.page_bytes);
        let state = &mut *self.state.lock();
        state.go_on(at);
        state.flash.see(at);
        let mut tokens = Tokens::new();
        match request {
            Request::Read { .. } => {
                state.bytes.read += len;
                state.read(at, touched, &mut tokens)?;
            }
            Request::Write { data, durable, .. } => {
                state.bytes.written += len;
                state.bytes.padding += (touched.end - touched.start) * self.page_bytes - len;
                state.write(at, touched, &whole, (data.handle(), *durable), &mut tokens)?;
            }
            // A page is durable once it is programmed.
            _ => {
                state.bytes.discarded += len;
                state.trim(at, whole, &mut tokens)?;
            }
        }
        Ok(state.wait_for(at, request, tokens))
    }

    /// Has all that waits programmed, and waits for all that is being programmed, where something waits at all.
    fn flush(&self, at: Time, request: &Request) -> Result<Option<u64>> {
        let state = &mut *self.state.lock();
        if !state.gathers {
            return Ok(None);
        }
        state.go_on(at);
        state.flash.see(at);
        let padded = state.flash.ftl_mut().pad(Time::ZERO);
        let mut tokens = state.issue_programmed(at);
        padded?;
        tokens.extend(state.waits.keys().copied());
        tokens.sort_unstable();
        tokens.dedup();
        Ok(state.wait_for(at, request, tokens))
    }
}

/// The pages that a range touches, and those it covers.
fn pages(offset: u64, len: u64, page_bytes: u64) -> (Range<u64>, Range<u64>) {
    let end = offset + len;
    let first = offset.div_ceil(page_bytes);
    (offset / page_bytes..end.div_ceil(page_bytes), first..(end / page_bytes).max(first))
}

impl State {
    fn read(&mut self, at: Time, touched: Range<u64>, tokens: &mut Tokens) -> Result<()> {
        let mut last = None;
        for page in touched {
            // One read is enough for all units of a page.
            if self.gathers && last.is_some() && self.flash.ftl().find(Lpn(page)) == last {
                continue;
            }
            let found = self.flash.ftl_mut().read(Time::ZERO, Lpn(page));
            last = found.as_ref().ok().and_then(|found| found.place);
            self.issue(at, found.map(|found| found.at), tokens)?;
        }
        Ok(())
    }

    /// Hands over what was decided on; tokens for the programs of pages that waited for their units.
    fn issue_programmed(&mut self, at: Time) -> Tokens {
        let mut places: SmallVec<[u64; 4]> =
            self.flash.ftl_mut().take_programmed().into_iter().map(|(_, place)| place.0).collect();
        places.dedup();
        self.flash.issue_all(at, places.into_iter().map(Time)).into()
    }

    /// Has a request wait for what has these tokens; none if that is nothing.
    fn wait_for(&mut self, at: Time, request: &Request, tokens: Tokens) -> Option<u64> {
        if tokens.is_empty() {
            return None;
        }
        let number = self.under_way.begin(at, tokens.len() as u64);
        for token in tokens {
            self.waits.entry(token).or_default().push(number);
        }
        self.under_way.answer(number, Ok(request.nothing_read()));
        Some(number)
    }

    fn write(
        &mut self,
        at: Time,
        touched: Range<u64>,
        whole: &Range<u64>,
        (handle, durable): (u8, bool),
        tokens: &mut Tokens,
    ) -> Result<()> {
        let mut places = Tokens::new();
        let mut result = Ok(());
        for page in touched {
            let mut read = Ok(Time::ZERO);
            if !whole.contains(&page) {
                self.partial_writes += 1;
                read = self.flash.ftl_mut().read(Time::ZERO, Lpn(page)).map(|found| found.at);
            }
            let ftl = self.flash.ftl_mut();
            let done = read.and_then(|read| ftl.write_placed(read, Lpn(page), &[], handle));
            match done {
                // What makes up a stripe is handed over together.
                Ok(_) if self.gathers => {}
                Ok(place) if ftl.stripe_pages() > 1 => places.push(place.0),
                other => result = self.issue(at, other, tokens),
            }
            if result.is_err() {
                break;
            }
        }
        if self.gathers {
            let padded = if durable { self.flash.ftl_mut().pad(Time::ZERO) } else { Ok(()) };
            result = result.and(padded);
            tokens.extend(self.issue_programmed(at));
        } else if !places.is_empty() {
            let padded = self.flash.ftl_mut().pad(Time::ZERO);
            result = result.and(padded);
            tokens.extend(self.flash.issue_all(at, places.into_iter().map(Time)));
        }
        result
    }

    fn trim(&mut self, at: Time, whole: Range<u64>, tokens: &mut Tokens) -> Result<()> {
        for page in whole {
            let done = self.flash.ftl_mut().trim(Time::ZERO, Lpn(page));
            self.issue(at, done, tokens)?;
        }
        Ok(())
    }

    /// Has what was decided be done, whether or not it ended well.
    fn issue(&mut self, at: Time, done: Result<Time>, tokens: &mut Tokens) -> Result<()> {
        let watched = *done.as_ref().unwrap_or(&Time::ZERO);
        tokens.extend(self.flash.issue(at, watched));
        done.map(drop)
    }
}

impl Simulated for State {
    fn under_way(&mut self) -> &mut UnderWay {
        &mut self.under_way
    }

    fn next_event(&mut self) -> Option<Time> {
        self.flash.next_event()
    }

    fn step(&mut self) -> bool {
        let stepped = self.flash.step();
        while let Some((token, at)) = self.flash.finished() {
            for number in self.waits.remove(&token).unwrap_or_default() {
                if let Some(end) = self.under_way.part(number, at) {
                    self.under_way.end(number, end);
                }
            }
        }
        stepped
    }
}

impl BlockDevice for FtlDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, at: Time, request: Request) -> Ticket {
        match self.serve(at, &request) {
            Ok(Some(number)) => Ticket::Pending(number),
            Ok(None) => Ticket::Done(Completion { at, result: Ok(request.nothing_read()) }),
            Err(error) => Ticket::Done(Completion { at, result: Err(error) }),
        }
    }

    fn wait(&self, ticket: Ticket) -> Completion {
        match ticket {
            Ticket::Done(completion) => completion,
            Ticket::Pending(number) => self.state.lock().wait(number),
        }
    }

    fn is_done(&self, ticket: &Ticket) -> bool {
        match ticket {
            Ticket::Done(_) => true,
            Ticket::Pending(number) => self.state.lock().under_way.is_done(*number),
        }
    }

    fn next_done(&self, until: Time) -> Option<u64> {
        self.state.lock().next_done(until)
    }

    fn next_event(&self) -> Option<Time> {
        self.state.lock().next_time()
    }

    fn handles(&self) -> u8 {
        self.handles
    }

    fn keeps_contents(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_base::random::Random;
    use bimetal_media::Gather;
    use bimetal_media::nand::{Nand, NandProfile, Ordering, Payload};
    use bimetal_media::profile;

    fn device(scheme: &str, ordering: Ordering) -> FtlDevice {
        let part: NandProfile = profile::load("slc-2k").unwrap();
        let part = NandProfile { blocks: 64, channels: 2, ordering, ..part };
        FtlDevice::new(crate::open(scheme, Nand::new(part, 1, false, Payload::None), "").unwrap())
    }

    /// Random writes, one at a time, and then reads; the greatest latency of a write.
    fn work(device: &FtlDevice) -> u64 {
        let (pages, mut random) = (device.info().size_bytes / 2048, Random::new(1, "pages"));
        let (mut now, mut most) = (Time::ZERO, 0);
        let mut ask = |request| {
            let done = device.run(now, request);
            done.result.unwrap();
            most = most.max(done.at.0 - now.0);
            now = done.at;
        };
        let write = |page| Request::Write { offset: page * 2048, data: Gather::absent(2048), durable: false };
        (0..pages).for_each(|page| ask(write(page)));
        (0..3 * pages).for_each(|_| ask(write(random.below(pages))));
        (0..pages).for_each(|_| ask(Request::Read { offset: random.below(pages) * 2048, len: 2048 }));
        most
    }

    #[test]
    fn what_is_done_does_not_depend_on_when() {
        for scheme in crate::SCHEMES {
            let [in_order, background, off] =
                [Ordering::InOrder, Ordering::Background, Ordering::Off].map(|ordering| {
                    let device = device(scheme.name, ordering);
                    let most = work(&device);
                    let Report { ftl, nand, work, wear, .. } = device.report();
                    ((ftl, nand, work, wear.max), most)
                });
            assert_eq!(in_order.0, off.0, "{}", scheme.name);
            assert_eq!(background.0, off.0, "{}", scheme.name);
            assert_eq!(off.1, 0, "nothing takes time");
            assert!(background.1 > 0 && in_order.1 > 0);
        }
    }

    #[test]
    fn what_reads_disturb_is_moved_whenever_operations_are_done() {
        let [in_order, background, off] =
            [Ordering::InOrder, Ordering::Background, Ordering::Off].map(|ordering| {
                let part: NandProfile = profile::load("slc-2k").unwrap();
                let part = NandProfile { blocks: 64, channels: 2, ordering, ecc_bits: 8, ..part };
                let part = NandProfile { read_disturb_errors: 5e-6, refresh_percent: Some(10.0), ..part };
                let ftl = crate::open("page", Nand::new(part, 1, false, Payload::None), "").unwrap();
                let device = FtlDevice::new(ftl);
                work(&device);
                let Report { ftl, nand, work, .. } = device.report();
                (ftl, nand, work)
            });
        assert!(off.0.refreshed_blocks > 0 && off.2.refresh.copies > 0, "{off:?}");
        assert_eq!((in_order, background), (off, off));
    }

    #[test]
    fn no_write_waits_for_a_whole_reserve_to_be_cleaned() {
        let [in_order, background] =
            [Ordering::InOrder, Ordering::Background].map(|ordering| work(&device("page", ordering)));
        let copy = 15_000 + 200_000;
        // Some copies and an erase at most, beside its own program; in order all the copies of some blocks.
        assert!(background < 2_000_000 + 30 * copy, "{background}");
        assert!(in_order > 64 * copy, "{in_order}");
    }

    #[test]
    fn ranges_are_cut_into_the_pages_they_touch_and_cover() {
        assert_eq!(pages(512, 512, 4096), (0..1, 1..1));
        assert_eq!(pages(4095, 2, 4096), (0..2, 1..1));
        assert_eq!(pages(100, 10_000, 4096), (0..3, 1..2));
        assert_eq!(pages(100, 10, 4096), (0..1, 1..1));
        assert_eq!(pages(0, 8192, 4096), (0..2, 0..2));
    }
}
