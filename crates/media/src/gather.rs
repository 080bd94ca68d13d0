//! What a write brings: its bytes in parts, or only how many they are, and how long they will live.
//!
//! A replay has no bytes to write and nobody reads what it wrote: its writes carry a length, and no layer down to the
//! medium allocates or copies anything for them. A device that keeps contents refuses such a write
//! ([`check`](super::check)).

use bytes::Bytes;
use std::ops::Deref;

/// The parts of a gathered write, written one after the other. Small, since a replay moves one a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gather {
    parts: Parts,
    handle: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Parts {
    /// So many bytes that are not here.
    Absent(u64),
    One(Bytes),
    Several(Vec<Bytes>),
}

impl Default for Parts {
    fn default() -> Parts {
        Parts::Absent(0)
    }
}

impl Gather {
    /// No parts yet.
    pub fn new() -> Gather {
        Gather::default()
    }

    /// `len` bytes that are not here, for models that keep no contents.
    pub fn absent(len: u64) -> Gather {
        Gather { parts: Parts::Absent(len), handle: 0 }
    }

    /// The same under placement handle `handle`: it lives about as long as what else is written under that handle, and
    /// not as long as the rest (handle 0). A device that can keeps them apart.
    pub fn placed(self, handle: u8) -> Gather {
        Gather { handle, ..self }
    }

    /// The placement handle; 0: none.
    pub fn handle(&self) -> u8 {
        self.handle
    }

    /// Adds a part behind the others.
    ///
    /// # Panics
    /// If the bytes so far are not here.
    pub fn push(&mut self, part: Bytes) {
        match &mut self.parts {
            Parts::Absent(0) => self.parts = Parts::One(part),
            Parts::Absent(_) => panic!("bytes behind bytes that are not here"),
            Parts::One(first) => self.parts = Parts::Several(vec![std::mem::take(first), part]),
            Parts::Several(parts) => parts.push(part),
        }
    }

    /// How many bytes are written.
    pub fn bytes(&self) -> u64 {
        match &self.parts {
            Parts::Absent(len) => *len,
            Parts::One(part) => part.len() as u64,
            Parts::Several(parts) => parts.iter().map(|part| part.len() as u64).sum(),
        }
    }

    /// Whether the bytes are not here.
    pub fn is_absent(&self) -> bool {
        matches!(self.parts, Parts::Absent(1..))
    }

    /// The parts.
    pub fn as_slice(&self) -> &[Bytes] {
        match &self.parts {
            Parts::Absent(_) => &[],
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Several(parts) => parts,
        }
    }

    /// The bytes in one piece; zeros for those that are not here.
    pub fn joined(self) -> Bytes {
        match self.parts {
            Parts::Absent(len) => zeros(len as usize),
            Parts::One(part) => part,
            Parts::Several(parts) => parts.concat().into(),
        }
    }
}

impl Deref for Gather {
    type Target = [Bytes];
    fn deref(&self) -> &[Bytes] {
        self.as_slice()
    }
}

impl FromIterator<Bytes> for Gather {
    fn from_iter<T: IntoIterator<Item = Bytes>>(parts: T) -> Gather {
        let mut gather = Gather::new();
        parts.into_iter().for_each(|part| gather.push(part));
        gather
    }
}

impl<'a> IntoIterator for &'a Gather {
    type Item = &'a Bytes;
    type IntoIter = std::slice::Iter<'a, Bytes>;
    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

/// What is read where nothing is kept: `len` zeros. Up to 1 MiB they are always the same ones.
pub fn zeros(len: usize) -> Bytes {
    static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
    match ZEROS.get(..len) {
        Some(zeros) => Bytes::from_static(zeros),
        None => Bytes::from(vec![0; len]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_one_piece_and_absent_bytes_are_zeros_with_a_length() {
        let two = Gather::from_iter([Bytes::from_static(b"ab"), Bytes::from_static(b"c")]);
        assert_eq!((two.bytes(), two.is_absent(), &two.clone().joined()[..]), (3, false, &b"abc"[..]));
        let absent = Gather::absent(5000).placed(1);
        assert_eq!((absent.bytes(), absent.is_absent(), absent.handle()), (5000, true, 1));
        assert_eq!(absent.joined(), vec![0; 5000]);
        assert_eq!(zeros(3 << 20).len(), 3 << 20);
        assert_eq!(zeros(4096).as_ptr(), zeros(512).as_ptr());
    }
}
