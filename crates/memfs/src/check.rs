//! Whether the structure is what it should be.

use super::{Body, Kind, MemFs, ROOT};
use std::collections::HashSet;

impl MemFs {
    /// Checks everything the page of this package promises of the structure, for tests.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check_invariants(&self) {
        let state = self.state.lock();
        let mut pages = 0;
        let mut seen = HashSet::new();
        for (id, node) in state.nodes.iter() {
            pages += node.pages();
            let names = state.nodes.iter().filter_map(|(dir, _)| state.dir(dir).ok().map(|list| (dir, list)));
            let count =
                names.flat_map(|(_, list)| list.after(0)).filter(|(_, _, target)| target.id == id).count();
            let expected = match &node.body {
                Body::Dir(dir) if node.nlink > 0 => {
                    assert!(id == ROOT || count == 1, "directory {id:?} has {count} names");
                    2 + dir.after(0).filter(|(_, _, target)| target.kind == Kind::Dir).count()
                }
                Body::Dir(_) => 0,
                _ => count,
            };
            assert_eq!(node.nlink as usize, expected, "links of {id:?}");
            assert!(seen.insert(id));
        }
        assert_eq!(pages, state.pages_used, "pages in use");
    }
}
