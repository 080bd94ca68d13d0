//! What the fuzz targets in `fuzz/` call; the same, over random bytes, is a test.

use super::anchors::{Anchor, FormatRecord};
use super::checkpoint::State;
use super::flash::Flash;
use super::node::Node;
use super::summary::Entries;
use super::{Content, Format, ObjectId, Options, Store, access, log, pieces, summary};
use bimetal_media::nand::{Nand, NandProfile, Payload};
use bimetal_media::profile;

/// Gives bytes to the parser that the first of them names.
pub fn parse(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 9 {
        0 => drop(Anchor::read(bytes)),
        1 => drop(State::read(bytes)),
        2 => drop(Node::decode(3, bytes)),
        3 => drop(log::read_page(bytes)),
        4 => drop(summary::read_page(bytes)),
        5 => drop(Entries::read(bytes)),
        6 => drop(access::read_page(bytes)),
        7 => drop(FormatRecord::read(bytes)),
        _ => drop(pieces::read(bytes)),
    }
}

fn options() -> Options {
    Options { buffer_bytes: 8 << 10, cache_bytes: 64 << 10, ..Options::default() }
}

/// A small store with something of each kind of page.
fn small(ends: bool) -> Option<Nand> {
    let part = profile::load::<NandProfile>("slc-2k").ok()?.ideal();
    let part = NandProfile { blocks: 48, pages: 8, ..part };
    let format = Format { segment_blocks: 1, placement: "split-atime:entries=64".into() };
    let mut store = Store::format(Nand::new(part, 1, true, Payload::memory()), &format, options()).ok()?;
    for n in 0..40u8 {
        let id = store.create(0).ok()?;
        store.write(id, 0, Content::Bytes(&[n; 700])).ok()?;
        store.set_attribute(id, b"user.a", &[n; 30]).ok()?;
        store.touch(id).ok()?;
        if n % 8 == 0 {
            store.sync().ok()?;
        }
    }
    if ends {
        store.close().ok()?;
    }
    Some(store.into_nand())
}

/// A small store with pages changed.
fn changed(first: u8, changes: &[u8]) -> Option<Flash> {
    let mut flash = Flash::new(small(first.is_multiple_of(2))?, 1);
    for change in changes.chunks_exact(5).take(16) {
        let page = u32::from(u16::from_le_bytes([change[0], change[1]]));
        let place = u32::from(u16::from_le_bytes([change[2], change[3]]));
        flash.forge(page, place, change[4]);
    }
    Some(flash)
}

/// Changes pages of a small store as `bytes` say (page, place, value, five bytes a change), with checksums that are right
/// again, and uses it.
pub fn image(bytes: &[u8]) {
    let Some((first, changes)) = bytes.split_first() else { return };
    let Some(mut flash) = changed(*first, changes) else { return };
    if first & 4 == 0 {
        (0..4).for_each(|block| drop(flash.erase(block)));
    }
    let mut store = match Store::open_on(flash, options()) {
        Ok(store) => store,
        Err(_) => {
            let Some(mut flash) = changed(*first, changes) else { return };
            if first & 2 == 0 {
                // As somebody who took the anchors, too.
                (0..4).for_each(|block| drop(flash.erase(block)));
            }
            let Ok((store, _)) = Store::rebuild_on(flash, options()) else { return };
            store
        }
    };
    let _ = store.check(true);
    let _ = store.repair();
    for n in 0..12 {
        let _ = store.read(ObjectId(n), 0, 4000);
        let _ = store.write(ObjectId(n), 300, Content::Bytes(&[9; 900]));
        let _ = store.get_attribute(ObjectId(n), b"user.a");
        let _ = store.truncate(ObjectId(n + 12), 100);
        let _ = store.remove(ObjectId(n + 24));
    }
    let _ = store.flush();
    let _ = store.check(true);
    let _ = store.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_base::random::Random;

    #[test]
    fn forged_images_are_errors_or_stores_and_never_a_panic() {
        assert!(small(true).is_some() && small(false).is_some());
        let mut random = Random::new(1, "forged");
        let images = std::env::var("FORGED").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
        for _ in 0..images {
            let mut bytes = vec![random.next() as u8];
            for _ in 0..1 + random.below(6) {
                // Headers are where it matters.
                let most = if random.chance(0.7) { 64 } else { 2048 };
                bytes.extend((random.below(384) as u16).to_le_bytes());
                bytes.extend((random.below(most) as u16).to_le_bytes());
                bytes.push(if random.chance(0.3) { 255 } else { random.next() as u8 });
            }
            image(&bytes);
        }
    }
}
