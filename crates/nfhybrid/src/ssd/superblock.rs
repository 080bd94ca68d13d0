//! The superblock: written twice, at block 0 and in the last whole 4 KiB of the device.
//!
//! Both copies carry a generation number; at a mount the valid one with the higher number wins. They are
//! written one after the other with a flush between, so that one is valid whatever happens.

use super::config::{Pairing, SECTION_NAME_MAX, SECTIONS_MAX};
use super::layout::{Layout, SectionLayout, backup_offset};
use super::sector::TABLE_BLOCK;
use bimetal_base::checksum::crc32c;
use bimetal_base::{Error, Result};
use bimetal_media::BlockDevice;
use bytes::Bytes;
use std::time::Duration;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a superblock.
pub(super) const MAGIC: [u8; 8] = *b"BIMETSSD";

/// The version of the format this code makes.
pub const FORMAT_VERSION: u32 = 4;

/// The version of an SSD that was made before free slots were marked, and stays so.
const UNMARKED_VERSION: u32 = 3;

/// The oldest that it reads: version 2 has the same structures; programs that know no later one must not use an SSD whose
/// disk half carries the states of version 3.
const FORMAT_VERSION_MIN: u32 = 2;

const BYTES: usize = TABLE_BLOCK as usize;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPairing {
    disk_uuid: [u8; 16],
    epoch: U64,
    mount_time: U64,
    last_check: U64,
    write_time: U64,
    mount_count: U16,
    before: U32,
    reserved: [u8; 2],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSection {
    name: [u8; SECTION_NAME_MAX],
    name_bytes: u8,
    reserved: [u8; 7],
    extent_blocks: U32,
    extents: U32,
    bitmaps: U64,
    bitmap_bytes: U64,
    sums: U64,
    data: U64,
    reserved_2: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: [u8; 8],
    version: U32,
    clean: u8,
    sections: u8,
    default_section: u8,
    free_marks: u8,
    uuid: [u8; 16],
    generation: U64,
    device_bytes: U64,
    block_bytes: U32,
    slot_bytes: U32,
    flash_block_bytes: U64,
    log: U64,
    log_bytes: U64,
    log_id: U64,
    log_sequence: U64,
    inode_bitmap: U64,
    slots: U64,
    slot_count: U32,
    threshold_blocks: U32,
    wait_ns: U64,
    evict_below: U16,
    evict_to: U16,
    log_incarnation: U32,
    pairing: RawPairing,
    bytes_per_slot: U64,
    log_unit: U32,
    disk_op: U64,
    reserved_2: [u8; 44],
    section: [RawSection; SECTIONS_MAX],
}

/// The contents of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) uuid: [u8; 16],
    pub(super) generation: u64,
    pub(super) clean: bool,
    pub(super) pairing: Pairing,
    pub(super) layout: Layout,
    pub(super) default_section: u8,
    pub(super) wait: Duration,
    pub(super) evict_below: u16,
    pub(super) evict_to: u16,
    pub(super) bytes_per_slot: u64,
    pub(super) log_id: u64,
    /// Free slots of the inode table are marked: one that reads as zeros, and was written, is damaged.
    pub(super) free_marks: bool,
    /// Of the two copies the one at the beginning is the only one, or the newer.
    pub(super) is_first: bool,
    /// The log's incarnation and sequence number when the superblock was written.
    pub(super) log_reached: (u32, u64),
}

