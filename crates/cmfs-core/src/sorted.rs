//! Maps and sets as sorted vectors, which are small or grow at their end: a tree of the standard library is 5 KB of code for each
//! type of key and value. What is taken from the middle moves what is behind it.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::ops::{Bound, RangeBounds};

/// Sorts in place, in little code.
pub(crate) fn sort<T: Ord>(all: &mut Vec<T>) {
    *all = BinaryHeap::from(core::mem::take(all)).into_sorted_vec();
}

/// Gives the memory of a vector back that is nearly empty again.
pub(crate) fn give_back<T>(all: &mut Vec<T>) {
    if all.len() <= all.capacity() / 4 {
        all.shrink_to(all.len() * 2);
    }
}

/// Values by key, in the order of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map<K, V>(Vec<(K, V)>);

/// Keys, in their order.
pub(crate) type Set<K> = Map<K, ()>;

impl<K, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map(Vec::new())
    }
}

impl<K: Ord + Copy, V> Map<K, V> {
    pub const fn new() -> Map<K, V> {
        Map(Vec::new())
    }

    /// Where a key is, or would be.
    fn find(&self, key: &K) -> Result<usize, usize> {
        match self.0.last() {
            Some((last, _)) if *last < *key => Err(self.0.len()),
            _ => self.0.binary_search_by(|(other, _)| other.cmp(key)),
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes that it takes.
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(K, V)>()
    }

    /// Empties it, and gives its memory back.
    pub fn clear(&mut self) {
        self.0 = Vec::new();
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_ok()
    }

    /// Puts a value; the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(core::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// The value of a key, which is made if it is not there.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.0.insert(at, (key, V::default()));
            at
        });
        &mut self.0[at].1
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.0.remove(self.find(key).ok()?).1;
        give_back(&mut self.0);
        Some(value)
    }

    /// Takes out everything from a key on.
    pub fn split_off(&mut self, key: &K) -> Map<K, V> {
        let at = self.find(key).unwrap_or_else(|at| at);
        if at == self.0.len() { Map::new() } else { Map(self.0.split_off(at)) }
    }

    pub fn pop_first(&mut self) -> Option<(K, V)> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + ExactSizeIterator {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator {
        self.0.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub fn range(&self, range: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let from = match range.start_bound() {
            Bound::Included(key) => self.0.partition_point(|(other, _)| other < key),
            Bound::Excluded(key) => self.0.partition_point(|(other, _)| other <= key),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(key) => self.0.partition_point(|(other, _)| other <= key),
            Bound::Excluded(key) => self.0.partition_point(|(other, _)| other < key),
            Bound::Unbounded => self.0.len(),
        };
        self.0[from..to.max(from)].iter().map(|(key, value)| (key, value))
    }
}

impl<K: Ord + Copy> Set<K> {
    /// Puts a key in, if it is not there.
    pub fn add(&mut self, key: K) {
        self.insert(key, ());
    }
}

impl<K: Ord + Copy> Extend<K> for Set<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        keys.into_iter().for_each(|key| self.add(key));
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = alloc::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn it_agrees_with_a_tree() {
        let (mut map, mut tree, mut seed) = (Map::new(), BTreeMap::new(), 1u32);
        for step in 0..4000u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (key, low) = (seed >> 24, seed >> 8 & 0xff);
            match seed >> 16 & 7 {
                0 | 1 => assert_eq!(map.remove(&key), tree.remove(&key)),
                2 if step % 97 == 0 => {
                    let (gone, other) = (map.split_off(&key), tree.split_off(&key));
                    assert!(gone.into_iter().eq(other));
                }
                3 => assert_eq!(*map.or_default(key), *tree.entry(key).or_default()),
                4 if step % 31 == 0 => assert_eq!(map.pop_first(), tree.pop_first()),
                _ => assert_eq!(map.insert(key, step), tree.insert(key, step)),
            }
            assert_eq!((map.get(&low), map.len()), (tree.get(&low), tree.len()));
            assert!(map.range(low..).eq(tree.range(low..)));
            if low <= key {
                assert!(
                    map.range(low..=key).eq(tree.range(low..=key))
                        && map.range(low..key).eq(tree.range(low..key))
                );
            }
        }
        assert!(map.iter().eq(tree.iter()) && map.keys().rev().eq(tree.keys().rev()));
        let mut all: Vec<u32> = tree.into_values().collect();
        let mut sorted = all.clone();
        sort(&mut all);
        sorted.sort_unstable();
        assert_eq!(all, sorted);
    }
}
