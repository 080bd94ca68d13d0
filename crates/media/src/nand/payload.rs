//! What the pages of a NAND array hold, apart from the model: nothing, bytes in memory, a sparse file, or the file
//! that holds the whole array.
//!
//! Counting needs no bytes at all. In memory, a block's bytes exist from its first program to its erase;
//! in a file, an erased block is a hole.

use super::super::guard::Claim;
use super::image::Image;
use crate::{BlockDevice, Gather, Request, as_advice};
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bytes::Bytes;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Where the bytes of pages are kept.
#[derive(Default)]
pub enum Payload {
    /// Nowhere: pages read as nothing.
    #[default]
    None,
    /// In memory, by block.
    Memory(Vec<Option<PagesOfBlock>>),
    /// On another device (a sparse file): physical page `p` at `p × page bytes`.
    Device(Arc<dyn BlockDevice>),
    /// In the file that the whole array lies in.
    #[doc(hidden)]
    Image(ImagePayload),
}

/// The bytes of a block's pages, each without the zeros at its end; `None`: never programmed.
#[doc(hidden)]
pub type PagesOfBlock = Box<[Option<Box<[u8]>>]>;

/// The file of an array.
pub struct ImagePayload(pub(super) Box<Image>);

/// The bytes of a page as they are when it is asked for them: in memory those that it had when it was looked up, in a file what is
/// at its place by then, which is another page's once the block was erased.
#[derive(Debug)]
pub struct Stored(Lies);

#[derive(Debug)]
enum Lies {
    Here(Bytes),
    InFile { claim: Arc<Claim>, offset: u64, len: usize },
}

impl Stored {
    pub(super) fn in_file(claim: Arc<Claim>, offset: u64, len: usize) -> Stored {
        Stored(Lies::InFile { claim, offset, len })
    }

    /// Fetches them.
    ///
    /// # Errors
    /// The host cannot read the file.
    pub fn fetch(self) -> Result<Bytes> {
        match self.0 {
            Lies::Here(bytes) => Ok(bytes),
            Lies::InFile { claim, offset, len } => {
                let mut bytes = vec![0; len];
                let read = claim.file().read_exact_at(&mut bytes, offset);
                read.map_err(|why| Error::io(claim.name(), why))?;
                Ok(bytes.into())
            }
        }
    }
}

impl From<Bytes> for Stored {
    fn from(bytes: Bytes) -> Stored {
        Stored(Lies::Here(bytes))
    }
}

/// Where one page lies.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub block: u32,
    pub page: u32,
    pub pages_per_block: u32,
    pub page_bytes: u32,
}

impl Place {
    pub(super) fn offset(self) -> u64 {
        let page = u64::from(self.block) * u64::from(self.pages_per_block) + u64::from(self.page);
        page * u64::from(self.page_bytes)
    }
}

impl Payload {
    /// Keeps bytes in memory.
    pub fn memory() -> Payload {
        Payload::Memory(Vec::new())
    }

    /// Whether bytes are kept at all.
    pub fn is_kept(&self) -> bool {
        !matches!(self, Payload::None)
    }

    /// Keeps `data` (a whole page) at `place`.
    pub(super) fn put(&mut self, place: Place, data: &[u8]) -> Result<()> {
        match self {
            Payload::None => Ok(()),
            Payload::Memory(blocks) => {
                let index = place.block as usize;
                if blocks.len() <= index {
                    blocks.resize_with(index + 1, || None);
                }
                let pages = place.pages_per_block as usize;
                let block = blocks[index].get_or_insert_with(|| vec![None; pages].into());
                let len = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                block[place.page as usize] = Some(data[..len].into());
                Ok(())
            }
            Payload::Device(device) => {
                let data = Gather::from_iter([Bytes::copy_from_slice(data)]);
                let request = Request::Write { offset: place.offset(), data, durable: false };
                device.run(Time::ZERO, request).result.map(drop)
            }
            Payload::Image(image) => image.0.put(place, data),
        }
    }

    /// The bytes at `place`; empty if none are kept.
    pub(super) fn get(&self, place: Place) -> Result<Bytes> {
        self.find(place)?.fetch()
    }

    /// Where they are.
    pub(super) fn find(&self, place: Place) -> Result<Stored> {
        Ok(match self {
            Payload::None => Bytes::new().into(),
            Payload::Memory(blocks) => {
                let block = blocks.get(place.block as usize).and_then(Option::as_ref);
                let kept = block.and_then(|block| block.get(place.page as usize)?.as_deref());
                let kept =
                    kept.ok_or_else(|| Error::corrupt("page", "it was never programmed", place.offset()))?;
                let mut bytes = Vec::with_capacity(place.page_bytes as usize);
                bytes.extend_from_slice(kept);
                bytes.resize(place.page_bytes as usize, 0);
                Bytes::from(bytes).into()
            }
            Payload::Device(device) => {
                let len = place.page_bytes as usize;
                device.run(Time::ZERO, Request::Read { offset: place.offset(), len }).result?.into()
            }
            Payload::Image(image) => image.0.find(place),
        })
    }

    /// Forgets the bytes of a block.
    pub(super) fn erase(&mut self, place: Place) -> Result<()> {
        match self {
            Payload::None => Ok(()),
            Payload::Memory(blocks) => {
                if let Some(block) = blocks.get_mut(place.block as usize) {
                    *block = None;
                }
                Ok(())
            }
            Payload::Device(device) => {
                let len = u64::from(place.pages_per_block) * u64::from(place.page_bytes);
                let discard = Request::Discard { offset: place.offset(), len };
                as_advice(device.run(Time::ZERO, discard).result).map(drop)
            }
            Payload::Image(image) => image.0.erase(place),
        }
    }

    /// The file of the array, if there is one.
    pub(super) fn image(&mut self) -> Option<&mut Image> {
        match self {
            Payload::Image(image) => Some(&mut image.0),
            _ => None,
        }
    }
}
