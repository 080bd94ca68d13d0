//! The two media, as tables of callbacks.

use cmfs_core::ecc::Corrected;
use cmfs_core::{Geometry, Nand, NandError, Nvram, NvramError};
use core::ffi::{c_int, c_void};

/// A NAND part, as `struct cmfs_nand`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CNand {
    context: *mut c_void,
    page_bytes: u32,
    spare_bytes: u32,
    pages_per_block: u32,
    blocks: u32,
    is_bad: Option<unsafe extern "C" fn(*mut c_void, u32) -> c_int>,
    mark_bad: Option<unsafe extern "C" fn(*mut c_void, u32) -> c_int>,
    read: Option<unsafe extern "C" fn(*mut c_void, u32, *mut u8, *mut u8) -> c_int>,
    read_spare: Option<unsafe extern "C" fn(*mut c_void, u32, *mut u8) -> c_int>,
    program: Option<unsafe extern "C" fn(*mut c_void, u32, *const u8, *const u8) -> c_int>,
    erase: Option<unsafe extern "C" fn(*mut c_void, u32) -> c_int>,
    sync: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    correctable: u32,
    cell_bits: u32,
}

/// An NVRAM, as `struct cmfs_nvram`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CNvram {
    context: *mut c_void,
    size_bytes: usize,
    read: Option<unsafe extern "C" fn(*mut c_void, usize, *mut u8, usize) -> c_int>,
    write: Option<unsafe extern "C" fn(*mut c_void, usize, *const u8, usize) -> c_int>,
    persist: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

/// Reads return the number of corrected bits.
fn bits(code: c_int) -> Result<u32, NandError> {
    u32::try_from(code).or_else(|_| nand_result(code).map(|()| 0))
}

fn nand_result(code: c_int) -> Result<(), NandError> {
    match code {
        0 => Ok(()),
        -1 => Err(NandError::Unreadable),
        -2 => Err(NandError::Failed),
        _ => Err(NandError::Gone),
    }
}

impl CNand {
    /// Whether all callbacks are there that must be.
    pub fn is_complete(&self) -> bool {
        self.is_bad.is_some()
            && self.mark_bad.is_some()
            && self.read.is_some()
            && self.read_spare.is_some()
            && self.program.is_some()
            && self.erase.is_some()
    }
}

impl Nand for CNand {
    fn geometry(&self) -> Geometry {
        Geometry {
            page_bytes: self.page_bytes,
            spare_bytes: self.spare_bytes,
            pages_per_block: self.pages_per_block,
            blocks: self.blocks,
        }
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        let is_bad = self.is_bad.ok_or(NandError::Gone)?;
        // SAFETY: the header asks for callbacks that may be called with their context.
        match unsafe { is_bad(self.context, block) } {
            bad @ 0..=1 => Ok(bad == 1),
            code => nand_result(code).map(|()| false),
        }
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        let mark_bad = self.mark_bad.ok_or(NandError::Gone)?;
        // SAFETY: as above.
        nand_result(unsafe { mark_bad(self.context, block) })
    }

    fn correctable(&self) -> u32 {
        self.correctable
    }

    fn cell_bits(&self) -> u32 {
        self.cell_bits.max(1)
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        let read = self.read.ok_or(NandError::Gone)?;
        // SAFETY: as above; both buffers have the lengths of the geometry.
        bits(unsafe { read(self.context, page, data.as_mut_ptr(), spare.as_mut_ptr()) })
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        let read_spare = self.read_spare.ok_or(NandError::Gone)?;
        // SAFETY: as above.
        bits(unsafe { read_spare(self.context, page, spare.as_mut_ptr()) })
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        let program = self.program.ok_or(NandError::Gone)?;
        // SAFETY: as above.
        nand_result(unsafe { program(self.context, page, data.as_ptr(), spare.as_ptr()) })
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        let erase = self.erase.ok_or(NandError::Gone)?;
        // SAFETY: as above.
        nand_result(unsafe { erase(self.context, block) })
    }

    fn sync(&mut self) -> Result<(), NandError> {
        match self.sync {
            // SAFETY: as above.
            Some(sync) => nand_result(unsafe { sync(self.context) }),
            None => Ok(()),
        }
    }
}

/// A part as the file system sees it: as its driver has it, or corrected by software.
#[derive(Clone)]
pub enum Part {
    /// Its controller corrects.
    Plain(CNand),
    /// Its spare areas have codes of ours.
    Corrected(Corrected<CNand>),
}

impl Part {
    fn get(&self) -> &dyn Nand {
        match self {
            Part::Plain(nand) => nand,
            Part::Corrected(nand) => nand,
        }
    }

    fn get_mut(&mut self) -> &mut dyn Nand {
        match self {
            Part::Plain(nand) => nand,
            Part::Corrected(nand) => nand,
        }
    }
}

impl Nand for Part {
    fn geometry(&self) -> Geometry {
        self.get().geometry()
    }

    fn is_bad(&mut self, block: u32) -> Result<bool, NandError> {
        self.get_mut().is_bad(block)
    }

    fn mark_bad(&mut self, block: u32) -> Result<(), NandError> {
        self.get_mut().mark_bad(block)
    }

    fn correctable(&self) -> u32 {
        self.get().correctable()
    }

    fn cell_bits(&self) -> u32 {
        self.get().cell_bits()
    }

    fn read(&mut self, page: u32, data: &mut [u8], spare: &mut [u8]) -> Result<u32, NandError> {
        self.get_mut().read(page, data, spare)
    }

    fn read_spare(&mut self, page: u32, spare: &mut [u8]) -> Result<u32, NandError> {
        self.get_mut().read_spare(page, spare)
    }

    fn program(&mut self, page: u32, data: &[u8], spare: &[u8]) -> Result<(), NandError> {
        self.get_mut().program(page, data, spare)
    }

    fn erase(&mut self, block: u32) -> Result<(), NandError> {
        self.get_mut().erase(block)
    }

    fn sync(&mut self) -> Result<(), NandError> {
        self.get_mut().sync()
    }
}

fn nvram_result(code: c_int) -> Result<(), NvramError> {
    if code == 0 { Ok(()) } else { Err(NvramError) }
}

impl CNvram {
    /// Whether all callbacks are there.
    pub fn is_complete(&self) -> bool {
        self.read.is_some() && self.write.is_some() && self.persist.is_some()
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), NvramError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(NvramError),
        }
    }
}

impl Nvram for CNvram {
    fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn read(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), NvramError> {
        self.check(offset, bytes.len())?;
        let read = self.read.ok_or(NvramError)?;
        // SAFETY: the header asks for callbacks that may be called with their context; the range is inside.
        nvram_result(unsafe { read(self.context, offset, bytes.as_mut_ptr(), bytes.len()) })
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), NvramError> {
        self.check(offset, bytes.len())?;
        let write = self.write.ok_or(NvramError)?;
        // SAFETY: as above.
        nvram_result(unsafe { write(self.context, offset, bytes.as_ptr(), bytes.len()) })
    }

    fn persist(&mut self) -> Result<(), NvramError> {
        let persist = self.persist.ok_or(NvramError)?;
        // SAFETY: as above.
        nvram_result(unsafe { persist(self.context) })
    }
}
