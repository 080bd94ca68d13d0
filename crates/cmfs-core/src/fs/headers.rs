//! Headers: what is known of an object, loaded when it is asked for, and written as one page.
//!
//! The parent that memory has of an object is always the one that its header on flash says, if there is one: it
//! changes when the header is written, and with it what the header replaces loses its name.

use super::volume::Volume;
use crate::error::{Error, Result};
use crate::header::{Header, Together};
use crate::media::{Nand, Nvram};
use crate::object::{DELETED, Details, Kind, NONE, Object, ROOT, Rest, UNLINKED};
use crate::tags::{Extra, Packed, SpareState};
use alloc::boxed::Box;

/// A name that moves together with another.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub id: u32,
    pub to: u32,
    pub name: Box<[u8]>,
    /// What goes in the same step; 0: nothing.
    pub shadows: u32,
}

impl<N: Nand, V: Nvram> Volume<N, V> {
    /// Name and attributes.
    pub fn details(&mut self, id: u32) -> Result<&mut Details> {
        self.load_details(id, false)?;
        self.objects.find_mut(id)?.details.as_deref_mut().ok_or(Error::Stale)
    }

    /// What only the header page has.
    pub fn rest(&mut self, id: u32) -> Result<&mut Rest> {
        self.load_details(id, true)?;
        self.ensure_whole(id)?;
        let details = self.objects.find_mut(id)?.details.as_deref_mut();
        details.and_then(|details| details.rest.as_mut()).ok_or(Error::Stale)
    }

    /// Loads what only the header says; with `rest`, what only the header page says.
    pub fn load_details(&mut self, id: u32, rest: bool) -> Result<()> {
        self.bring(id)?;
        let there = self.objects.find(id)?.details.as_ref().map(|details| details.rest.is_some());
        match there {
            Some(has_rest) if !rest || has_rest => return Ok(()),
            None if !rest && self.details_from_memory(id)? => return Ok(()),
            _ => {}
        }
        let (page, old) = (self.objects.find(id)?.header, self.objects.find(id)?.details.clone());
        if page == NONE {
            let object = self.objects.find(id)?;
            let details = match old {
                None if object.damaged => Box::new(Details::stand_in(id, object.kind)),
                old => old.unwrap_or_default(),
            };
            let filled = Details { rest: Some(details.rest.clone().unwrap_or_default()), ..*details };
            self.objects.find_mut(id)?.details = Some(Box::new(filled));
            return Ok(());
        }
        let fetched = self.log.flash.fetch_header(page, id);
        let header = match fetched.and_then(|()| Header::read(self.log.flash.page(), u64::from(page))) {
            Err(Error::Corrupt { .. }) => return self.stand_in(id),
            header => header?,
        };
        self.learn_size(id, &header)?;
        let mut loaded = Details::from_header(header);
        // What is newer in memory stays.
        if let Some(old) = old {
            loaded = Details { rest: loaded.rest, ..*old };
        }
        self.objects.find_mut(id)?.details = Some(Box::new(loaded));
        Ok(())
    }

    /// Loads an object's name and attributes from NVRAM, with those of its neighbours; whether they were there.
    fn details_from_memory(&mut self, id: u32) -> Result<bool> {
        // Where memory is bounded, neighbours are left alone.
        let (alone, of) = (self.objects.is_bounded(), id);
        for (id, details) in self.log.memory.details(id)?.into_iter().flatten() {
            if (id == of || !alone)
                && let Some(object) = self.objects.get_mut(id)
                && object.details.is_none()
            {
                object.details = Some(Box::new(details));
            }
        }
        Ok(self.objects.find(id)?.details.is_some())
    }

    /// An object whose header cannot be read stays to be seen, read and removed: the error is its own alone.
    fn stand_in(&mut self, id: u32) -> Result<()> {
        if self.objects.find(id)?.details.is_none() && !self.details_from_memory(id)? {
            let kind = self.objects.find(id)?.kind;
            self.objects.find_mut(id)?.details = Some(Box::new(Details::stand_in(id, kind)));
        }
        self.learn_size(id, &Header::default())?;
        let object = self.objects.find_mut(id)?;
        object.damaged = true;
        if let Some(details) = object.details.as_deref_mut() {
            details.rest = Some(Rest::default());
        }
        Ok(())
    }

