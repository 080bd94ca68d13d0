//! Checking: does the NAND say what memory says?

use super::Fs;
use crate::blocks::BlockState;
use crate::error::{Error, Result};
use crate::header::NAME_MAX;
use crate::media::{Nand, Nvram};
use crate::object::{Kind, LOST_FOUND, NONE, ROOT, numbered};
use crate::sorted;
use crate::tags::{PageKind, SpareState};
use alloc::vec::Vec;

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The object it concerns; 0 for none.
    pub object: u32,
    /// What is wrong.
    pub why: &'static str,
    /// The NAND page, or the block, or 0.
    pub at: u32,
}

/// Why a page that cannot be read is a problem: of an object's header, and of its data.
const HEADER_UNREADABLE: &str = "its header cannot be read";
const NO_HEADER: &str = "it has no header";
const TWIN: &str = "another entry of its directory has its name";
const UNREADABLE: &str = "a page cannot be read";
const UNTAGGED: &str = "a page has no tags";
const LOST: &str = "a page of the log is lost: of what it was of, an older state counts, or none";

impl Problem {
    /// Of no object, it is of a page, and not of a block.
    pub fn is_of_a_log_page(&self) -> bool {
        self.why == LOST
    }

    /// Only [`Fs::repair`] ends it, which gives up what nothing but the header says.
    pub fn is_of_a_header(&self) -> bool {
        [HEADER_UNREADABLE, NO_HEADER].contains(&self.why)
    }

    /// Two entries of a directory have one name: [`Fs::tell_apart`].
    pub fn is_of_a_name(&self) -> bool {
        self.why == TWIN
    }

    /// A page is gone: a scan would forget what it was of.
    pub fn is_of_a_lost_page(&self) -> bool {
        [HEADER_UNREADABLE, UNREADABLE, UNTAGGED].contains(&self.why)
    }
}

impl<N: Nand, V: Nvram> Fs<N, V> {
    /// Compares every page that memory points at with its tags, and the counts with the maps. With `data` pages
    /// are read whole and held against their checksums.
    pub fn check(&mut self, data: bool) -> Result<Vec<Problem>> {
        let mut problems = Vec::new();
        let mut live = alloc::vec![0u32; self.volume.log.flash.geometry().blocks as usize];
        for id in self.volume.objects.all_ids().collect::<Vec<u32>>() {
            self.begin([id])?;
            let parent = self.volume.objects.find(id)?.parent;
            self.volume.bring(parent)?;
            self.check_object(id, &mut problems);
            self.check_names(id, &mut problems)?;
            let pages = self.pages_of_object(id);
            for (page, expected) in pages {
                if let Some(count) = live.get_mut(self.volume.log.flash.geometry().block_of(page) as usize) {
                    *count += 1;
                }
                if let Some(why) = self.check_page(page, id, expected, data)? {
                    problems.push(Problem { object: id, why, at: page });
                }
            }
        }
        for page in self.report.lost.clone() {
            if self.is_lost(page)? {
                problems.push(Problem { object: 0, why: LOST, at: page });
            }
        }
        for (block, count) in (0u32..).zip(live) {
            let entry = self.volume.log.blocks.get(block);
            let idle = matches!(entry.state, BlockState::Erased | BlockState::Emptied | BlockState::Erasable);
            if entry.live != count {
                problems.push(Problem {
                    object: 0,
                    why: "a block's count of live pages is wrong",
                    at: block,
                });
            }
            if idle && count > 0 {
                problems.push(Problem { object: 0, why: "a block that is free has live pages", at: block });
            }
        }
        Ok(problems)
    }

    /// Whether a page that a scan could not read may have been of something: its block was not erased since, nor when
    /// the power went. A block of which nothing is live and that begins with an erased page may have been.
    fn is_lost(&mut self, page: u32) -> Result<bool> {
        let log = &mut self.volume.log;
        let block = log.flash.geometry().block_of(page);
        Ok(match log.blocks.get(block).state {
            BlockState::Full => true,
            BlockState::Emptied => log.flash.first_tags(block)? != SpareState::Erased,
            _ => false,
        })
    }

    fn check_object(&self, id: u32, problems: &mut Vec<Problem>) {
        let Some(object) = self.volume.objects.get(id) else { return };
        let mut problem = |why| problems.push(Problem { object: id, why, at: 0 });
        let named = object.is_named() && id != ROOT;
        let dir = self.volume.objects.get(object.parent).and_then(|parent| parent.dir.as_deref());
        if named && !dir.is_some_and(|dir| !dir.is_loaded() || dir.contains(id)) {
            problem("it is not in its directory");
        }
        if named && object.kind == Kind::HardLink && !self.volume.objects.exists(object.target) {
            problem("it is a link to nothing");
        }
        if object.kind == Kind::File
            && !object.size_unknown
            && object.map.end() > self.volume.pages_of(object.size)
        {
            problem("it has pages behind its end");
        }
        if object.header == NONE && named && id > LOST_FOUND && !self.volume.objects.is_dirty(id) {
            problem(NO_HEADER);
        }
    }

