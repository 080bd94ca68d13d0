//! What a stack file says to `mount` and `export`.

use crate::front::kinds::volume::VolumeArgs;
use crate::front::kinds::{KINDS, LiesOn};
use crate::front::stack::file::{ByteRange, DeviceKeys, Size, StackFile, Text};
use crate::front::stack::model::{Model, Models};
use crate::front::stack::{Caching, Layers};
use crate::{Error, Result};
use std::time::Duration;

/// Requests to a model without pages are counted in so many bytes.
const PAGE_BYTES: u64 = 4096;
/// A write cache's memory where its size is not said, bytes.
const NVRAM_BYTES: u64 = 128 << 10;

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
    stack.check_layers_of_kind()?;
    let kind = KINDS.find(&fs.kind)?;
    if kind.open.is_none() {
        return Err(Error::invalid(format!(
            "fs.kind: {} is played on by replay; it cannot be mounted",
            kind.name
        )));
    }
    volume.kind.clone_from(&fs.kind);
    match kind.lies_on {
        LiesOn::Halves => {
            let named = stack.ssd.image.clone();
            volume.ssd = named.or(volume.ssd.take()).filter(|_| !volume.without_ssd);
            volume.disk = stack.disk.image.clone().or(volume.disk.take());
            (volume.nand, volume.nvram) = (None, None);
            volume.models =
                Models { ssd: Model::of(&stack.ssd, stack.seed), disk: Model::of(&stack.disk, stack.seed) };
        }
        LiesOn::Nand { nvram: has_nvram } => {
            volume.nand = stack.device.image.clone().or(volume.nand.take());
            let nvram = stack.nvram.as_ref().and_then(|nvram| nvram.image.clone());
            volume.nvram = nvram.or(volume.nvram.take()).filter(|_| has_nvram);
            volume.device = stack.device.profile.clone().unwrap_or(std::mem::take(&mut volume.device));
        }
        LiesOn::Block(_) | LiesOn::Nothing => {}
    }
    let mut options = stack.mount_options();
    if let Some(cache) = &stack.cache {
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
    stack.check_layers_of_kind()?;
    // A file system of two halves has its page cache over the disk.
    let lies_on = stack.fs.as_ref().map(|fs| KINDS.find(&fs.kind).map(|kind| kind.lies_on)).transpose()?;
    let cached = half == if lies_on == Some(LiesOn::Halves) { "disk" } else { "device" };
    // Software's time is a call's there, not a request's.
    let overhead = if stack.fs.is_some() { Duration::ZERO } else { stack.run.overhead.0 };
    let takes = stack.nvram.as_ref().and_then(|nvram| {
        let Text(takes) = nvram.takes.clone()?;
        Some((takes, nvram.size.map_or(NVRAM_BYTES, |Size(bytes)| bytes)))
    });
    let layers = Layers {
        place: stack.run.place.clone().map(|Text(takes)| takes),
        overhead,
        absorb: stack.run.absorb.clone().map(|Text(ByteRange(range))| range),
        nvram: takes,
        cache: stack
            .cache
            .as_ref()
            .filter(|_| cached)
            .map(|cache| Caching::new(&cache.policy.to_string(), cache.size.0, cache.page.0)),
    };
    Ok((device, layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::stack::file::StackText;

    fn exported(text: &str, half: &str) -> Result<Layers> {
        let stack = StackText::parse("my.toml", text)?.with(&[])?;
        to_export(&stack, half).map(|(_, layers)| layers)
    }

    #[test]
    fn a_page_cache_is_exported_over_the_device_that_a_replay_has_it_over() {
        let tables = "[device]\nprofile = \"ssd-slc\"\n[ssd]\nsize = \"32MiB\"\n[disk]\nsize = \"64MiB\"\n\
                      [cache]\npolicy = \"lru\"\nsize = \"8MiB\"\n";
        let of = |kind: &str| match kind {
            "" => tables.to_string(),
            kind => format!("[fs]\nkind = \"{kind}\"\n{tables}"),
        };
        for (kind, half, has) in [
            ("", "device", true),
            ("fat", "device", true),
            ("nfhybrid", "disk", true),
            ("nfhybrid", "ssd", false),
        ] {
            assert_eq!(exported(&of(kind), half).unwrap().cache.is_some(), has, "{kind} {half}");
        }
        let why = exported(&of("cmfs"), "device").map(drop).unwrap_err().to_string();
        assert!(why.contains("cache: cmfs drives its flash"), "{why}");
    }

    #[test]
    fn what_a_replay_refuses_is_mounted_neither() {
        for table in ["[nvram]\ntakes = \"heat\"\n", "[disk]\nftl = \"page\"\n"] {
            let text = format!("[fs]\nkind = \"nfhybrid\"\n{table}");
            let stack = StackText::parse("my.toml", &text).unwrap().with(&[]).unwrap();
            assert!(crate::front::replay::Args::of_stack(&stack).is_err(), "{table}");
            stack.check_layers_of_kind().unwrap_err();
        }
    }
}
