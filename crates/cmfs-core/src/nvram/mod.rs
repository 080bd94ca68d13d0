//! What lies in NVRAM, and how it is brought up to date.

mod compact;
mod group;
mod heap;
mod names;
mod pages;
#[cfg_attr(not(feature = "paper"), path = "no_paper.rs")]
mod paper;

use crate::blocks::{Block, Blocks};
use crate::error::{Error, Result};
use crate::fs::{Layout, Names, UpdateReport};
use crate::map::SEGMENT;
use crate::media::{Geometry, Nvram, NvramError};
use crate::object::{Details, GROUP, Object, Objects};
use crate::sorted::Set;
use alloc::vec::Vec;
use heap::{Heap, Key};

/// Why the NVRAM cannot be mounted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Reading fails.
    Unreadable,
    /// There is nothing of ours, or of another layout or geometry.
    Foreign,
    /// An update was cut off, or records did not fit.
    Incomplete,
    /// A record is spoilt.
    Damaged,
}

impl Refusal {
    pub fn why(self) -> &'static str {
        match self {
            Refusal::Unreadable => "the NVRAM cannot be read",
            Refusal::Foreign => "the NVRAM holds nothing of this layout",
            Refusal::Incomplete => "the NVRAM was being updated, or is too small",
            Refusal::Damaged => "a record in the NVRAM is spoilt",
        }
    }
}

impl From<NvramError> for Refusal {
    fn from(_: NvramError) -> Refusal {
        Refusal::Unreadable
    }
}

impl From<NvramError> for Error {
    fn from(_: NvramError) -> Error {
        Error::Gone
    }
}

/// The random name of the part that an NVRAM belongs to, told from its first bytes (200 or more); `None` if they are not those of an
/// NVRAM of ours.
pub fn identity_of_nvram(front: &[u8]) -> Option<[u8; 16]> {
    compact::identity(front).or_else(|| paper::identity(front))
}

/// The shape of the part that an NVRAM belongs to, told from its first bytes (200 or more), where it says it: [the
/// paper's](crate::Layout::Paper) does not.
pub fn geometry_of_nvram(front: &[u8]) -> Option<Geometry> {
    compact::shape(front)
}

/// Whether an NVRAM that begins with these bytes (200 or more) is this part's, whole or spoilt: the part's random name is in one of
/// the places where a layout has it, but for a few bits; or it was made for a part, and what it holds was cut off before that was
/// said.
pub fn nvram_is_of(front: &[u8], identity: &[u8; 16]) -> bool {
    let distance = |at: usize| -> u32 {
        let name = front.get(at..at + 16).unwrap_or(&[0; 16]);
        name.iter().zip(identity).map(|(one, other)| (one ^ other).count_ones()).sum()
    };
    compact::NAMES_AT.into_iter().chain([paper::NAME_AT]).any(|at| distance(at) <= WRONG_BITS)
        || compact::is_begun(front)
}

/// Wrong bits of a name that is still one part's: those of two parts differ in 64 of 128, and in so few once in 10^18.
const WRONG_BITS: u32 = 16;

/// What an NVRAM says of the part it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairing {
    /// The part's random name.
    pub identity: [u8; 16],
    /// The session in which the NVRAM was formatted, by which it is known; never 0.
    pub memory: u32,
    /// The last session that was begun with it, or was about to be.
    pub session: u32,
    /// The page of that one's record.
    pub page: u32,
    /// The session in which the last update was written; 0: an older version wrote it, and did not say.
    pub updated: u32,
}

/// What an NVRAM says.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub pairing: Pairing,
    pub objects: Objects,
    pub blocks: Vec<Block>,
    pub sequence: u32,
    pub last_block: u32,
    /// The open block and its next page.
    pub open: Option<(u32, u32)>,
    /// The NAND was written since.
    pub modified: bool,
    /// Pages of a block that hold data, as it was written with.
    pub usable: u32,
    /// Objects that are left in the NVRAM and have contents there, but no header.
    pub headerless: Vec<u32>,
}