    /// No two entries of a directory have one name.
    fn check_names(&mut self, dir: u32, problems: &mut Vec<Problem>) -> Result<()> {
        let twins = self.twins(dir)?;
        problems.extend(twins.into_iter().map(|object| Problem { object, why: TWIN, at: 0 }));
        Ok(())
    }

    /// The entries of a directory whose name another one has, too, whose header is later.
    fn twins(&mut self, dir: u32) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        if self.volume.objects.find(dir)?.dir.is_none() {
            return Ok(found);
        }
        // By what names are now, not by what they were when they were loaded.
        self.volume.objects.dir_mut(dir)?.forget_names();
        self.volume.load_names(dir)?;
        let mut keys = self.volume.objects.dir(dir)?.keys();
        sorted::sort(&mut keys);
        // Of different names few have one key.
        for same in keys.chunk_by(|one, two| one.0 == two.0).filter(|same| same.len() > 1) {
            let mut names: Vec<(Vec<u8>, u32)> = Vec::new();
            for (_, id) in same {
                self.volume.show(*id)?;
                let name = Vec::from(self.volume.objects.name_of(*id));
                let Some(known) = names.iter().position(|(known, _)| *known == name) else {
                    names.push((name, *id));
                    continue;
                };
                let is_later = self.written_at(*id) > self.written_at(names[known].1);
                found.push(if is_later { core::mem::replace(&mut names[known].1, *id) } else { *id });
            }
        }
        Ok(found)
    }

    /// Where in the log an object's header is; what is not written yet comes last.
    fn written_at(&self, id: u32) -> (u32, u32) {
        let header = self.volume.objects.get(id).map_or(NONE, |object| object.header);
        let log = &self.volume.log;
        match header {
            NONE => (u32::MAX, u32::MAX),
            page => (log.blocks.get(log.flash.geometry().block_of(page)).sequence, page),
        }
    }

    /// Gives entries whose name another one of their directory has a name of their own: the number of the object behind it.
    /// The one whose header was written last keeps the name. How many got one.
    ///
    /// # Errors
    /// There is no room, or a name cannot be read.
    pub fn tell_apart(&mut self) -> Result<u32> {
        let mut told = 0;
        for dir in self.volume.objects.all_ids().collect::<Vec<u32>>() {
            self.begin([dir])?;
            if self.volume.objects.get(dir).is_none_or(|object| object.dir.is_none()) {
                continue;
            }
            for id in self.twins(dir)? {
                self.begin([dir, id])?;
                let name = self.free_name(dir, id)?;
                self.volume.move_entry(id, dir, dir, &name, 0)?;
                told += 1;
            }
        }
        Ok(told)
    }

    fn free_name(&mut self, dir: u32, id: u32) -> Result<Vec<u8>> {
        self.volume.show(id)?;
        let old = Vec::from(self.volume.objects.name_of(id));
        let mut number = id;
        loop {
            let end = numbered(b"~", number);
            let name = [&old[..old.len().min(NAME_MAX - end.len())], &end].concat();
            match self.lookup(dir, &name) {
                Err(Error::NotFound) => return Ok(name),
                Ok(_) => number = number.wrapping_add(1),
                Err(error) => return Err(error),
            }
        }
    }

    /// The pages of an object: its header (`None`), and its data by index.
    fn pages_of_object(&self, id: u32) -> Vec<(u32, Option<u32>)> {
        let Some(object) = self.volume.objects.get(id) else { return Vec::new() };
        let header = (object.header != NONE).then_some((object.header, None));
        header.into_iter().chain(object.map.iter().map(|(index, page)| (page, Some(index)))).collect()
    }

    fn check_page(
        &mut self,
        page: u32,
        id: u32,
        index: Option<u32>,
        data: bool,
    ) -> Result<Option<&'static str>> {
        if u64::from(page) >= self.volume.log.flash.geometry().pages() {
            return Ok(Some("it points past the part's end"));
        }
        let tags = if data {
            match self.volume.log.flash.fetch(page) {
                Ok(tags) => SpareState::Tagged(tags),
                Err(Error::Gone) => return Err(Error::Gone),
                Err(_) => return Ok(Some(if index.is_none() { HEADER_UNREADABLE } else { UNREADABLE })),
            }
        } else {
            self.volume.log.flash.read_tags(page)?
        };
        let SpareState::Tagged(tags) = tags else { return Ok(Some(UNTAGGED)) };
        let agrees = match (tags.kind(), index) {
            (PageKind::Header { object, .. }, None) => object == id,
            (PageKind::Data { object, index: own, bytes }, Some(index)) => {
                object == id && own == index && bytes > 0
            }
            _ => false,
        };
        Ok((!agrees).then_some("a page is another one by its tags"))
    }
}
