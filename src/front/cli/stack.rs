//! What a stack file says to `mount` and `export`.

use super::volumes::VolumeArgs;
use crate::front::stack::file::{ByteRange, DeviceKeys, Size, StackFile, Text};
use crate::front::stack::{Caching, Contents, Layers, Medium, NONE};
use crate::media::BlockDevice;
use crate::media::paced::Paced;
use crate::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Requests to a model without pages are counted in so many bytes.
const PAGE_BYTES: u64 = 4096;
/// A write cache's memory where its size is not said, bytes.
const NVRAM_BYTES: u64 = 128 << 10;

/// What the halves of a volume are like, where a stack file says it.
#[derive(Clone, Debug, Default)]
pub struct Models {
    /// The SSD half.
    pub ssd: Option<Model>,
    /// The disk half.
    pub disk: Option<Model>,
}

/// A device that a half is to be like.
#[derive(Clone, Debug)]
pub struct Model {
    profile: String,
    ftl: Option<String>,
    seed: u64,
}

impl Model {
    fn of(device: &DeviceKeys, seed: u64) -> Option<Model> {
        let profile = device.profile.clone().filter(|profile| profile != NONE)?;
        Some(Model { profile, ftl: device.ftl.as_ref().map(ToString::to_string), seed })
    }

    /// The device that is like it, in real time, with its bytes on `storage`.
    ///
    /// # Errors
    /// There is no such device, or not on `storage`.
    pub fn over(&self, storage: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>> {
        let medium = Medium::framed(&self.profile, self.ftl.as_deref())?;
        let stack = medium.build(Contents::On(storage), None, PAGE_BYTES, self.seed)?;
        Ok(Arc::new(Paced::new(stack.device)))
    }
}

/// Takes the file system that a stack file describes, and its devices, for a volume; its mount options.
///
/// # Errors
/// It describes none, or one that cannot be mounted.
pub(super) fn to_mount(stack: &StackFile, volume: &mut VolumeArgs) -> Result<Vec<String>> {
    let Some(fs) = &stack.fs else {
        return Err(Error::invalid(
            "fs: the stack file has no [fs] table with a kind, so there is nothing to mount",
        ));
    };
    volume.kind.clone_from(&fs.kind);
    match fs.kind.as_str() {
        "nfhybrid" => {
            let named = stack.ssd.image.clone();
            volume.ssd = named.or(volume.ssd.take()).filter(|_| !volume.without_ssd);
            volume.disk = stack.disk.image.clone().or(volume.disk.take());
            (volume.nand, volume.nvram) = (None, None);
            volume.models =
                Models { ssd: Model::of(&stack.ssd, stack.seed), disk: Model::of(&stack.disk, stack.seed) };
        }
        "cmfs" | "osd" => {
            volume.nand = stack.device.image.clone().or(volume.nand.take());
            let nvram = stack.nvram.as_ref().and_then(|nvram| nvram.image.clone());
            volume.nvram = nvram.or(volume.nvram.take()).filter(|_| fs.kind == "cmfs");
            volume.device = stack.device.profile.clone().unwrap_or(std::mem::take(&mut volume.device));
        }
        "memfs" => {}
        other => {
            return Err(Error::invalid(format!(
                "fs.kind: {other} is played on by replay; it cannot be mounted"
            )));
        }
    }
    let mut options = stack.mount_options();
    if let Some(cache) = &stack.cache {
        if fs.kind != "nfhybrid" {
            return Err(Error::invalid(format!(
                "cache: {} drives its flash itself, without a page cache",
                fs.kind
            )));
        }
        if cache.page.0 != PAGE_BYTES {
            return Err(Error::invalid("cache.page: the page cache of a mount has pages of 4KiB"));
        }
        options.extend([format!("cache={}", cache.policy), format!("cache-size={}", cache.size.0)]);
    }
    Ok(options)
}

/// The device of a stack file that is called `half`, and the layers over it.
///
/// # Errors
/// It says nothing of that device, or layers that cannot be over one with contents.
pub(super) fn to_export<'s>(stack: &'s StackFile, half: &str) -> Result<(&'s DeviceKeys, Layers)> {
    let device = match half {
        "ssd" => &stack.ssd,
        "disk" => &stack.disk,
        _ => &stack.device,
    };
    if *device == DeviceKeys::default() {
        return Err(Error::invalid(format!(
            "{half}: the stack file has no such table; name the device to be served with --half device, ssd or disk"
        )));
    }
    // A file system's page cache is over its disk, and nothing else is over its halves.
    let cached = if stack.fs.is_some() { half == "disk" } else { half == "device" };
    let bare = stack.fs.is_some();
    let takes = stack.nvram.as_ref().filter(|_| !bare).and_then(|nvram| {
        let Text(takes) = nvram.takes.clone()?;
        Some((takes, nvram.size.map_or(NVRAM_BYTES, |Size(bytes)| bytes)))
    });
    let layers = Layers {
        place: stack.run.place.clone().filter(|_| !bare).map(|Text(takes)| takes),
        overhead: if bare { Duration::ZERO } else { stack.run.overhead.0 },
        absorb: stack.run.absorb.clone().filter(|_| !bare).map(|Text(ByteRange(range))| range),
        nvram: takes,
        cache: stack.cache.as_ref().filter(|_| cached).map(|cache| Caching {
            policy: cache.policy.to_string(),
            bytes: cache.size.0,
            page_bytes: cache.page.0,
            durable_syncs: false,
        }),
    };
    Ok((device, layers))
}