/// What is to be said.
pub(crate) struct Snapshot<'a> {
    pub objects: &'a Objects,
    pub blocks: &'a Blocks,
    pub changed_blocks: &'a Set<u32>,
    pub geometry: &'a Geometry,
    pub open: Option<(u32, u32)>,
    pub sequence: u32,
    pub last_block: u32,
    /// The session that is under way, or the last one.
    pub session: u32,
    /// Flash and memory agree: names can be written.
    pub clean: bool,
}

/// The NVRAM's half of a file system.
#[derive(Debug)]
pub(crate) struct Store<V> {
    heap: Heap<V>,
    layout: Layout,
    names: Names,
    geometry: Geometry,
    pairing: Pairing,
    /// Number of the last update.
    update: u64,
    modified: bool,
    overflow: bool,
    /// Objects whose record is out of date.
    objects: Set<u32>,
    /// Segments of maps whose record is out of date: object, segment.
    segments: Set<(u32, u32)>,
    /// Objects that the names records are true of.
    named: Bits,
    /// Groups with headers that are newer than the names record.
    unnamed: Set<u32>,
    /// Ends of records, to be given back at the next update.
    tombstones: Vec<Key>,
    /// All records have to be made anew.
    all: bool,
    /// How far a scan that writes records as it finds them has come.
    scan: Scan,
    /// Pages of a block that hold data, by the last update.
    usable: u32,
}

/// A scan in bounded memory: see [`Store::begin_scan`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Scan {
    /// There is none, or all that it found is said.
    #[default]
    None,
    /// Objects that were found are written down, and no superblock speaks of them yet.
    Running,
    /// All objects were found: the next update writes the rest, and the superblock.
    Over,
}

