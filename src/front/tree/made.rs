//! What a run has made: from which source each is, and where a source with several names went first. Whatever asks whether
//! something may be replaced, or be another name of what is there, asks this.

use crate::{Error, Result};
use std::collections::HashMap;
use std::hash::Hash;

/// The sources `S` and what was made of them: `T` tells it from all else at the target, `P` is where it is.
pub(super) struct Made<S, T, P> {
    source_of: HashMap<T, S>,
    first: HashMap<S, (T, P)>,
}

impl<S: Copy + Eq + Hash, T: Copy + Eq + Hash, P> Made<S, T, P> {
    pub fn new() -> Made<S, T, P> {
        Made { source_of: HashMap::new(), first: HashMap::new() }
    }

    /// `source` has become `made`.
    pub fn note(&mut self, source: S, made: T) {
        self.source_of.insert(made, source);
    }

    /// As [`note`](Self::note), of a source with more names, which become names of what is `place`d there.
    pub fn note_linked(&mut self, source: S, made: T, place: P) {
        self.note(source, made);
        self.first.insert(source, (made, place));
    }

    /// What a source with several names has become, and where that is.
    pub fn first(&self, source: S) -> Option<&(T, P)> {
        self.first.get(&source)
    }

    /// Whether what has the name of a source's copy is just that: nothing is left to do.
    ///
    /// Fails if it is the copy of another source, which would be lost.
    pub fn is_done(&self, source: S, there: T) -> Result<bool> {
        match self.source_of.get(&there) {
            None => Ok(false),
            Some(of) if *of == source => Ok(true),
            Some(_) => Err(Error::invalid(
                "its name is that of another file which was just copied (is upper case the same as lower case there?); that one \
                 stays, this one is not copied: give it a target of its own",
            )),
        }
    }
}
