//! Where a file is, and why: what `bimetal.explain` says of files in known states.

use super::*;
use serde_json::Value;

/// What is said of a file, all answers together.
fn explained(fs: &NfHybrid, ino: Ino) -> Value {
    let ask = |name: &str| -> Value {
        let text = fs.control_get(ino, name).unwrap();
        assert!(text.len() < 60 << 10, "an attribute holds 64 KiB, and this is {} bytes", text.len());
        serde_json::from_slice(&text).unwrap()
    };
    let mut all = ask("bimetal.explain");
    while let Some(from) = all["next_bytes"].as_u64() {
        let more = ask(&format!("bimetal.explain.{from}"));
        assert_eq!(more["extents"][0]["offset_bytes"], from);
        all["next_bytes"] = more["next_bytes"].clone();
        let extents = more["extents"].as_array().unwrap().clone();
        all["extents"].as_array_mut().unwrap().extend(extents);
    }
    all
}

/// Offset, bytes and state of each stretch.
fn states(explained: &Value) -> Vec<(u64, u64, String)> {
    let extents = explained["extents"].as_array().unwrap();
    let of = |extent: &Value| {
        let number = |name: &str| extent[name].as_u64().unwrap();
        (number("offset_bytes"), number("bytes"), extent["state"].as_str().unwrap().to_string())
    };
    extents.iter().map(of).collect()
}

fn fsync(fs: &NfHybrid, ino: Ino) {
    fs.fsync(ino, false).unwrap().get().unwrap();
}

#[test]
fn a_file_is_in_memory_then_in_the_log_then_on_both_halves() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &[7; 6000]);
    let said = explained(&fs, ino);
    assert_eq!(states(&said), [(0, 8192, "memory".into())], "{said}");
    let first = &said["extents"][0];
    assert!(first["ssd"].is_null() && first["disk"].is_null() && first["memory"] == "dirty", "{said}");
    fsync(&fs, ino);
    assert_eq!(states(&explained(&fs, ino)), [(0, 8192, "log".into())]);
    fs.commit().unwrap();
    let said = explained(&fs, ino);
    assert_eq!(states(&said), [(0, 8192, "both".into())], "{said}");
    let first = said["extents"][0].clone();
    assert!(first["memory"].is_null() && first["disk"]["old"] == false, "{said}");
    // They are where it says.
    let byte = |image: Vec<u8>, at: &Value| image[at["at_bytes"].as_u64().unwrap() as usize];
    assert_eq!(byte(disk.image(), &first["disk"]), 7);
    assert_eq!(byte(ssd.image(), &first["ssd"]), 7);
    // Overwritten: what both have is old, and said to be.
    fs.write(ino, 0, &[8; 4096], false).unwrap().get().unwrap();
    let said = explained(&fs, ino);
    assert_eq!(states(&said), [(0, 4096, "memory".into()), (4096, 4096, "both".into())]);
    assert_eq!(
        (&said["extents"][0]["disk"]["old"], &said["extents"][0]["ssd"]["old"]),
        (&true.into(), &true.into())
    );
    fs.shutdown().unwrap();
}

#[test]
fn a_large_fsync_is_in_a_section_before_the_disk_has_it() {
    let Some((disk, ssd)) = halves(64, 32) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", &vec![7; 300 << 10]);
    fsync(&fs, ino);
    let said = explained(&fs, ino);
    assert!(states(&said).iter().all(|(_, _, state)| state == "ssd"), "{said}");
    let first = &said["extents"][0];
    let at = first["ssd"]["at_bytes"].as_u64().unwrap() as usize;
    assert_eq!(ssd.image()[at..at + 4096], [7; 4096]);
    assert_eq!(first["ssd"]["old"], false);
    fs.shutdown().unwrap();
}

#[test]
fn holes_and_what_is_reserved_are_told_apart_and_the_end_is_found() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", b"");
    fs.write(ino, 1 << 40, &[1; 4096], false).unwrap().get().unwrap();
    fs.fallocate(ino, 8192, 16384, Fallocate::Reserve { keep_size: false }).unwrap();
    fs.fallocate(ino, (1 << 40) + 4096, 8192, Fallocate::Reserve { keep_size: true }).unwrap();
    fs.commit().unwrap();
    let found = states(&explained(&fs, ino));
    let expected = [
        (0, 8192, "hole"),
        (8192, 16384, "reserved"),
        (24576, (1 << 40) - 24576, "hole"),
        (1 << 40, 4096, "both"),
        ((1 << 40) + 4096, 8192, "reserved"),
    ];
    assert_eq!(found, expected.map(|(at, bytes, state)| (at, bytes, state.to_string())));
    fs.shutdown().unwrap();
}