    /// Fails for an object whose header cannot be read: what is not known of it would be lost if it was changed.
    pub fn ensure_whole(&self, id: u32) -> Result<()> {
        let object = self.objects.find(id)?;
        match object.damaged {
            true => Err(Error::Corrupt {
                what: "object header",
                why: "it cannot be read; the object can be read, renamed and removed",
                at: u64::from(object.header),
            }),
            false => Ok(()),
        }
    }

    /// Gives an object whose header cannot be read a new one, under the name it goes by now; whether it had to.
    pub fn repair(&mut self, id: u32) -> Result<bool> {
        self.load_details(id, true)?;
        let damaged = self.objects.find(id)?.damaged;
        if damaged {
            self.make_room()?;
            self.ensure_parent(id)?;
            self.write_header(id, false, 0)?;
        }
        Ok(damaged)
    }

    /// What the paper's records leave to the header. The last page may end behind the end that it knows; if it was written
    /// after the header, it says where the end is, as to a scan.
    fn learn_size(&mut self, id: u32, header: &Header) -> Result<()> {
        let object = self.objects.find(id)?;
        if !object.size_unknown {
            return Ok(());
        }
        let (end, mut size) = (object.map.end(), header.size.max(object.flash_size));
        if end > 0
            && end >= self.pages_of(size)
            && let Some(page) = object.map.get(end - 1)
            && (end > self.pages_of(size) || self.log.is_after(page, object.header))
        {
            let page_bytes = self.log.flash.geometry().page_bytes;
            let valid = match self.log.flash.read_tags(page)? {
                SpareState::Tagged(tags) => tags.bytes.min(page_bytes),
                SpareState::Erased | SpareState::Unreadable => page_bytes,
            };
            size = size.max(u64::from(end - 1) * u64::from(page_bytes) + u64::from(valid));
        }
        let object = self.objects.find_mut(id)?;
        (object.size, object.flash_size, object.target) = (size, size, header.target);
        object.size_unknown = false;
        Ok(())
    }

    /// Makes sure that the size of a file is known.
    pub fn ensure_size(&mut self, id: u32) -> Result<()> {
        if self.objects.find(id)?.size_unknown { self.load_details(id, true) } else { Ok(()) }
    }

