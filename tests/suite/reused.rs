//! Halves of a volume that were given to something else since, while something of what they were is left.

use crate::guard::{Volume, err, out, refused, run};
use crate::mounts::bimetal;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// An SSD half whose second superblock survived what the device was given to.
#[test]
fn an_ssd_half_that_was_given_to_something_else_is_refused_by_name_and_not_written() {
    let volume = Volume::new();
    let (ssd, disk, file) = (volume.at("ssd"), volume.at("disk"), volume.at("file"));
    fs::write(&file, "contents").unwrap();
    let put = || {
        let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
        run(&["put"], both, &[file.to_str().unwrap(), "/file"])
    };
    let superblock = fs::read(&ssd).unwrap()[..4096].to_vec();
    // As fdisk(8) writes a table: it keeps what is before it.
    let mut partitions = superblock.clone();
    partitions[440..512].fill(0);
    partitions[446..462].copy_from_slice(b"\0\0\x02\0\x83\xfe\xff\xff\0\x08\0\0\0\x80\0\0");
    partitions[510..512].copy_from_slice(b"\x55\xaa");
    let mut swap = vec![0; 4096];
    swap[1024] = 1;
    swap[4086..].copy_from_slice(b"SWAPSPACE2");
    let mut fat = vec![0; 4096];
    fat[0x52..0x57].copy_from_slice(b"FAT32");
    let bytes_of_ssd =
        |bytes: &[u8]| File::options().write(true).open(&ssd).unwrap().write_all_at(bytes, 0).unwrap();
    for (name, first) in [("partition table", partitions), ("swap space", swap), ("FAT", fat)] {
        bytes_of_ssd(&first);
        let before = volume.bytes();
        let said = [name, "--without-ssd", "wipefs --all"];
        for verb in [&["fsck"][..], &["fsck", "-n"], &["fsck", "--yes"]] {
            refused(&volume.run(verb), &said);
        }
        refused(&put(), &said);
        let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
        refused(&run(&["mount"], both, &[volume.at("").to_str().unwrap()]), &said);
        let probed = bimetal().args(["probe", "--udev"]).arg(&ssd).output().unwrap();
        assert_eq!((probed.status.code(), &*out(&probed)), (Some(1), ""), "{name}");
        assert!(volume.bytes() == before, "{name}: it was written to");
    }
    // Damage alone carries no signature: the second superblock stands in for the first.
    bytes_of_ssd(&[0xA5; 4096]);
    assert!(out(&volume.run(&["fsck", "-n"])).contains("the second one is used"));
    let done = put();
    assert!(done.status.success(), "{}", err(&done));
    assert_eq!(fs::read(&ssd).unwrap()[..8], *b"BIMETSSD");
}

/// A disk half of which a copy of the superblock survived what the device was given to.
#[test]
fn a_disk_half_that_was_given_to_something_else_is_refused_by_name_and_not_written() {
    let volume = Volume::images();
    // Of more than one block group, so that there is a copy of the superblock.
    File::options().write(true).open(volume.at("disk")).unwrap().set_len(300 << 20).unwrap();
    volume.done(&["mkfs", "nfhybrid"]);
    let mut swap = vec![0; 4096];
    swap[4086..].copy_from_slice(b"SWAPSPACE2");
    let disk = File::options().write(true).open(volume.at("disk")).unwrap();
    disk.write_all_at(&swap, 0).unwrap();
    let before = volume.bytes();
    let (ssd, disk) = (volume.at("ssd"), volume.at("disk"));
    let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    for options in ["rw", "ro", "recover=disk"] {
        let tried = run(&["mount", "-o", options], both, &[volume.at("").to_str().unwrap()]);
        refused(&tried, &["swap space", "bimetal rescue", "wipefs --all"]);
        assert!(!err(&tried).contains("e2fsck"), "{}", err(&tried));
    }
    let checked = volume.run(&["fsck", "--yes"]);
    assert!(out(&checked).contains("swap space") && !checked.status.success(), "{}", out(&checked));
    assert!(volume.bytes() == before, "it was written to");
}

/// The superblock of a member of a Linux RAID, version 1, as it lies at a byte.
fn member_of_raid(at: u64) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
    block[16..32].fill(0xab);
    block[144..152].copy_from_slice(&(at / 512).to_le_bytes());
    let sum: u64 =
        block[..256].chunks(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap()))).sum();
    block[216..220].copy_from_slice(&((sum as u32).wrapping_add((sum >> 32) as u32)).to_le_bytes());
    block
}

/// The label of a physical volume of LVM2 in sector 1.
fn label_of_lvm() -> Vec<u8> {
    let mut sector = vec![0; 512];
    sector[..8].copy_from_slice(b"LABELONE");
    sector[8] = 1;
    sector[24..32].copy_from_slice(b"LVM2 001");
    sector
}

/// None of these touches our first superblock.
#[test]
fn a_half_that_carries_the_mark_of_another_is_refused_by_name_and_not_written() {
    let volume = Volume::new();
    let (ssd, disk, file) = (volume.at("ssd"), volume.at("disk"), volume.at("file"));
    fs::write(&file, "contents").unwrap();
    let both: &[(&str, &Path)] = &[("--ssd", &ssd), ("--disk", &disk)];
    let mut table = vec![0; 512];
    table[446..462].copy_from_slice(b"\0\0\x02\0\x83\xfe\xff\xff\0\x08\0\0\0\x80\0\0");
    table[510..].copy_from_slice(b"\x55\xaa");
    let ends = fs::metadata(&disk).unwrap().len() - 8192;
    let marks = [
        (&disk, 0, table, "an MBR partition table", 510),
        (&disk, ends, member_of_raid(ends), "a member of a Linux RAID", ends),
        (&disk, 512, label_of_lvm(), "an LVM2 volume", 536),
        (&disk, 0, [b"LUKS\xba\xbe\0\x01".to_vec(), vec![0; 504]].concat(), "LUKS encryption", 0),
        (&ssd, 4096, member_of_raid(4096), "a member of a Linux RAID", 4096),
    ];
    for (half, at, mark, what, told) in marks {
        let device = File::options().read(true).write(true).open(half).unwrap();
        let mut was = vec![0; 512];
        device.read_exact_at(&mut was, at).unwrap();
        device.write_all_at(&mark, at).unwrap();
        let before = volume.bytes();
        let offset = format!("wipefs --offset {told} ");
        let said = [what, offset.as_str(), half.to_str().unwrap()];
        for verb in [&["fsck"][..], &["fsck", "--yes"], &["scrub"]] {
            refused(&volume.run(verb), &said);
        }
        refused(&run(&["put"], both, &[file.to_str().unwrap(), "/file"]), &said);
        refused(&run(&["mount"], both, &[volume.at("").to_str().unwrap()]), &said);
        if half == &disk {
            refused(&run(&["mount"], &both[1..], &[volume.at("").to_str().unwrap()]), &said);
        }
        assert!(volume.bytes() == before, "{what}: it was written to");
        assert!(volume.run(&["ls"]).status.success(), "{what}: it can be looked at");
        device.write_all_at(&was, at).unwrap();
        let done = run(&["put"], both, &[file.to_str().unwrap(), &format!("/{told}")]);
        assert!(done.status.success(), "{what}: without the mark: {}", err(&done));
    }
    // What is made anew carries none.
    File::options().write(true).open(&disk).unwrap().write_all_at(&member_of_raid(ends), ends).unwrap();
    volume.done(&["mkfs", "nfhybrid", "--force"]);
    let done = run(&["put"], both, &[file.to_str().unwrap(), "/file"]);
    assert!(done.status.success(), "{}", err(&done));
}
