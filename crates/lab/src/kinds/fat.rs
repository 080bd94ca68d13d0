//! FAT over a block device: played on only, as the kernel mounts FAT itself.

use super::{Kind, LiesOn};
use crate::replay::Args as ReplayArgs;
use crate::replay::files::{FLASH_BYTES, FatTree, Subject, caching, device, ftl};
use bimetal_base::Result;
use bimetal_base::memory::check_room;
use bimetal_base::runtime::Clock;
use bimetal_fat::{self as fat, Volume, layout::Width};
use bimetal_media::ram::Ram;
use std::sync::Arc;

/// What is under FAT, where nobody says.
const DEVICE: &str = "ssd-slc";
/// From this size on a FAT volume is FAT32.
const FAT32_BYTES: u64 = 300 << 20;

/// See [`super`].
pub const KIND: Kind = Kind {
    name: "fat",
    about: "FAT16 or FAT32 on a block device, for replay: the kernel mounts it itself",
    options: &[],
    access_times: false,
    lies_on: LiesOn::Block(DEVICE),
    mkfs: None,
    open: None,
    check: None,
    probe: None,
    play: Some(play),
};

fn play(clock: &Clock, args: &ReplayArgs) -> Result<Subject> {
    let bytes = args.device_size.unwrap_or(FLASH_BYTES);
    let profile = args.device.as_deref().unwrap_or(DEVICE);
    check_room("the contents of the volume", bytes)?;
    let image = Arc::new(Ram::new("volume", bytes));
    let device = device(profile, (ftl(args)?, caching(args)?), image, args.seed)?;
    let format = match bytes >= FAT32_BYTES {
        true => fat::Format { width: Width::Fat32, cluster_bytes: 4096, root_entries: 512 },
        false => {
            let cluster = (bytes / 60_000).next_power_of_two().clamp(512, 32_768) as u32;
            fat::Format { width: Width::Fat16, cluster_bytes: cluster, root_entries: 512 }
        }
    };
    let (now, medium) = (clock.now(), device.counted());
    let open = move || {
        let formatted = Volume::format(&*medium, now, &format)?;
        Volume::open(medium, formatted, fat::Options::default())
    };
    Ok(Subject::new(Arc::new(FatTree::new(clock, open)?), vec![("device", device)]))
}