    /// The paper's records do not say what links stand for.
    pub fn load_link_targets(&mut self) -> Result<()> {
        let is_link = |object: &Object| object.kind == Kind::HardLink && object.size_unknown;
        let links = self.objects.iter().filter(|(_, object)| is_link(object)).map(|(id, _)| id);
        for id in links.collect::<alloc::vec::Vec<u32>>() {
            match self.load_details(id, true) {
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The header of an object as it is now.
    fn header_of(&mut self, id: u32, parent: u32, shrink: bool, shadows: u32) -> Result<Header> {
        self.load_details(id, true)?;
        let object = self.objects.find(id)?;
        let details = object.details.as_deref().cloned().unwrap_or_default();
        let Rest { alias, attributes } = details.rest.unwrap_or_default();
        Ok(Header {
            kind: object.kind,
            parent: if id == ROOT { 0 } else { parent },
            name: details.name,
            mode: details.mode,
            uid: details.uid,
            gid: details.gid,
            atime: details.atime,
            mtime: details.mtime,
            ctime: details.ctime,
            crtime: details.crtime,
            size: object.size,
            target: object.target,
            alias,
            rdev: details.rdev,
            shadows,
            shrink,
            together: None,
            attributes,
        })
    }

    /// Writes an object's header, with what it replaces; the old one is dead then.
    pub fn write_header(&mut self, id: u32, shrink: bool, shadows: u32) -> Result<()> {
        let parent = self.objects.find(id)?.parent;
        self.write_header_in(id, parent, shrink, shadows)
    }

    /// As [`write_header`](Volume::write_header), in another directory. Until the header is on flash the NVRAM, which
    /// may be updated on the way, goes on saying where the object was; then what it replaces has no name any more.
    pub fn write_header_in(&mut self, id: u32, parent: u32, shrink: bool, shadows: u32) -> Result<()> {
        let header = self.header_of(id, parent, shrink, shadows)?;
        let page = self.append_header(id, &header)?;
        self.take_header(id, parent, page, shadows)
    }

    /// An object's header is on a new page now, in a directory.
    fn take_header(&mut self, id: u32, parent: u32, page: u32, shadows: u32) -> Result<()> {
        if let Some(replaced) = self.objects.get_mut(shadows) {
            replaced.parent = UNLINKED;
            self.log.memory.note_object(shadows);
        }
        let object = self.objects.find_mut(id)?;
        object.parent = parent;
        let old = core::mem::replace(&mut object.header, page);
        object.flash_size = object.size;
        object.damaged = false;
        self.objects.written(id);
        self.log.release(old);
        self.log.memory.note_header(id);
        // The deletion of what it replaces follows: with that alone the name would be lost.
        if shadows != 0 { self.log.flash.keep_order() } else { Ok(()) }
    }

    /// Writes the header again as flash knows the object: a size that was not written yet must not get there
    /// before its data.
    pub fn rewrite_header(&mut self, id: u32) -> Result<()> {
        self.load_details(id, true)?;
        self.ensure_whole(id)?;
        let (object, touched) = (self.objects.find(id)?, self.objects.touched(id));
        let (size, flash_size) = (object.size, object.flash_size);
        self.objects.find_mut(id)?.size = flash_size;
        let written = self.write_header(id, false, 0);
        self.objects.find_mut(id)?.size = size;
        if touched.is_some() || size != flash_size {
            self.objects.still_dirty(id, touched.unwrap_or(0));
        }
        written
    }

    /// Writes the headers of two objects that move in one step. Memory, and with it the NVRAM, goes on saying where
    /// both were until both are on flash; a replay that finds only one of them finishes the step.
    pub fn write_together(&mut self, moves: [&Move; 2]) -> Result<()> {
        let [one, two] = moves;
        let first = self.header_of_move(one, two)?;
        let second = self.header_of_move(two, one)?;
        let page = self.append_header(one.id, &first)?;
        let other = match self.append_header(two.id, &second) {
            Ok(other) => other,
            Err(error) => {
                self.log.release(page);
                return Err(error);
            }
        };
        for (moved, page) in [(one, page), (two, other)] {
            self.details(moved.id)?.name = moved.name.clone();
            self.take_header(moved.id, moved.to, page, moved.shadows)?;
        }
        Ok(())
    }

    fn header_of_move(&mut self, own: &Move, other: &Move) -> Result<Header> {
        let together = Together { object: other.id, parent: other.to, name: other.name.clone() };
        Ok(Header {
            name: own.name.clone(),
            together: Some(together),
            ..self.header_of(own.id, own.to, false, own.shadows)?
        })
    }

    fn append_header(&mut self, id: u32, header: &Header) -> Result<u32> {
        let mut page = alloc::vec![0; self.page_bytes() as usize];
        header.write(&mut page)?;
        let at = self.append(tags_of(id, header), &page)?;
        if header.shrink {
            self.log.blocks.guard(self.log.flash.geometry().block_of(at));
        }
        Ok(at)
    }

    /// Moves a header that cannot be read: what its tags say is known, and that the rest is lost is said in the new place,
    /// too.
    pub fn move_lost_header(&mut self, id: u32) -> Result<()> {
        self.ensure_size(id)?;
        let object = self.objects.find(id)?;
        let parent = if id == ROOT { 0 } else { object.parent };
        let (kind, size, target) = (object.kind, object.flash_size, object.target);
        let header = Header { kind, parent, size, target, ..Header::default() };
        let page = alloc::vec![0; self.page_bytes() as usize];
        let at = self.log.append_lost(&self.objects, tags_of(id, &header), &page)?;
        let old = core::mem::replace(&mut self.objects.find_mut(id)?.header, at);
        self.log.release(old);
        // Its name stays in the NVRAM, if it is there.
        self.log.memory.note_object(id);
        Ok(())
    }

    /// Says on flash that an object is gone. The header is dead at once, and keeps what is older dead.
    pub fn write_deletion(&mut self, id: u32) -> Result<()> {
        let header = Header {
            kind: self.objects.find(id)?.kind,
            parent: DELETED,
            name: b"deleted"[..].into(),
            shrink: true,
            mtime: self.now,
            ctime: self.now,
            ..Header::default()
        };
        let page = self.append_header(id, &header)?;
        self.log.release(page);
        Ok(())
    }
}

/// The tags of an object's header.
fn tags_of(id: u32, header: &Header) -> Packed {
    let size = if header.kind == Kind::File { header.size } else { 0 };
    let extra = Extra {
        parent: header.parent,
        kind: header.kind,
        size_or_target: if header.kind == Kind::HardLink { header.target } else { size as u32 },
        shrink: header.shrink,
        // Whoever scans has to read this page.
        shadows: header.shadows != 0 || header.together.is_some(),
    };
    Packed::header(0, id, &extra, size)
}