#[test]
fn the_rule_that_holds_is_named_with_its_directory() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let node = |kind| NewNode { kind, perm: 0o755, rdev: 0, target: b"" };
    let dir = fs.create(&Caller::default(), ROOT_INO, b"backup", &node(Kind::Dir)).unwrap().ino;
    let below = fs.create(&Caller::default(), dir, b"below", &node(Kind::Dir)).unwrap().ino;
    fs.control_set(dir, "bimetal.section", b"bypass").unwrap();
    fs.control_set(below, "bimetal.durability", b"both").unwrap();
    let ino = fs.create(&Caller::default(), below, b"f", &node(Kind::File)).unwrap().ino;
    fs.write(ino, 0, &[1; 4096], false).unwrap().get().unwrap();
    fs.commit().unwrap();
    let said = explained(&fs, ino);
    assert_eq!((&said["section"], &said["section_rule"]), (&Value::Null, &dir.0.into()), "{said}");
    assert_eq!((&said["durability"], &said["durability_rule"]), (&"both".into(), &below.0.into()));
    assert_eq!(states(&said), [(0, 4096, "disk".into())]);
    assert_eq!(said["extents"][0]["why"], "its directory bypasses the SSD");
    let root = explained(&fs, ROOT_INO);
    assert_eq!((&root["section_rule"], &root["kind"]), (&Value::Null, &"directory".into()));
    assert!(root["section"].is_string() && root["extents"].as_array().unwrap().is_empty(), "{root}");
    fs.shutdown().unwrap();
}

#[test]
fn a_second_read_brings_a_copy_and_says_so() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let alone = open(&disk, None, Options { without_ssd: true, ..manual() }).unwrap();
    create(&alone, "f", &[7; 20_000]);
    alone.shutdown().unwrap();
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = fs.lookup(ROOT_INO, b"f").unwrap().ino;
    let why = |part: &str| {
        let said = explained(&fs, ino);
        let extents = said["extents"].as_array().unwrap();
        let all = extents.iter().all(|extent| extent["why"].as_str().unwrap().contains(part));
        assert!(all && !extents.is_empty(), "{part} in {said}");
        states(&said)
    };
    assert!(why("not read from the disk of late").iter().all(|(_, _, state)| state == "disk"));
    contents(&fs, "f");
    fs.promote();
    assert!(why("the next such read copies it").iter().all(|(_, _, state)| state == "disk"));
    contents(&fs, "f");
    fs.promote();
    assert!(why("copied to the SSD for it (promote=second)").iter().all(|(_, _, state)| state == "both"));
    fs.shutdown().unwrap();
}

#[test]
fn what_was_pushed_out_is_said_to_be() {
    let Some((disk, ssd)) = halves(128, 12) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let mut inodes = Vec::new();
    for number in 0..40 {
        inodes.push(create(&fs, &format!("{number}"), &vec![number as u8; 1 << 20]));
        fs.commit().unwrap();
    }
    let said = explained(&fs, inodes[0]);
    assert!(states(&said).iter().all(|(_, _, state)| state == "disk"), "{said}");
    let why = said["extents"][0]["why"].as_str().unwrap();
    assert!(why.starts_with("its copy was pushed off the SSD"), "{said}");
    let last = explained(&fs, inodes[39]);
    assert!(states(&last).iter().all(|(_, _, state)| state == "both"), "{last}");
    fs.shutdown().unwrap();
}

#[test]
fn a_file_of_many_pieces_is_told_in_several_answers() {
    let Some((disk, ssd)) = halves(64, 16) else { return };
    let fs = open(&disk, Some(&ssd), manual()).unwrap();
    let ino = create(&fs, "f", b"");
    for number in 0..400_u64 {
        fs.write(ino, number * 8192, &[1; 4096], false).unwrap().get().unwrap();
    }
    fs.commit().unwrap();
    let found = states(&explained(&fs, ino));
    assert_eq!(found.len(), 799);
    assert!(found.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0 && pair[0].2 != pair[1].2));
    assert!(fs.control_get(ino, "bimetal.explain.x").is_err());
    fs.shutdown().unwrap();
}
