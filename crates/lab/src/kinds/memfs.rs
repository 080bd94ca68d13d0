//! memfs: an empty file system in memory.

use super::options::{PREALLOC, half_of_memory, prealloc, value_of};
use super::volume::{Access, Prepared, VolumeArgs, me};
use super::{Kind, LiesOn};
use bimetal_base::options::OptionSpec;
use bimetal_base::units::{parse_size, show_size};
use bimetal_base::{Error, Result};
use bimetal_media::metered::Devices;
use bimetal_memfs::MemFs;
use bimetal_vfs::FileSystem;

/// See [`super`].
pub const KIND: Kind = Kind {
    name: "memfs",
    about: "an empty file system in memory, gone with the mount",
    options: &[
        OptionSpec {
            name: "size",
            value: Some("SIZE"),
            default: "half of the memory",
            help: "how much it may hold",
        },
        PREALLOC,
    ],
    access_times: false,
    lies_on: LiesOn::Nothing,
    mkfs: None,
    open: Some(open),
    check: None,
    probe: None,
    play: None,
};

struct Empty {
    size: u64,
    ahead: u64,
}

fn open<'a>(_: &'a VolumeArgs, _: Access, options: &[String]) -> Result<Box<dyn Prepared + 'a>> {
    let ahead = prealloc(options)?;
    let Some(text) = value_of(options, "size") else {
        let size = half_of_memory();
        return Ok(Box::new(Empty { size, ahead: ahead.min(size) }));
    };
    let size = parse_size(text)?;
    if size > 2 * half_of_memory() {
        return Err(Error::invalid(format!(
            "mount option size: {text} is more than this machine's memory, {}",
            show_size(2 * half_of_memory())
        )));
    }
    Ok(Box::new(Empty { size, ahead: ahead.min(size) }))
}

impl Prepared for Empty {
    fn look(&self) -> Result<Box<dyn FileSystem>> {
        Ok(Box::new(MemFs::new(self.size, &me())))
    }

    fn begin(self: Box<Self>) -> Result<(Box<dyn FileSystem>, Devices)> {
        Ok((self.look()?, Devices::new()))
    }

    fn memory_ahead(&self) -> u64 {
        self.ahead
    }
}
