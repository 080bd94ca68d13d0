//! The clean extents of a section, and those of them that the device has not been told of.

use super::super::bits::Pool;

/// Clean extents.
#[derive(Debug)]
pub(super) struct Clean {
    all: Pool,
    /// Those that were in use since the device was told that it need not keep them; `None` where it is not told by itself.
    untold: Option<Pool>,
}

impl Clean {
    /// All extents, of which nothing is told.
    pub fn full(extents: u32) -> Clean {
        Clean { all: Pool::full(extents), untold: None }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.all.heap_bytes() + self.untold.as_ref().map_or(0, Pool::heap_bytes)
    }

    pub fn len(&self) -> u32 {
        self.all.len()
    }

    #[cfg(test)]
    pub fn contains(&self, extent: u32) -> bool {
        self.all.contains(extent)
    }

    /// Takes one out.
    pub fn take(&mut self) -> Option<u32> {
        let extent = self.all.take()?;
        self.told(extent);
        Some(extent)
    }

    /// Takes one out; whether it was in.
    pub fn remove(&mut self, extent: u32) -> bool {
        self.told(extent);
        self.all.remove(extent)
    }

    /// Puts one in that was in use.
    pub fn insert(&mut self, extent: u32) {
        self.all.insert(extent);
        if let Some(untold) = &mut self.untold {
            untold.insert(extent);
        }
    }

    /// The first from a number on.
    pub fn next_from(&self, extent: u32) -> Option<u32> {
        self.all.next_from(extent)
    }

    /// From now on the device is told of each; it knows of none.
    pub fn tell(&mut self) {
        self.untold = Some(self.all.copy());
    }

    /// The first that the device does not know of.
    pub fn next_untold(&self) -> Option<u32> {
        self.untold.as_ref()?.next_from(0)
    }

    /// Whether the device does not know of one.
    pub fn is_untold(&self, extent: u32) -> bool {
        self.untold.as_ref().is_some_and(|untold| untold.contains(extent))
    }

    /// How many it does not know of.
    pub fn count_untold(&self) -> u32 {
        self.untold.as_ref().map_or(0, Pool::len)
    }

    /// The device knows of one that is clean, or need not.
    pub fn told(&mut self, extent: u32) {
        if let Some(untold) = &mut self.untold {
            untold.remove(extent);
        }
    }
}
