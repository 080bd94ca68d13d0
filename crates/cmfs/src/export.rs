//! An image of a volume as `mkyaffs2image` makes them: each object's header and pages once, directories first.
//!
//! Tools that unpack such images (`unyaffs`) cannot read the flash of a live file system, where objects have many
//! versions and headers carry their essence in the tags. Here tags begin at the first spare byte, headers are
//! plain, every block has the lowest sequence number, and objects are numbered from 257 on.

use super::error;
use super::mounted::{Memory, Part};
use bimetal_base::{Error, Result};
use bimetal_media::guard;
use cmfs_core::header::Header;
use cmfs_core::tags::{Packed, SEQUENCE_LOWEST, TagPlace};
use cmfs_core::{Fs, Kind, ROOT};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Byte count of a plain header.
const PLAIN_BYTES: u32 = 0xffff;
/// The first number of an object of an image.
const FIRST_ID: u32 = 257;

struct Export<'a> {
    fs: &'a mut Fs<Part, Memory>,
    out: BufWriter<&'a File>,
    /// Numbers in the image of objects written.
    numbers: FxHashMap<u32, u32>,
    next: u32,
    page: Vec<u8>,
    spare: Vec<u8>,
    path: String,
}

/// Writes the image; how many objects.
///
/// # Errors
/// Something cannot be read or written.
pub fn write_image(fs: &mut Fs<Part, Memory>, path: &Path) -> Result<u32> {
    guard::whole(path, |file| write(fs, file, path))
}

fn write(fs: &mut Fs<Part, Memory>, file: &File, path: &Path) -> Result<u32> {
    let shape = cmfs_core::Nand::geometry(fs.nand());
    let mut export = Export {
        out: BufWriter::new(file),
        numbers: FxHashMap::default(),
        next: FIRST_ID,
        page: vec![0xff; shape.page_bytes as usize],
        spare: vec![0xff; shape.spare_bytes as usize],
        path: path.display().to_string(),
        fs,
    };
    export.numbers.insert(ROOT, ROOT);
    export.object(ROOT, ROOT, b"", ROOT)?;
    export.below(ROOT, ROOT)?;
    let count = export.next - FIRST_ID + 1;
    export.out.flush().map_err(|why| Error::io(path.display(), why))?;
    Ok(count)
}

impl Export<'_> {
    fn put(&mut self, object: u32, chunk: u32, bytes: u32) -> Result<()> {
        let tags = Packed { sequence: SEQUENCE_LOWEST, object, chunk, bytes };
        TagPlace::IMAGE.write(&tags, &self.page, &mut self.spare);
        let written = self.out.write_all(&self.page).and_then(|()| self.out.write_all(&self.spare));
        written.map_err(|why| Error::io(&self.path, why))
    }

    /// Everything below a directory that is in the image already, as `number`: a directory before what is in it.
    fn below(&mut self, dir: u32, number: u32) -> Result<()> {
        let mut todo = vec![(dir, number)];
        while let Some((dir, number)) = todo.pop() {
            let mut entries: Vec<(u32, Vec<u8>)> = Vec::new();
            let mut take = |entry: cmfs_core::Entry| {
                entries.push((entry.id, entry.name.to_vec()));
                true
            };
            self.fs.list(dir, 0, &mut take).map_err(error)?;
            for (id, name) in entries {
                let own = self.next;
                self.next += 1;
                if let Some(target) = self.numbers.get(&id).copied() {
                    self.link(own, number, &name, target)?;
                    continue;
                }
                self.numbers.insert(id, own);
                self.object(id, own, &name, number)?;
                if self.fs.attr(id).map_err(error)?.kind == Kind::Dir {
                    todo.push((id, own));
                }
            }
        }
        Ok(())
    }

    fn link(&mut self, number: u32, parent: u32, name: &[u8], target: u32) -> Result<()> {
        let header = Header { kind: Kind::HardLink, parent, name: name.into(), target, ..Header::default() };
        header.write(&mut self.page).map_err(error)?;
        self.put(number, 0, PLAIN_BYTES)
    }

    fn object(&mut self, id: u32, number: u32, name: &[u8], parent: u32) -> Result<()> {
        let attr = self.fs.attr(id).map_err(error)?;
        let alias =
            if attr.kind == Kind::Symlink { self.fs.read_link(id).map_err(error)? } else { Vec::new() };
        let mut attributes = Vec::new();
        for name in self.fs.attributes(id).map_err(error)? {
            let value = self.fs.attribute(id, &name).map_err(error)?;
            attributes.push((name.into(), value.into()));
        }
        let header = Header {
            kind: attr.kind,
            parent,
            name: name.into(),
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            crtime: attr.crtime,
            size: attr.size,
            alias: alias.into(),
            rdev: attr.rdev,
            attributes,
            ..Header::default()
        };
        header.write(&mut self.page).map_err(error)?;
        self.put(number, 0, PLAIN_BYTES)?;
        if attr.kind == Kind::File {
            self.contents(id, number, attr.size)?;
        }
        Ok(())
    }

    /// A file's pages, holes as pages of zeros.
    fn contents(&mut self, id: u32, number: u32, size: u64) -> Result<()> {
        let page_bytes = self.page.len() as u64;
        for index in 0..size.div_ceil(page_bytes) {
            let offset = index * page_bytes;
            let mut page = std::mem::take(&mut self.page);
            page.fill(0xff);
            let read = self.fs.read(id, offset, &mut page).map_err(error);
            self.page = page;
            self.put(number, index as u32 + 1, read? as u32)?;
        }
        Ok(())
    }
}