impl Superblock {
    /// The 4 KiB of the superblock.
    pub(super) fn encode(&self) -> Bytes {
        let layout = &self.layout;
        let mut section =
            [RawSection::read_from_bytes(&[0; size_of::<RawSection>()]).expect("its size"); SECTIONS_MAX];
        section.iter_mut().zip(&layout.sections).for_each(|(raw, section)| *raw = encode_section(section));
        let raw = RawSuperblock {
            magic: MAGIC,
            version: if self.free_marks { FORMAT_VERSION } else { UNMARKED_VERSION }.into(),
            clean: self.clean.into(),
            sections: layout.sections.len() as u8,
            default_section: self.default_section,
            free_marks: self.free_marks.into(),
            uuid: self.uuid,
            generation: self.generation.into(),
            device_bytes: layout.device_bytes.into(),
            block_bytes: layout.block_bytes.into(),
            slot_bytes: layout.slot_bytes.into(),
            flash_block_bytes: layout.flash_block_bytes.into(),
            log: layout.log.into(),
            log_bytes: layout.log_bytes.into(),
            log_id: self.log_id.into(),
            log_sequence: self.log_reached.1.into(),
            inode_bitmap: layout.inode_bitmap.into(),
            slots: layout.slots.into(),
            slot_count: layout.slot_count.into(),
            threshold_blocks: layout.threshold_blocks.into(),
            wait_ns: u64::try_from(self.wait.as_nanos()).unwrap_or(u64::MAX).into(),
            evict_below: self.evict_below.into(),
            evict_to: self.evict_to.into(),
            log_incarnation: self.log_reached.0.into(),
            pairing: encode_pairing(&self.pairing),
            bytes_per_slot: self.bytes_per_slot.into(),
            log_unit: layout.log_unit.into(),
            disk_op: self.pairing.disk_op.into(),
            reserved_2: [0; 44],
            section,
        };
        let mut bytes = vec![0; BYTES];
        bytes[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
        let sum = crc32c(&bytes[..BYTES - 4]);
        bytes[BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes.into()
    }

    /// Reads a superblock from its 4 KiB; `at` names the place in messages.
    fn decode(bytes: &[u8], at: &str) -> Result<Superblock> {
        let corrupt = |why: &str| Error::corrupt("SSD superblock", why, at);
        let (raw, _) = RawSuperblock::ref_from_prefix(bytes).map_err(|_| corrupt("it is too short"))?;
        if raw.magic != MAGIC {
            return Err(corrupt("it has no magic number: this is not an SSD of bimetal"));
        }
        if bytes.len() != BYTES || crc32c(&bytes[..BYTES - 4]).to_le_bytes() != bytes[BYTES - 4..] {
            return Err(corrupt("its checksum is wrong"));
        }
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&raw.version.get()) {
            let known = format!("this program reads {FORMAT_VERSION_MIN} to {FORMAT_VERSION}");
            let remedy =
                "use the program it was made with, or go on without it and make it anew with `bimetal adopt`";
            let why = format!("it has version {}, {known}; {remedy}", raw.version);
            return Err(Error::unsupported(format!("the SSD format ({at})"), why));
        }
        let sections = raw.section.iter().take(raw.sections.into()).map(decode_section);
        let layout = Layout {
            device_bytes: raw.device_bytes.get(),
            block_bytes: raw.block_bytes.get(),
            slot_bytes: raw.slot_bytes.get(),
            flash_block_bytes: raw.flash_block_bytes.get(),
            threshold_blocks: raw.threshold_blocks.get(),
            log: raw.log.get(),
            log_bytes: raw.log_bytes.get(),
            log_unit: raw.log_unit.get(),
            inode_bitmap: raw.inode_bitmap.get(),
            slots: raw.slots.get(),
            slot_count: raw.slot_count.get(),
            sections: sections.collect::<Option<_>>().ok_or_else(|| corrupt("a section has no name"))?,
        };
        layout.validate().map_err(|why| corrupt(&why))?;
        if usize::from(raw.default_section) >= layout.sections.len() {
            return Err(corrupt("the default section is not there"));
        }
        Ok(Superblock {
            uuid: raw.uuid,
            generation: raw.generation.get(),
            clean: raw.clean != 0,
            pairing: Pairing { disk_op: raw.disk_op.get(), ..decode_pairing(&raw.pairing) },
            layout,
            default_section: raw.default_section,
            wait: Duration::from_nanos(raw.wait_ns.get()),
            evict_below: raw.evict_below.get(),
            evict_to: raw.evict_to.get(),
            bytes_per_slot: raw.bytes_per_slot.get(),
            log_id: raw.log_id.get(),
            is_first: false,
            free_marks: raw.free_marks != 0,
            log_reached: (raw.log_incarnation.get(), raw.log_sequence.get()),
        })
    }

    /// Both copies with their places, to be written in this order with a flush after each: the one that was read last, as
    /// the other may be damaged or older.
    pub(super) fn writes(&self) -> [(u64, Bytes); 2] {
        let bytes = self.encode();
        let mut writes = [(0, bytes.clone()), (backup_offset(self.layout.device_bytes), bytes)];
        if self.is_first {
            writes.reverse();
        }
        writes
    }

    fn read_one(device: &dyn BlockDevice, offset: u64) -> Result<Superblock> {
        let bytes = device.read(offset, BYTES)?;
        Superblock::decode(&bytes, &format!("{}, offset {offset}", device.info().name))
    }

    /// Whether the first copy is damaged, or gone, and the second one stands in for it.
    pub(super) fn goes_by_second(device: &dyn BlockDevice) -> bool {
        Superblock::read(device, &mut Vec::new()).is_ok()
            && matches!(Superblock::read_one(device, 0), Err(Error::Corrupt { .. }))
    }

    /// Reads both copies of a device and takes the newer valid one; notes say what was wrong with the other.
    ///
    /// # Errors
    /// That of the first copy when neither is valid; [`Error::Mismatch`] when the device is smaller than the
    /// superblock says.
    pub(super) fn read(device: &dyn BlockDevice, notes: &mut Vec<String>) -> Result<Superblock> {
        let info = device.info();
        if info.size_bytes < 2 * TABLE_BLOCK {
            return Err(Error::corrupt("SSD", "the device is too small to hold a superblock", &info.name));
        }
        let first = Superblock::read_one(device, 0);
        // The device may have grown since; then the copy is where it was.
        let end =
            first.as_ref().map_or(info.size_bytes, |found| found.layout.device_bytes.min(info.size_bytes));
        let second = Superblock::read_one(device, backup_offset(end));
        if let (Err(gone @ Error::Gone { .. }), _) | (_, Err(gone @ Error::Gone { .. })) = (&first, &second) {
            return Err(Error::Gone { device: gone_device(gone) });
        }
        let found = match (first, second) {
            (Ok(a), Ok(b)) if a.uuid != b.uuid || a.generation >= b.generation => {
                Superblock { is_first: a.uuid != b.uuid || a.generation > b.generation, ..a }
            }
            (Ok(_), Ok(b)) => b,
            (Ok(a), Err(error)) => {
                notes.push(format!("the second superblock is not usable ({error}); the first one is used"));
                Superblock { is_first: true, ..a }
            }
            (Err(error), Ok(b)) => {
                notes.push(format!("the first superblock is not usable ({error}); the second one is used"));
                b
            }
            // It says itself what to do.
            (Err(error @ Error::Unsupported { .. }), Err(_)) => return Err(error),
            (Err(error), Err(_)) => {
                return Err(error.explained(
                    "a new SSD is joined to the disk half with `bimetal adopt --ssd SSD --disk DISK`; if this is the old one, and the device was made larger \
                     since, give it its old size: there the second superblock is",
                ));
            }
        };
        if found.layout.device_bytes > info.size_bytes {
            return Err(Error::Mismatch(format!(
                "{}: the device has {} bytes, the SSD was formatted with {}: it is cut short; give it its whole size again (an \
                 image: truncate -s {2}; a device: copy it to an image of that size). Or go on without it, and without what only \
                 its log holds, if the disk lacks anything: bimetal mount --without-ssd --disk DISK, bimetal fsck --without-ssd --disk DISK",
                info.name, info.size_bytes, found.layout.device_bytes
            )));
        }
        let unit = found.layout.block_bytes.min(found.layout.log_unit);
        if !unit.is_multiple_of(info.block_bytes.max(1)) || info.atomic_bytes < 512 {
            return Err(Error::unsupported(
                format!("the device {}", info.name),
                format!("it has blocks of {} bytes, the SSD was formatted for {unit}", info.block_bytes),
            ));
        }
        Ok(found)
    }
}

fn gone_device(error: &Error) -> String {
    match error {
        Error::Gone { device } => device.clone(),
        other => other.to_string(),
    }
}

fn encode_pairing(pairing: &Pairing) -> RawPairing {
    RawPairing {
        disk_uuid: pairing.disk_uuid,
        epoch: pairing.epoch.into(),
        mount_time: pairing.mount_time.into(),
        last_check: pairing.last_check.into(),
        write_time: pairing.write_time.into(),
        mount_count: pairing.mount_count.into(),
        before: pairing.before.into(),
        reserved: [0; 2],
    }
}

fn decode_pairing(raw: &RawPairing) -> Pairing {
    Pairing {
        disk_uuid: raw.disk_uuid,
        epoch: raw.epoch.get(),
        before: raw.before.get(),
        disk_op: 0,
        mount_count: raw.mount_count.get(),
        mount_time: raw.mount_time.get(),
        last_check: raw.last_check.get(),
        write_time: raw.write_time.get(),
    }
}

fn encode_section(section: &SectionLayout) -> RawSection {
    let mut name = [0; SECTION_NAME_MAX];
    let bytes = section.name.as_bytes();
    name[..bytes.len()].copy_from_slice(bytes);
    RawSection {
        name,
        name_bytes: bytes.len() as u8,
        reserved: [0; 7],
        extent_blocks: section.extent_blocks.into(),
        extents: section.extents.into(),
        bitmaps: section.bitmaps.into(),
        bitmap_bytes: section.bitmap_bytes.into(),
        sums: section.sums.into(),
        data: section.data.into(),
        reserved_2: [0; 16],
    }
}

fn decode_section(raw: &RawSection) -> Option<SectionLayout> {
    let name = raw.name.get(..raw.name_bytes.into())?;
    Some(SectionLayout {
        name: String::from_utf8_lossy(name).into_owned(),
        extent_blocks: raw.extent_blocks.get(),
        extents: raw.extents.get(),
        bitmaps: raw.bitmaps.get(),
        bitmap_bytes: raw.bitmap_bytes.get(),
        sums: raw.sums.get(),
        data: raw.data.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::*;
    use bimetal_media::ram::Ram;

    fn sample(device: &dyn BlockDevice) -> Superblock {
        Superblock {
            uuid: [9; 16],
            generation: 4,
            clean: true,
            pairing: Pairing {
                before: 6,
                disk_op: 5,
                disk_uuid: [1; 16],
                epoch: 2,
                mount_count: 3,
                mount_time: 4,
                last_check: 5,
                write_time: 6,
            },
            layout: Layout::plan(device.info(), &Config::default()).unwrap(),
            default_section: 0,
            wait: Duration::from_millis(1500),
            evict_below: 20,
            evict_to: 40,
            bytes_per_slot: 16384,
            log_id: 77,
            is_first: false,
            free_marks: true,
            log_reached: (3, 12),
        }
    }

    fn write(device: &dyn BlockDevice, superblock: &Superblock, copies: &[usize]) {
        for copy in copies {
            let (offset, bytes) = superblock.writes()[*copy].clone();
            device.write(offset, bytes).unwrap();
        }
    }

    #[test]
    fn a_write_that_is_torn_never_strikes_the_only_good_copy() {
        let places = [0, backup_offset(64 << 20)];
        for (damaged, older) in
            [(None, None), (Some(0), None), (Some(1), None), (None, Some(0)), (None, Some(1))]
        {
            let device: &dyn BlockDevice = &Ram::new("ssd", 64 << 20);
            let newest = Superblock { generation: 7, ..sample(device) };
            for (copy, place) in places.into_iter().enumerate() {
                let generation = if older == Some(copy) { 6 } else { 7 };
                device.write(place, Superblock { generation, ..newest.clone() }.encode()).unwrap();
            }
            if let Some(copy) = damaged {
                device.write(places[copy] + 512, Bytes::from(vec![0xA5; 512])).unwrap();
            }
            let mut found = Superblock::read(device, &mut Vec::new()).unwrap();
            assert_eq!(found.generation, 7);
            found.generation += 1;
            let [(place, bytes), _] = found.writes();
            device.write(place, bytes.slice(..512)).unwrap();
            let again = Superblock::read(device, &mut Vec::new());
            assert_eq!(again.unwrap().generation, 7, "damaged {damaged:?}, older {older:?}");
        }
    }

    #[test]
    fn the_sizes_are_those_of_the_format_page() {
        assert_eq!((size_of::<RawPairing>(), size_of::<RawSection>()), (56, 96));
        assert_eq!(size_of::<RawSuperblock>(), 256 + 32 * 96);
    }

    #[test]
    fn the_newer_valid_copy_wins() {
        let ram = Ram::new("ssd", 64 << 20);
        let device: &dyn BlockDevice = &ram;
        let old = sample(device);
        let new = Superblock { generation: 5, ..old.clone() };
        let mut notes = Vec::new();
        write(device, &old, &[0, 1]);
        write(device, &new, &[1]);
        assert_eq!(Superblock::read(device, &mut notes).unwrap(), new);
        write(device, &new, &[0]);
        write(device, &old, &[1]);
        assert_eq!(Superblock::read(device, &mut notes).unwrap(), Superblock { is_first: true, ..new });
        assert!(notes.is_empty());
    }

    #[test]
    fn one_damaged_copy_is_noted_and_two_are_an_error() {
        let ram = Ram::new("ssd", 64 << 20);
        let device: &dyn BlockDevice = &ram;
        let superblock = sample(device);
        for copy in 0..2 {
            write(device, &superblock, &[0, 1]);
            device.write(superblock.writes()[copy].0, vec![0; 4096]).unwrap();
            let mut notes = Vec::new();
            let found = Superblock::read(device, &mut notes).unwrap();
            assert_eq!(found, Superblock { is_first: copy == 1, ..superblock.clone() });
            assert_eq!(notes.len(), 1);
        }
        device.write(0, vec![0; 4096]).unwrap();
        let error = Superblock::read(device, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }

    #[test]
    fn an_ssd_made_before_free_slots_were_marked_is_read_and_stays_one() {
        let superblock = Superblock { free_marks: false, ..sample(&Ram::new("ssd", 64 << 20)) };
        let mut old = superblock.encode().to_vec();
        assert_eq!(old[8..12], 3_u32.to_le_bytes());
        old[8..12].copy_from_slice(&2_u32.to_le_bytes());
        let sum = crc32c(&old[..BYTES - 4]);
        old[BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        let read = Superblock::decode(&old, "test").unwrap();
        assert_eq!(read, superblock);
        assert_eq!(read.encode()[8..12], 3_u32.to_le_bytes());
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let ram = Ram::new("ssd", 64 << 20);
        let superblock = sample(&ram);
        let good = superblock.encode().to_vec();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bad, "test").is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_and_a_cut_device_are_told_apart() {
        let ram = Ram::new("ssd", 64 << 20);
        let superblock = sample(&ram);
        let mut bytes = superblock.encode().to_vec();
        bytes[8] = 99;
        let sum = crc32c(&bytes[..4092]);
        bytes[4092..].copy_from_slice(&sum.to_le_bytes());
        let error = Superblock::decode(&bytes, "test").unwrap_err();
        assert!(
            matches!(error, Error::Unsupported { .. }) && error.to_string().contains("version 99"),
            "{error}"
        );

        let cut = Ram::new("ssd", 32 << 20);
        write(&cut, &superblock, &[0]);
        let error = Superblock::read(&cut, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, Error::Mismatch(_)), "{error}");
    }
}
