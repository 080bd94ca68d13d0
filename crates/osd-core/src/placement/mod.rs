//! Placement: which segment a page is written to, so that what dies together lies together.
//!
//! A placement says how many streams there are (segments open for writing at the same time) and to which
//! one a piece goes. To add one, write a file with a [`Scheme`] constant and name it in [`SCHEMES`].

mod combined;
mod lifetime;
mod split;
mod split_atime;

use bimetal_base::Result;
use bimetal_base::options::{Entry, OptionSpec, Registry};
use bimetal_ftl::settings::Settings;

/// Makes a placement.
pub type Make = fn(&mut Settings) -> Result<Box<dyn Placement>>;

/// A placement: how to call it, what can be set, how to make one.
pub type Scheme = Entry<Make>;

/// All placements, by name.
pub const SCHEMES: Registry<Entry<Make>> = Registry {
    what: "placement",
    entries: &[&combined::SCHEME, &split::SCHEME, &split_atime::SCHEME, &lifetime::SCHEME],
};

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataClass {
    /// Bytes of an object that its user wrote, attributes too long for the index included.
    Data {
        /// What its owner said about the lifetime of its bytes: 0 nothing, else 1 (shortest) to 255.
        hint: u8,
    },
    /// Bytes of an object that the cleaner found alive.
    Survivor,
    /// Changes of onodes and of the index, since the last checkpoint.
    Log,
    /// Nodes of the index, and what else a checkpoint writes.
    Index,
    /// Access times.
    Access,
}

/// A placement.
pub trait Placement: Send {
    /// How many segments there are; told once, before anything else is asked.
    fn size(&mut self, _segments: u64) {}

    /// Told before data is placed: how many segments' worth of room objects leave.
    fn room(&mut self, _segments: u64) {}

    /// Segments open for writing at most.
    fn streams(&self) -> usize;

    /// Those of them that are written to now, from stream 0 on. What is open beyond is closed.
    fn streams_now(&self) -> usize {
        self.streams()
    }

    /// The stream for a piece, below [`streams_now`](Placement::streams_now).
    fn place(&self, what: DataClass) -> usize;

    /// If access times are journaled: how many entries until they are merged into onodes.
    fn journal_entries(&self) -> Option<u32> {
        None
    }

    /// If the journal is merged early where room is short: when it takes more than one part in so many of what the
    /// bytes of objects leave of the flash.
    fn journal_share(&self) -> Option<u64> {
        None
    }

    /// Whether one entry an object and page of the journal is enough: the newest.
    fn journals_once(&self) -> bool {
        false
    }
}

/// Makes the placement that `text` names, as `NAME` or `NAME:setting=value:…`.
pub fn make(text: &str) -> Result<Box<dyn Placement>> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let scheme = SCHEMES.find(name)?;
    let mut settings = Settings::parse(name, settings)?;
    let placement = (scheme.make)(&mut settings)?;
    settings.finish(scheme.options)?;
    Ok(placement)
}

/// Setting of placements that journal access times.
const ENTRIES: OptionSpec =
    OptionSpec::of("entries", "64..4194304", "1048576", "access times journaled until they are merged");

fn entries(settings: &mut Settings) -> Result<u32> {
    Ok(settings.number("entries", 64..=1 << 22, 1 << 20)? as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [DataClass; 5] {
        [
            DataClass::Data { hint: 0 },
            DataClass::Survivor,
            DataClass::Log,
            DataClass::Index,
            DataClass::Access,
        ]
    }

    #[test]
    fn every_placement_places_everything_within_its_streams() {
        for scheme in SCHEMES {
            let placement = make(scheme.name).unwrap();
            assert!(
                all().into_iter().all(|what| placement.place(what) < placement.streams()),
                "{}",
                scheme.name
            );
        }
    }

    #[test]
    fn each_separates_what_it_says() {
        let streams = |name| {
            let placement = make(name).unwrap();
            all().map(|what| placement.place(what))
        };
        assert_eq!(streams("combined"), [0, 0, 0, 0, 0]);
        assert_eq!(streams("split"), [0, 0, 1, 1, 1]);
        assert_eq!(streams("split-atime"), [0, 0, 1, 1, 2]);
        assert_eq!(streams("lifetime"), [2, 3, 0, 0, 1]);
        let mut lifetime = make("lifetime").unwrap();
        assert_eq!(lifetime.place(DataClass::Data { hint: 200 }), lifetime.place(DataClass::Survivor));
        lifetime.size(1000);
        let mut streams = |room| {
            lifetime.room(room);
            (lifetime.streams_now(), lifetime.place(DataClass::Survivor))
        };
        assert_eq!([127, 111, 127, 128].map(&mut streams), [(4, 3), (3, 2), (3, 2), (4, 3)]);
        let journals = |name| make(name).unwrap().journal_entries();
        assert_eq!((journals("split"), journals("split-atime")), (None, Some(1 << 20)));
        assert_eq!(journals("split-atime:entries=100"), Some(100));
    }

    #[test]
    fn unknown_names_and_settings_are_refused() {
        for (text, told) in [
            ("none", "there are combined"),
            ("split:entries=5", "no option"),
            ("split-atime:entries=5", "from 64"),
        ] {
            let error = make(text).err().unwrap().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
