//! Stores filled to the last page in several shapes: whatever filled them, everything can be removed and cut off, the
//! room comes back, and work goes on.

use super::*;

/// How a store is filled: what one more of it does; an error of no space ends it.
type Fill = fn(&mut Store, u64) -> Result<()>;

fn object(store: &mut Store, bytes: usize) -> Result<ObjectId> {
    let id = store.create(0)?;
    store.write(id, 0, Content::Bytes(&vec![7; bytes])).map(|()| id)
}

/// The first object, made when it is not there.
fn first(store: &mut Store) -> Result<ObjectId> {
    if !store.exists(ObjectId(1))? {
        store.create_as(ObjectId(1), 0)?;
    }
    Ok(ObjectId(1))
}

const SHAPES: [(&str, Fill); 9] = [
    ("objects of one byte", |store, _| object(store, 1).map(drop)),
    ("objects of three quarters of a page", |store, _| object(store, 1540).map(drop)),
    ("objects of many sizes", |store, n| object(store, (n * n % 7919) as usize).map(drop)),
    ("empty objects", |store, _| store.create(0).map(drop)),
    ("short attributes", |store, _| {
        let id = store.create(0)?;
        store.set_attribute(id, b"user.a", &[3; 300])
    }),
    ("long attributes", |store, _| {
        let id = store.create(0)?;
        store.set_attribute(id, b"user.a", &[3; 3000])
    }),
    ("one object", |store, n| {
        let id = first(store)?;
        store.write(id, n * 5000, Content::Bytes(&[5; 5000]))
    }),
    ("one object with holes", |store, n| {
        let id = first(store)?;
        store.write(id, n * 9973 % 1_000_003, Content::Bytes(&[5]))
    }),
    ("one byte a commit", |store, _| {
        object(store, 1)?;
        store.flush()
    }),
];

/// Fills a store; how many times that went well.
fn fill(store: &mut Store, shape: Fill, at: &str) -> u64 {
    for n in 0.. {
        match shape(store, n) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => return n,
            Err(why) => panic!("{at}, {n}: {why}"),
        }
        // Objects with holes end with their places.
        if n == 1_000_003 {
            return n;
        }
    }
    unreachable!("it is full some time")
}

fn all(store: &mut Store) -> Vec<ObjectId> {
    let mut ids = Vec::new();
    store
        .list(ObjectId(0), &mut |id| {
            ids.push(id);
            true
        })
        .unwrap();
    ids
}

/// Removes everything: in order, against it, or across; cuts off some of it before.
fn remove_all(store: &mut Store, how: u64, at: &str) {
    let mut ids = all(store);
    let count = ids.len() as u64;
    match how % 3 {
        0 => {}
        1 => ids.reverse(),
        _ => ids.sort_by_key(|id| id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    }
    for (n, id) in (0..).zip(ids) {
        let at = || format!("{at}, {n} of {count}, {:?}", store_of(how));
        if n % 5 == 0 {
            let size = store.stat(id).unwrap().size;
            store.punch(id, size / 3, 1 + size / 5).unwrap_or_else(|why| panic!("{}: punch: {why}", at()));
            store.truncate(id, size / 2).unwrap_or_else(|why| panic!("{}: truncate: {why}", at()));
        }
        store.remove(id).unwrap_or_else(|why| panic!("{}: remove: {why}", at()));
        if how >= 3 && n % 40 == 0 {
            store.flush().unwrap_or_else(|why| panic!("{}: flush: {why}", at()));
        }
    }
}

fn store_of(how: u64) -> (&'static str, &'static str) {
    let order = ["in order", "against it", "across"][how as usize % 3];
    (order, if how >= 3 { "with flushes" } else { "without flushes" })
}

#[test]
fn a_store_that_is_full_in_any_way_takes_every_removal_and_gives_the_room_back() {
    for (number, (shape, one_more)) in (0..).zip(SHAPES) {
        for (index, placement) in (0u64..).zip(PLACEMENTS) {
            // Each shape with two placements, and each order of removals with some shape.
            if scale() == 1 && (number + index) % 2 == 1 {
                continue;
            }
            for how in (0..6).filter(|how| scale() > 1 || *how == (number + index) % 6) {
                let segment_blocks = if shape == "empty objects" { 1 } else { 1 + (index + how) as u32 % 2 };
                let at = format!("{shape}, {placement}, {segment_blocks} blocks");
                let format = Format { segment_blocks, placement: placement.into() };
                let mut store = Store::format(nand(64 * segment_blocks, |_| ()), &format, options()).unwrap();
                let count = fill(&mut store, one_more, &at);
                if how % 2 == 0 {
                    store.flush().unwrap_or_else(|why| panic!("{at}: {why}"));
                    store = reopened(store);
                }
                remove_all(&mut store, how, &at);
                assert_eq!(store.capacity().objects, 0, "{at}");
                store.sync().unwrap();
                assert_sound(&mut store);
                let again = fill(&mut store, one_more, &at);
                assert!(again * 10 >= count * 9, "{at}: {again} of {count}");
                store.close().unwrap_or_else(|why| panic!("{at}: {why}"));
                let mut store = reopened(store);
                assert_sound(&mut store);
                remove_all(&mut store, how + 1, &at);
                store.close().unwrap();
                eprintln!("{at}, {:?}: {count}, then {again}", store_of(how));
            }
        }
    }
}
