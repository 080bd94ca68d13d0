//! What the array did, by what it was done for.

use serde::Serialize;

/// What an operation is done for, as the layer above says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// A page that the host reads or writes.
    #[default]
    Host,
    /// Room: cleaning, merges, what leaves a block that went bad.
    Cleaning,
    /// The map's own pages.
    Map,
    /// Wear levelling.
    Wear,
    /// What an SLC cache held, to where it stays.
    Folding,
    /// Pages without contents, so that what the host wrote can be programmed.
    Padding,
    /// What reads and time have brought into danger, to where it is safe again.
    Refresh,
}

/// Operations on pages and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Pages read, those of copies included.
    pub reads: u64,
    /// Pages programmed, those of copies included.
    pub programs: u64,
    /// Pages copied.
    pub copies: u64,
    /// Blocks erased.
    pub erases: u64,
}

impl Work {
    /// What was done since `before`.
    pub fn since(&self, before: &Work) -> Work {
        Work {
            reads: self.reads - before.reads,
            programs: self.programs - before.programs,
            copies: self.copies - before.copies,
            erases: self.erases - before.erases,
        }
    }

    fn and(self, other: Work) -> Work {
        Work {
            reads: self.reads + other.reads,
            programs: self.programs + other.programs,
            copies: self.copies + other.copies,
            erases: self.erases + other.erases,
        }
    }
}

/// What was done for each cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Causes {
    /// Pages that the host read or wrote.
    pub host: Work,
    /// Cleaning and merges.
    pub cleaning: Work,
    /// The map.
    pub map: Work,
    /// Wear levelling.
    pub wear_levelling: Work,
    /// Folding of an SLC cache.
    pub folding: Work,
    /// Pages without contents.
    pub padding: Work,
    /// Moves of what reads and time have brought into danger.
    pub refresh: Work,
}

impl Causes {
    /// What was done in all.
    pub fn total(&self) -> Work {
        let all = [self.cleaning, self.map, self.wear_levelling, self.folding, self.padding, self.refresh];
        all.into_iter().fold(self.host, Work::and)
    }

    /// Pages copied in all.
    pub(super) fn copies(&self) -> u64 {
        let Causes { host, cleaning, map, wear_levelling, folding, padding, refresh } = self;
        [host, cleaning, map, wear_levelling, folding, padding, refresh].iter().map(|work| work.copies).sum()
    }

    /// What was done since `before`.
    pub fn since(&self, before: &Causes) -> Causes {
        Causes {
            host: self.host.since(&before.host),
            cleaning: self.cleaning.since(&before.cleaning),
            map: self.map.since(&before.map),
            wear_levelling: self.wear_levelling.since(&before.wear_levelling),
            folding: self.folding.since(&before.folding),
            padding: self.padding.since(&before.padding),
            refresh: self.refresh.since(&before.refresh),
        }
    }

    pub(super) fn of(&mut self, cause: Cause) -> &mut Work {
        match cause {
            Cause::Host => &mut self.host,
            Cause::Cleaning => &mut self.cleaning,
            Cause::Map => &mut self.map,
            Cause::Wear => &mut self.wear_levelling,
            Cause::Folding => &mut self.folding,
            Cause::Padding => &mut self.padding,
            Cause::Refresh => &mut self.refresh,
        }
    }
}
