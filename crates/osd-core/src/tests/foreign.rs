//! Pointers that lead to what is not the object's: made up, or left over from before a segment was used again.

use super::*;
use layout::{Extent, Fork, Key, Value};

/// Where a byte of an object lies.
fn place(store: &mut Store, id: ObjectId, offset: u64) -> u64 {
    let (from, extent) = store.index.overlapping(id.0, Fork::Data, offset, offset + 1).unwrap()[0];
    extent.at + (offset - from)
}

/// Has the index say that `len` bytes of an object from `offset` on lie at byte `at` of the flash.
fn point(store: &mut Store, id: ObjectId, offset: u64, len: u32, at: u64) {
    store.index.unmap(id.0, Fork::Data, offset, offset + u64::from(len)).unwrap();
    let extent = Value::Extent(Extent { len, at });
    store.index.set(Key::extent(id.0, Fork::Data, offset), Some(extent)).unwrap();
}

/// The error names the object, and the byte from which on it cannot be read.
fn assert_names(read: Result<Vec<u8>>, id: ObjectId, offset: u64, at: &str) {
    let error = read.map(|bytes| bytes.len()).expect_err(at).to_string();
    assert!(error.contains(&format!("object {id}")), "{at}: {error}");
    assert!(error.contains(&format!("from byte {offset} on")), "{at}: {error}");
}

#[test]
fn a_pointer_to_what_is_anothers_is_an_error_of_its_object_that_names_it() {
    for placement in PLACEMENTS {
        let mut store = store(placement, 1);
        let ids: Vec<ObjectId> = (0..6).map(|_| store.create(0).unwrap()).collect();
        let [whole, whole_too, piece, piece_too, other, mixed] = ids[..] else { unreachable!() };
        for (byte, id, len) in
            [(1, whole, 8192), (2, whole_too, 8192), (3, piece, 500), (4, piece_too, 500), (5, other, 3000)]
        {
            store.write(id, 0, Content::Bytes(&vec![byte; len])).unwrap();
        }
        store.write(mixed, 0, Content::Bytes(&[6; 2500])).unwrap();
        store.flush().unwrap();
        let before = contents(&mut store);
        // The same bytes of another object; other bytes of its own; a piece of another; a piece of its own, moved.
        let cases = [
            (whole, 4096, 2048, whole_too, 4096),
            (whole, 0, 2048, whole, 6144),
            (piece, 0, 500, piece_too, 0),
            (mixed, 2100, 100, mixed, 2200),
        ];
        for (id, offset, len, from, at_byte) in cases {
            let at = format!("{placement}, object {id} at {offset} from object {from} at {at_byte}");
            let mut store = reopened(store_with(&before, placement));
            let there = place(&mut store, from, at_byte);
            point(&mut store, id, offset, len, there);
            store.flush().unwrap();
            let mut store = reopened(store);
            assert_names(store.read(id, offset, 10), id, offset, &at);
            assert_names(store.read(id, 0, 9000), id, offset, &at);
            let problems = store.check(true).unwrap().problems;
            assert!(
                problems.iter().any(|why| why.starts_with(&format!("object {id} "))),
                "{at}: {problems:?}"
            );
            for other in ids.iter().filter(|other| **other != id) {
                assert_eq!(
                    store.read(*other, 0, 9000).unwrap(),
                    before[&other.0].bytes,
                    "{at}, object {other}"
                );
            }
            store.write(id, 9000, Content::Bytes(&[1])).unwrap();
            store.sync().unwrap();
            store.clean_all().unwrap();
            assert_names(store.read(id, offset, 10), id, offset, &at);
            store.write(id, offset, Content::Bytes(&vec![9; len as usize])).unwrap();
            store.flush().unwrap();
            assert_eq!(store.read(id, offset, len as usize).unwrap(), vec![9; len as usize], "{at}");
            store.remove(id).unwrap();
            store.close().unwrap();
            let mut store = reopened(store);
            assert_sound(&mut store);
            for other in ids.iter().filter(|other| **other != id) {
                assert_eq!(
                    store.read(*other, 0, 9000).unwrap(),
                    before[&other.0].bytes,
                    "{at}, object {other}"
                );
            }
        }
    }
}

/// A store with these objects.
fn store_with(model: &Model, placement: &str) -> Store {
    let mut store = store(placement, 1);
    for (id, thing) in model {
        store.create_as(ObjectId(*id), 0).unwrap();
        store.write(ObjectId(*id), 0, Content::Bytes(&thing.bytes)).unwrap();
    }
    store.flush().unwrap();
    store
}

#[test]
fn a_pointer_from_before_its_segment_was_used_again_is_an_error_of_its_object() {
    for placement in PLACEMENTS {
        let mut store = store(placement, 1);
        let (stale, other) = (store.create(0).unwrap(), store.create(0).unwrap());
        store.write(stale, 0, Content::Bytes(&[1; 20_000])).unwrap();
        store.flush().unwrap();
        let old = place(&mut store, stale, 4096);
        store.remove(stale).unwrap();
        // All segments are used again, by others.
        for round in 0..60u8 {
            store.write(other, 0, Content::Bytes(&vec![round; 150_000])).unwrap();
            store.flush().unwrap();
        }
        store.create_as(stale, 0).unwrap();
        store.write(stale, 0, Content::Bytes(&[2; 2048])).unwrap();
        store.truncate(stale, 20_000).unwrap();
        point(&mut store, stale, 4096, 2048, old);
        store.flush().unwrap();
        let mut store = reopened(store);
        assert_names(store.read(stale, 0, 20_000), stale, 4096, placement);
        assert_eq!(store.read(stale, 0, 2048).unwrap(), [2; 2048], "{placement}");
        assert_eq!(store.read(other, 0, 150_000).unwrap(), [59; 150_000], "{placement}");
        store.truncate(stale, 4096).unwrap();
        assert_eq!(store.read(stale, 0, 9000).unwrap().len(), 4096, "{placement}");
        store.close().unwrap();
        assert_sound(&mut reopened(store));
    }
}
