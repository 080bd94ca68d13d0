//! cmfs on the simulated media: the NAND array's rules, times and failures, NVRAM by the byte, and a clock that
//! both push on.
//!
//! The array says what an operation takes and whether it works; what pages hold is kept here, with their spare
//! areas. Pages of zeros are not kept, so that parts of many gigabytes can be filled.

use bimetal_base::memory::check_room;
use bimetal_base::time::Time;
use bimetal_base::units::show_size;
use bimetal_base::{Result as Checked, runtime};
use bimetal_media::nand::{Failure, Nand, NandCounts, NandProfile, Page, Payload, Tag};
use bimetal_media::nvram::{Nvram, NvramCounts, NvramProfile};
use cmfs_core::{Geometry, NandError, NvramError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The instant that the operations of one stack have reached: each begins when the one before is done.
#[derive(Clone, Default)]
pub struct Clock {
    reached: Arc<AtomicU64>,
    /// The stack idles until this clock's present, where there is one.
    runtime: Option<runtime::Clock>,
}

impl Clock {
    /// The instants of a stack that others ask in the time of `runtime`.
    pub fn on(runtime: runtime::Clock) -> Clock {
        Clock { runtime: Some(runtime), ..Clock::default() }
    }

    /// Now.
    pub fn now(&self) -> Time {
        let reached = Time(self.reached.load(Ordering::Relaxed));
        self.runtime.as_ref().map_or(reached, |runtime| reached.max(runtime.now()))
    }

    fn set(&self, time: Time) {
        self.reached.store(time.0, Ordering::Relaxed);
    }
}

/// What a page holds.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// Without the ones at its end.
    spare: Box<[u8]>,
    /// Empty: zeros.
    data: Box<[u8]>,
}

impl Kept {
    fn fill_spare(&self, spare: &mut [u8]) {
        let (used, rest) = spare.split_at_mut(self.spare.len());
        used.copy_from_slice(&self.spare);
        rest.fill(0xff);
    }
}

/// A simulated NAND part.
pub struct ModelNand {
    array: Nand,
    pages: Vec<Option<Kept>>,
    marked_bad: Vec<bool>,
    clock: Clock,
}

impl ModelNand {
    /// A new part; what is random about it comes from `seed`.
    ///
    /// # Errors
    /// Memory cannot hold what is known of its pages.
    pub fn new(profile: NandProfile, seed: u64, clock: Clock) -> Checked<ModelNand> {
        let shape = profile.geometry();
        let bytes = shape.pages() * size_of::<Option<Kept>>() as u64 + u64::from(shape.blocks());
        check_room(format_args!("the contents of {} ({})", profile.model, show_size(shape.bytes())), bytes)?;
        Ok(ModelNand {
            pages: vec![None; shape.pages() as usize],
            marked_bad: vec![false; shape.blocks() as usize],
            array: Nand::new(profile, seed, false, Payload::None),
            clock,
        })
    }

    /// What was done to it.
    pub fn counts(&self) -> NandCounts {
        self.array.counts()
    }

    /// All pages one after the other, each with its spare area, to `write`.
    ///
    /// # Errors
    /// As `write`'s.
    pub fn dump<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let shape = self.array.geometry();
        let (page, spare) = (shape.page_bytes as usize, shape.spare_bytes as usize);
        let (erased, zeros) = (vec![0xff; page + spare], vec![0; page]);
        for kept in &self.pages {
            match kept {
                None => write(&erased)?,
                Some(kept) => {
                    write(if kept.data.is_empty() { &zeros } else { &kept.data })?;
                    let mut whole = vec![0xff; spare];
                    kept.fill_spare(&mut whole);
                    write(&whole)?;
                }
            }
        }
        Ok(())
    }

    fn place(&self, page: u32) -> (u32, u32) {
        let pages = self.array.geometry().pages_per_block;
        (page / pages, page % pages)
    }

    /// What a read finds, once its time is spent.
    fn find(&self, page: u32) -> Result<Option<&Kept>, NandError> {
        let (block, index) = self.place(page);
        match self.array.page(block, index) {
            Page::Erased => Ok(None),
            Page::Torn => Err(NandError::Unreadable),
            Page::Programmed(_) => self.pages[page as usize].as_ref().map(Some).ok_or(NandError::Unreadable),
        }
    }
}