/// A set of object numbers.
#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn contains(&self, id: u32) -> bool {
        self.0.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    fn insert(&mut self, id: u32) {
        let at = id as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (id % 64);
    }

    fn remove(&mut self, id: u32) {
        if let Some(word) = self.0.get_mut(id as usize / 64) {
            *word &= !(1 << (id % 64));
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl<V: Nvram> Store<V> {
    fn new(device: V, layout: Layout, names: Names, geometry: &Geometry) -> Store<V> {
        let start = match layout {
            Layout::Compact => compact::HEAP_AT,
            Layout::Paper => paper::HEAP_AT,
        };
        Store {
            heap: Heap::new(device, start, layout == Layout::Paper),
            layout,
            names,
            geometry: *geometry,
            pairing: Pairing::default(),
            update: 0,
            modified: false,
            overflow: false,
            objects: Set::new(),
            segments: Set::new(),
            named: Bits::default(),
            unnamed: Set::new(),
            tombstones: Vec::new(),
            all: false,
            scan: Scan::None,
            usable: geometry.pages_per_block,
        }
    }

    /// An NVRAM that says nothing yet; the next update says it all.
    pub fn format(
        device: V,
        layout: Layout,
        names: Names,
        geometry: &Geometry,
        pairing: Pairing,
    ) -> Result<Store<V>> {
        let mut store = Store { pairing, ..Store::new(device, layout, names, geometry) };
        match layout {
            Layout::Compact => store.clear_compact()?,
            Layout::Paper => store.clear_paper()?,
        }
        store.all = true;
        store.modified = true;
        Ok(store)
    }

    /// Reads an NVRAM; if it cannot be mounted from, it is given back with the reason. With a bound of `memory_bytes` objects are
    /// left in there, to be [fetched](Store::fetch).
    pub fn open(
        device: V,
        layout: Layout,
        names: Names,
        geometry: &Geometry,
        memory_bytes: usize,
    ) -> Result<(Store<V>, State), (V, Refusal)> {
        let mut store = Store::new(device, layout, names, geometry);
        let state = match layout {
            Layout::Compact => store.load_compact(memory_bytes),
            Layout::Paper => store.load_paper(),
        };
        match state {
            Ok(state) => {
                store.pairing = state.pairing;
                store.modified = state.modified;
                Ok((store, state))
            }
            Err(refusal) => Err((store.into_device(), refusal)),
        }
    }

    /// The number by which it is known.
    pub fn memory(&self) -> u32 {
        self.pairing.memory
    }

    /// Says that a session is about to begin, and on which page of the NAND its record will be: one word.
    pub fn begin_session(&mut self, session: u32, page: u32) -> Result<()> {
        (self.pairing.session, self.pairing.page) = (session, page);
        let at = match self.layout {
            Layout::Compact => compact::SESSION_AT,
            Layout::Paper => paper::SESSION_AT,
        };
        let word = u64::from(session) << 32 | u64::from(page);
        self.heap.write(at, &word.to_le_bytes())?;
        Ok(self.heap.persist()?)
    }

    pub fn device_mut(&mut self) -> &mut V {
        self.heap.device_mut()
    }

    pub fn into_device(self) -> V {
        self.heap.into_device()
    }

    pub fn size_bytes(&self) -> usize {
        self.heap.size_bytes()
    }

    pub fn used_bytes(&self) -> usize {
        self.heap.used_bytes()
    }

    pub fn overflows(&self) -> bool {
        self.overflow
    }

    pub fn is_modified(&self) -> bool {
        self.modified
    }

    /// Words of the heap that are free.
    pub fn free_bytes(&self) -> usize {
        self.heap.free_words() * 8
    }

    /// Bytes of memory that its own tables take: what grows with the number of records.
    pub fn table_bytes(&self) -> usize {
        self.heap.table_bytes()
            + self.named.0.capacity() * 8
            + self.objects.heap_bytes()
            + self.segments.heap_bytes()
            + self.unnamed.heap_bytes()
    }

    /// Whether what the records say of an object is all there is to say of it.
    pub fn is_told(&self, id: u32) -> bool {
        let segments = self.segments.range((id, 0)..=(id, u32::MAX)).next();
        self.layout == Layout::Compact
            && !self.overflow
            && !self.all
            && segments.is_none()
            && !self.objects.contains_key(&id)
    }

    /// Visits those objects of a group that are wanted as the records say they are, in order; without `pages` those in
    /// records of their own are left out.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a record is not as it was when the NVRAM was read.
    pub fn fetch(
        &mut self,
        group: u32,
        pages: bool,
        wanted: &dyn Fn(u32) -> bool,
        visit: &mut dyn FnMut(u32, Object),
    ) -> Result<()> {
        self.fetch_compact(group, pages, wanted, visit).map_err(|refusal| match refusal {
            Refusal::Unreadable => Error::Gone,
            _ => Error::Corrupt {
                what: "NVRAM record",
                why: "it is spoilt; a mount without this NVRAM finds what it was of",
                at: u64::from(group),
            },
        })
    }

    pub fn note_object(&mut self, id: u32) {
        self.objects.add(id);
    }

    pub fn note_segment(&mut self, id: u32, segment: u32) {
        self.segments.add((id, segment));
        if segment == 0 || self.layout == Layout::Paper {
            self.objects.add(id);
        }
    }

    /// An object's header was written: what the names record says of it may not be true any more.
    pub fn note_header(&mut self, id: u32) {
        self.named.remove(id);
        self.unnamed.add(id / GROUP);
        self.objects.add(id);
    }

    /// All segments of an object from one on that have a record.
    pub fn note_segments_from(&mut self, id: u32, from: u32) {
        let known: Vec<u32> = self.heap.segments_of(id, from).collect();
        known.into_iter().for_each(|segment| self.note_segment(id, segment));
        self.note_segment(id, from);
    }

    /// From now on an update writes down what a scan found so far, so that it can go from memory, and nothing that would
    /// be believed: a power cut leaves an NVRAM that is being written anew. Only for one that was just formatted.
    pub fn begin_scan(&mut self) {
        (self.all, self.scan) = (false, Scan::Running);
    }

    /// The scan found all there is.
    pub fn end_scan(&mut self) {
        if self.scan == Scan::Running {
            self.scan = Scan::Over;
        }
    }

    /// Writes down what a scan found so far; where it does not fit, it is still to be said.
    fn commit_scan(&mut self, snapshot: &Snapshot) -> Result<UpdateReport> {
        let report = self.write_scan(snapshot)?;
        if !report.overflow {
            self.objects.clear();
            self.segments.clear();
        }
        Ok(report)
    }

    /// Says that the NAND is about to be written, if that is not said already.
    pub fn announce(&mut self) -> Result<()> {
        if self.modified {
            return Ok(());
        }
        match self.layout {
            Layout::Compact => self.announce_compact()?,
            Layout::Paper => self.announce_paper()?,
        }
        self.modified = true;
        Ok(())
    }

    /// Brings the NVRAM up to date.
    pub fn commit(&mut self, snapshot: &Snapshot) -> Result<UpdateReport> {
        // Where records did not fit, the NVRAM says nothing: with every block it is not tried again, only when all is on
        // flash, every few seconds and at the end.
        if self.overflow && !snapshot.clean {
            return Ok(UpdateReport { overflow: true, ..UpdateReport::default() });
        }
        if self.scan == Scan::Running {
            return self.commit_scan(snapshot);
        }
        let report = match self.layout {
            Layout::Compact => self.commit_compact(snapshot)?,
            Layout::Paper => self.commit_paper(snapshot)?,
        };
        self.overflow = report.overflow;
        // Where records did not fit, the next update tries with all of them again.
        self.all = report.overflow;
        self.scan = Scan::None;
        self.objects.clear();
        self.segments.clear();
        self.modified = report.overflow;
        Ok(report)
    }

    /// Names and attributes of an object and its neighbours, if they are there.
    pub fn names(&mut self, id: u32) -> Result<Option<Vec<(u32, Details)>>> {
        match self.layout {
            Layout::Compact if self.names == Names::Auto && self.named.contains(id) => {
                let all = self.load_names(id / GROUP)?;
                let named = |(id, _): &(u32, Details)| self.named.contains(*id);
                Ok(all.map(|all| all.into_iter().filter(named).collect()))
            }
            _ => Ok(None),
        }
    }
}

/// Takes bytes for the contents of each record of the compact layout.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn parse(bytes: &[u8], geometry: &Geometry) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let usable = geometry.pages_per_block - 1;
    let scale = pages::Scale::new(geometry, usable);
    let context = group::Context { scale, page_bytes: geometry.page_bytes };
    match first % 4 {
        0 => drop(group::read(rest, u32::from(first / 4), context, &mut |_| Some(()))),
        1 => drop(names::read_group(u32::from(first / 4), rest)),
        2 => drop(compact::read_blocks(rest, 1 + u32::from(first / 4), usable)),
        _ => {
            let count = usize::from(first / 4) * 8 + 1;
            drop(pages::read(&mut crate::bits::BitReader::new(rest), count, 0, scale));
        }
    }
}

/// The same NVRAM with checksums that are right, whatever it says.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn reseal<V: Nvram>(device: V, geometry: &Geometry) -> V {
    let mut store = Store::new(device, Layout::Compact, Names::Auto, geometry);
    // Where there is nothing to be made right it stays as it is.
    let _ = store.reseal();
    store.into_device()
}

/// How many entries of a segment a file of so many pages has.
fn entries_of(pages: u32, segment: u32) -> u32 {
    pages.saturating_sub(segment.saturating_mul(SEGMENT)).min(SEGMENT)
}
