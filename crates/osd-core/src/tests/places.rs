//! Where bytes are said to be, against what they are.

use super::*;

/// All stretches of an object, asked for a few at a time.
fn all_places(store: &mut Store, id: ObjectId, most: usize) -> Vec<Stretch> {
    let (mut all, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        let (some, then) = store.places(id, from, most).unwrap();
        assert!(some.len() <= most && (then.is_none() || !some.is_empty()), "{some:?}");
        all.extend(some);
        next = then;
    }
    all
}

#[test]
fn stretches_cover_an_object_and_only_those_without_a_place_are_zeros() {
    let mut store = store("split", 2);
    let id = store.create(0).unwrap();
    let mut random = Random::new(7, "places");
    let mut seen = std::collections::HashSet::new();
    for step in 0..300 {
        let (offset, len) = (random.below(60_000), 1 + random.below(9_000));
        match random.below(8) {
            0..5 => {
                store.write(id, offset, Content::Bytes(&vec![1 + step as u8 % 250; len as usize])).unwrap()
            }
            5 => store.punch(id, offset, len).unwrap(),
            6 => store.reserve_range(id, offset, len).unwrap(),
            _ => store.sync().unwrap(),
        }
        let size = store.stat(id).unwrap().size;
        let found = all_places(&mut store, id, 1 + step % 5);
        assert_eq!(found, all_places(&mut store, id, 1_000), "step {step}");
        let mut at = 0;
        for stretch in found {
            assert_eq!(stretch.offset, at, "step {step}: a gap");
            at += stretch.bytes;
            let zeros =
                store.peek(id, stretch.offset, stretch.bytes as usize).unwrap().iter().all(|b| *b == 0);
            let nowhere = matches!(stretch.place, Place::Hole | Place::Reserved);
            assert_eq!(zeros, nowhere, "step {step}: {stretch:?}");
            seen.insert(std::mem::discriminant(&stretch.place));
        }
        assert_eq!(at, size, "step {step}: the end");
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}
