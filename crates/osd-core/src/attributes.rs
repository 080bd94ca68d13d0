//! Attributes: named values of an object.
//!
//! All attributes of an object are one list, sorted by name. A short list is an item of the tree beside the
//! onode; a longer one lies in the attribute fork, as contents do.

use super::layout::{Fork, Input, Key, OBJECT_BYTES_MAX, Output, Value};
use super::{Content, ObjectId, Store, Tree};
use bimetal_base::{Error, Result};

/// The longest name, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// What all names and values of an object may take, bytes.
pub const ALL_BYTES_MAX: usize = 1 << 20;

type List = Vec<(Vec<u8>, Vec<u8>)>;

fn read_list(bytes: &[u8]) -> Result<List> {
    let mut input = Input::new("the attributes of an object", bytes);
    let mut list = List::new();
    while !input.is_empty() {
        list.push((input.bytes()?.to_vec(), input.bytes()?.to_vec()));
    }
    Ok(list)
}

fn write_list(list: &List) -> Vec<u8> {
    let mut out = Output::default();
    for (name, value) in list {
        out.bytes(name);
        out.bytes(value);
    }
    out.0
}

impl Store {
    fn attributes(&mut self, object: u64) -> Result<List> {
        let len = self.index.onode(object)?.attribute_bytes;
        if len > 0 {
            return read_list(&self.read_fork(object, Fork::Attributes, 0, u64::from(len))?);
        }
        match self.index.tree.get(&mut self.index.media.flash, Key::attributes(object))? {
            Some(Value::Attributes(bytes)) => read_list(&bytes),
            _ => Ok(List::new()),
        }
    }

    fn set_attributes(&mut self, object: u64, list: &List) -> Result<()> {
        let bytes = write_list(list);
        if bytes.len() > ALL_BYTES_MAX {
            return Err(Error::NoSpace("an object's attributes"));
        }
        // Twenty-four bytes: the key and the length.
        let short = bytes.len() + 24 <= Tree::item_bytes_max(self.index.media.flash.page_bytes());
        if !short && !self.options.keep_bytes {
            return Err(Error::NotSupported);
        }
        let mut onode = self.index.onode(object)?;
        self.whole(|store| {
            if onode.attribute_bytes > 0 {
                store.keep_waiting(object, Fork::Attributes, 0, u64::MAX);
                store.buffer.drop_fork(object, Fork::Attributes);
                store.index.unmap(object, Fork::Attributes, 0, OBJECT_BYTES_MAX)?;
            }
            onode.changed = store.now();
            onode.attribute_bytes = if short { 0 } else { bytes.len() as u32 };
            let inline = (short && !bytes.is_empty()).then(|| Value::Attributes(bytes.as_slice().into()));
            store.index.set(Key::attributes(object), inline)?;
            store.index.set_onode(object, onode)?;
            if short { Ok(()) } else { store.put(object, Fork::Attributes, 0, Content::Bytes(&bytes)) }
        })
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoAttribute`]; it cannot be read.
    pub fn get_attribute(&mut self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        let list = self.attributes(id.0)?;
        let found = list.into_iter().find(|(its, _)| its == name);
        found.map(|(_, value)| value).ok_or(Error::NoAttribute)
    }

    /// Sets an attribute; its name is 1 to 255 bytes long.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Range`] for the name, [`Error::NoSpace`] when all attributes together pass
    /// 1 MiB, [`Error::NotSupported`] for long ones where no bytes are kept; those of the flash.
    pub fn set_attribute(&mut self, id: ObjectId, name: &[u8], value: &[u8]) -> Result<()> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::Range);
        }
        self.begin(value.len() as u64)?;
        let mut list = self.attributes(id.0)?;
        match list.binary_search_by(|(its, _)| its.as_slice().cmp(name)) {
            Ok(index) => list[index].1 = value.to_vec(),
            Err(index) => list.insert(index, (name.to_vec(), value.to_vec())),
        }
        self.set_attributes(id.0, &list)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NoAttribute`]; those of the flash.
    pub fn remove_attribute(&mut self, id: ObjectId, name: &[u8]) -> Result<()> {
        self.begin(0)?;
        let mut list = self.attributes(id.0)?;
        let index =
            list.binary_search_by(|(its, _)| its.as_slice().cmp(name)).map_err(|_| Error::NoAttribute)?;
        list.remove(index);
        self.set_attributes(id.0, &list)
    }

    /// Takes all attributes from an object, readable or not.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of the flash.
    pub fn drop_attributes(&mut self, id: ObjectId) -> Result<()> {
        self.begin(0)?;
        self.set_attributes(id.0, &List::new())
    }

    /// Shows the values that an attribute of an object had at any time, as far as pages of the index and the log that are
    /// still there say, until `visit` says false. Making a store leaves nothing of what was there before.
    ///
    /// Cost: all spare areas, and all pages of the index and the log. Attributes too long for the index are not among them.
    ///
    /// # Errors
    /// Those of the flash, but for what cannot be read.
    pub fn past_attributes(
        &mut self,
        id: ObjectId,
        name: &[u8],
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let media = &mut self.index.media;
        for segment in media.kept()..media.segments.count() as u32 {
            for value in media.said_of(segment, Key::attributes(id.0))? {
                let Value::Attributes(bytes) = value else { continue };
                let list = read_list(&bytes).unwrap_or_default();
                let found = list.iter().find(|(its, _)| its == name);
                if found.is_some_and(|(_, value)| !visit(value)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The names of all attributes, sorted.
    ///
    /// # Errors
    /// [`Error::NotFound`]; they cannot be read.
    pub fn list_attributes(&mut self, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        Ok(self.attributes(id.0)?.into_iter().map(|(name, _)| name).collect())
    }
}