fn failed(failure: Failure) -> NandError {
    match failure {
        Failure::Unreadable => NandError::Unreadable,
        Failure::Program | Failure::Erase => NandError::Failed,
        Failure::PowerOff | Failure::Storage(_) => NandError::Gone,
    }
}

impl cmfs_core::Nand for ModelNand {
    fn geometry(&self) -> Geometry {
        let shape = self.array.geometry();
        Geometry {
            page_bytes: shape.page_bytes,
            spare_bytes: shape.spare_bytes,
            pages_per_block: shape.pages_per_block,
            blocks: shape.blocks(),
        }
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        Ok(self.array.is_bad(block) || self.marked_bad[block as usize])
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        self.marked_bad[block as usize] = true;
        Ok(())
    }

    fn correctable(&self) -> u32 {
        self.array.profile().ecc_bits
    }

    fn cell_bits(&self) -> u32 {
        self.array.profile().cell_bits
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        let (block, index) = self.place(page);
        let before = self.array.counts().corrected_bits;
        let read = self.array.read(self.clock.now(), block, index);
        self.clock.set(self.array.free_at(block).max(self.clock.now()));
        // An erased page reads as ones, which the array calls nothing.
        match (read, self.find(page)?) {
            (Err(Failure::PowerOff), _) => Err(NandError::Gone),
            (_, None) => {
                data.fill(0xff);
                spare.fill(0xff);
                Ok(0)
            }
            (Err(failure), Some(_)) => Err(failed(failure)),
            (Ok(_), Some(kept)) => {
                match kept.data.is_empty() {
                    true => data.fill(0),
                    false => data.copy_from_slice(&kept.data),
                }
                kept.fill_spare(spare);
                Ok((self.array.counts().corrected_bits - before) as u32)
            }
        }
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        let (block, index) = self.place(page);
        let (_, done) = self.array.read_spare(self.clock.now(), block, index).map_err(failed)?;
        self.clock.set(done);
        match self.find(page)? {
            None => spare.fill(0xff),
            Some(kept) => kept.fill_spare(spare),
        }
        Ok(0)
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        let (block, index) = self.place(page);
        let tag = Tag { owner: 0, sequence: 0 };
        let done = self.array.program(self.clock.now(), block, index, tag, &[]);
        self.clock.set(self.array.free_at(block).max(self.clock.now()));
        done.map_err(failed)?;
        let zeros = data.iter().all(|byte| *byte == 0);
        let data = if zeros { Box::default() } else { data.into() };
        // Most of a spare area is ones.
        let used = spare.iter().rposition(|byte| *byte != 0xff).map_or(0, |last| last + 1);
        self.pages[page as usize] = Some(Kept { spare: spare[..used].into(), data });
        Ok(())
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        let done = self.array.erase(self.clock.now(), block);
        self.clock.set(self.array.free_at(block).max(self.clock.now()));
        done.map_err(failed)?;
        let pages = self.array.geometry().pages_per_block as usize;
        self.pages[block as usize * pages..][..pages].fill(None);
        Ok(())
    }
}

/// A simulated NVRAM.
#[derive(Clone)]
pub struct ModelNvram {
    memory: Nvram,
    clock: Clock,
}

impl ModelNvram {
    /// A memory of `size_bytes` zeros.
    pub fn new(profile: NvramProfile, size_bytes: usize, clock: Clock) -> ModelNvram {
        ModelNvram { memory: Nvram::new(profile, size_bytes), clock }
    }

    /// What was done to it.
    pub fn counts(&self) -> NvramCounts {
        self.memory.counts()
    }
}

impl cmfs_core::Nvram for ModelNvram {
    fn size_bytes(&self) -> usize {
        self.memory.size_bytes()
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError> {
        let (read, done) = self.memory.read(self.clock.now(), offset, bytes.len()).map_err(|_| NvramError)?;
        bytes.copy_from_slice(read);
        self.clock.set(done);
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError> {
        let done = self.memory.write(self.clock.now(), offset, bytes).map_err(|_| NvramError)?;
        self.clock.set(done);
        Ok(())
    }

    fn persist(&mut self) -> Result<(), NvramError> {
        Ok(())
    }
}
