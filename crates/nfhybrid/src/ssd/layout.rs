//! Where everything lies on the SSD, planned at format time and checked at every mount.
//!
//! The paper's figure 2, in order: superblock, log, the bitmaps of all sections, inode bitmap, duplicated
//! inode table, checksum tables, data sections, superblock copy. Everything but the data is made of 4 KiB
//! table blocks. A section's data begins at a multiple of the flash block size, or of its extent size up to
//! 1 MiB where none is given.
//!
//! Sections without a size share the rest evenly: the largest share for which everything fits is found by
//! halving, since a larger share also needs larger tables.

use super::config::{Config, SECTION_NAME_MAX, SECTIONS_MAX};
use super::log::Place;
use super::section::EXTENTS_PER_BITMAP_BLOCK;
use super::sector::{SECTOR_BYTES, SECTOR_PAYLOAD, SECTORS_PER_BLOCK, TABLE_BLOCK};
use super::segment::Shape;
use super::slots::SLOTS_PER_BITMAP_BLOCK;
use bimetal_base::units::show_size;
use bimetal_base::{Error, Result};
use bimetal_media::DeviceInfo;
use bimetal_media::placed::Lifetimes;

/// Checksums in one 4 KiB block of a checksum table.
pub(super) const SUMS_PER_BLOCK: u32 = SECTORS_PER_BLOCK * SUMS_PER_SECTOR;

/// Checksums in one sector.
pub(super) const SUMS_PER_SECTOR: u32 = (SECTOR_PAYLOAD / 4) as u32;

/// Bytes of a block of the log: the page of the kernel's caches and of any SSD. What is written in smaller steps is read,
/// changed and written again below us.
const LOG_UNIT: u32 = TABLE_BLOCK as u32;

/// A smaller log is in sectors: whole pages would leave it room for a few groups only.
const PAGED_LOG_MIN: u64 = 1 << 20;

/// Bytes of a block of a log of so many bytes.
fn log_unit(log_bytes: u64) -> u32 {
    if log_bytes >= PAGED_LOG_MIN { LOG_UNIT } else { SECTOR_BYTES as u32 }
}

/// The largest alignment chosen without being asked for one.
const ALIGN_MAX: u64 = 1 << 20;

/// Positions of one section, bytes from the start of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SectionLayout {
    pub(super) name: String,
    pub(super) extent_blocks: u32,
    pub(super) extents: u32,
    /// The bitmap of part 0; the others follow.
    pub(super) bitmaps: u64,
    /// Bytes of each bitmap.
    pub(super) bitmap_bytes: u64,
    pub(super) sums: u64,
    pub(super) data: u64,
}

impl SectionLayout {
    /// Data blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.extent_blocks * self.extents
    }
}

/// Positions of everything, bytes from the start of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) device_bytes: u64,
    pub(super) block_bytes: u32,
    pub(super) slot_bytes: u32,
    pub(super) flash_block_bytes: u64,
    pub(super) threshold_blocks: u32,
    pub(super) log: u64,
    pub(super) log_bytes: u64,
    /// Bytes of a block of the log.
    pub(super) log_unit: u32,
    pub(super) inode_bitmap: u64,
    pub(super) slots: u64,
    pub(super) slot_count: u32,
    pub(super) sections: Vec<SectionLayout>,
}

/// Where the second superblock of a device of `bytes` lies.
pub(super) fn backup_offset(bytes: u64) -> u64 {
    (bytes / TABLE_BLOCK).saturating_sub(1) * TABLE_BLOCK
}

/// Placement handles: the log is overwritten from end to end, tables block by block and all the time; the data of
/// each section is of one kind, and may live long.
const LOG_HANDLE: u8 = 1;
const TABLE_HANDLE: u8 = 2;
const FIRST_SECTION_HANDLE: u8 = 3;
const HANDLE_MAX: u8 = 7;

impl Layout {
    /// Which parts of the device are overwritten at the same pace.
    pub(super) fn lifetimes(&self) -> Lifetimes {
        let data = self.sections.iter().map(|section| section.data).min().unwrap_or(self.device_bytes);
        let tables = self.log + self.log_bytes;
        let mut lifetimes = vec![(self.log..tables, LOG_HANDLE), (tables..data, TABLE_HANDLE)];
        for (section, number) in self.sections.iter().zip(0u8..) {
            let handle = FIRST_SECTION_HANDLE.saturating_add(number).min(HANDLE_MAX);
            let bytes = u64::from(section.blocks()) * u64::from(self.block_bytes);
            lifetimes.push((section.data..section.data + bytes, handle));
        }
        lifetimes
    }

    /// Plans the layout of `device` for `config`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration makes no sense or does not fit, with the reason.
    pub(super) fn plan(device: &DeviceInfo, config: &Config) -> Result<Layout> {
        check_device(device, config)?;
        check_config(config)?;
        let sized = |share: u64| {
            config.sections.iter().map(|s| s.size_bytes.unwrap_or(share) / s.extent_bytes).collect::<Vec<_>>()
        };
        let (mut low, mut high) = (0, device.size_bytes);
        if config.sections.iter().any(|section| section.size_bytes.is_none()) {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match place(device, config, &sized(middle)) {
                    Some(_) => low = middle,
                    None => high = middle,
                }
            }
        }
        let extents = sized(low);
        let layout = place(device, config, &extents).ok_or_else(|| too_small(device, config))?;
        match config.sections.iter().zip(&extents).find(|(_, extents)| **extents == 0) {
            None => Ok(layout),
            Some((section, _)) if section.size_bytes.is_some() => Err(Error::invalid(format!(
                "section '{}' is smaller than one of its extents of {}",
                section.name,
                show_size(section.extent_bytes)
            ))),
            Some(_) => Err(too_small(device, config)),
        }
    }

    pub(super) fn log_place(&self) -> Place {
        Place { start: self.log, bytes: self.log_bytes, unit: self.log_unit }
    }

    pub(super) fn shape(&self, section: &SectionLayout) -> Result<Shape> {
        Shape::new(section.extent_blocks, self.threshold_blocks)
    }

    /// The block number of a section's first data block.
    pub(super) fn first_block(&self, section: &SectionLayout) -> u32 {
        (section.data / u64::from(self.block_bytes)) as u32
    }

    pub(super) fn slots_per_block(&self) -> u32 {
        TABLE_BLOCK as u32 / self.slot_bytes
    }

    /// Checks a layout that was read: sizes agree with each other, and the regions lie on the device, in
    /// table blocks, without overlapping.
    pub(super) fn validate(&self) -> Result<(), String> {
        if ![1024, 2048, 4096].contains(&self.block_bytes) || ![256, 512].contains(&self.slot_bytes) {
            return Err("block or slot size".into());
        }
        let blocks = self.device_bytes / u64::from(self.block_bytes);
        if self.sections.is_empty()
            || blocks > u64::from(u32::MAX)
            || self.log_bytes < 64 << 10
            || !self.log_bytes.is_multiple_of(TABLE_BLOCK)
            || !self.log_unit.is_power_of_two()
            || !(SECTOR_BYTES as u64..=TABLE_BLOCK).contains(&self.log_unit.into())
        {
            return Err("no section, a device too large, or a log too small".into());
        }
        let mut regions = vec![(0, TABLE_BLOCK), (backup_offset(self.device_bytes), TABLE_BLOCK)];
        regions.push((self.log, self.log_bytes));
        let slots = u64::from(self.slot_count);
        regions.push((self.inode_bitmap, table_bytes(slots, SLOTS_PER_BITMAP_BLOCK)));
        regions.push((self.slots, table_bytes(slots, self.slots_per_block())));
        for section in &self.sections {
            let shape = self.shape(section).map_err(|error| error.to_string())?;
            let extents = u64::from(section.extents);
            let data_blocks = extents * u64::from(section.extent_blocks);
            if extents == 0 || data_blocks > blocks {
                return Err(format!("section '{}' has {extents} extents", section.name));
            }
            if section.bitmap_bytes != table_bytes(extents, EXTENTS_PER_BITMAP_BLOCK) {
                return Err(format!("section '{}' has bitmaps of a wrong size", section.name));
            }
            regions.push((section.bitmaps, section.bitmap_bytes * u64::from(shape.parts())));
            regions.push((section.sums, table_bytes(data_blocks, SUMS_PER_BLOCK)));
            regions.push((section.data, data_blocks * u64::from(self.block_bytes)));
        }
        check_regions(regions, self.device_bytes)
    }
}

/// Bytes of a table of `items`, `per_block` of which share a table block.
fn table_bytes(items: u64, per_block: u32) -> u64 {
    items.div_ceil(u64::from(per_block)) * TABLE_BLOCK
}

fn check_regions(mut regions: Vec<(u64, u64)>, device_bytes: u64) -> Result<(), String> {
    regions.sort_unstable();
    let mut end = 0;
    for (start, bytes) in regions {
        if start < end || !start.is_multiple_of(TABLE_BLOCK) {
            return Err(format!("a region at {start} overlaps another or is not aligned"));
        }
        end = start.checked_add(bytes).ok_or("a region beyond any device")?;
    }
    if end > device_bytes { Err(format!("a region ends at {end}, beyond the device")) } else { Ok(()) }
}

fn check_device(device: &DeviceInfo, config: &Config) -> Result<()> {
    let fail = |why: String| Err(Error::invalid(format!("{}: {why}", device.name)));
    if ![1024, 2048, 4096].contains(&config.block_bytes) {
        return fail(format!("a block size of {} bytes: it is 1024, 2048 or 4096", config.block_bytes));
    }
    if !config.block_bytes.is_multiple_of(device.block_bytes.max(1)) {
        return fail(format!(
            "the device has blocks of {} bytes, so the file system's cannot have {}",
            device.block_bytes, config.block_bytes
        ));
    }
    if device.atomic_bytes < 512 {
        return fail(format!("writes of {} bytes are atomic; 512 are needed", device.atomic_bytes));
    }
    if device.size_bytes / u64::from(config.block_bytes) > u64::from(u32::MAX) {
        return fail(format!("more than 2^32 blocks of {} bytes", config.block_bytes));
    }
    Ok(())
}

fn check_config(config: &Config) -> Result<()> {
    let fail = |why: String| Err(Error::Invalid(why));
    if config.log_bytes < 64 << 10 || !config.log_bytes.is_multiple_of(TABLE_BLOCK) {
        return fail(format!(
            "a log of {} bytes: it takes a multiple of 4 KiB from 64 KiB on",
            config.log_bytes
        ));
    }
    if config.flash_block_bytes.is_some_and(|bytes| !bytes.is_power_of_two() || bytes < 512) {
        return fail("the flash block size must be a power of two; give the largest that divides it".into());
    }
    if config.sections.is_empty() || config.sections.len() > SECTIONS_MAX {
        return fail(format!("{} sections: there can be 1 to {SECTIONS_MAX}", config.sections.len()));
    }
    if config.default_section >= config.sections.len() {
        return fail(format!("the default section is number {}, which is not there", config.default_section));
    }
    if ![256, 512].contains(&config.slot_bytes) || config.bytes_per_slot == 0 {
        return fail(
            "slots of the inode table have 256 or 512 bytes, one for at least 1 byte of data".into(),
        );
    }
    if config.evict_below > config.evict_to || config.evict_to > 1000 || config.threshold_blocks == 0 {
        return fail("eviction begins at no more clean extents than it ends at, in thousandths".into());
    }
    for (at, section) in config.sections.iter().enumerate() {
        let name = &section.name;
        if name.is_empty() || name.len() > SECTION_NAME_MAX || name.contains('\0') {
            return fail(format!("'{name}' is not a section name: it takes 1 to {SECTION_NAME_MAX} bytes"));
        }
        if config.sections[..at].iter().any(|other| other.name == *name) {
            return fail(format!("two sections are named '{name}'"));
        }
        let blocks = section.extent_bytes / u64::from(config.block_bytes);
        let shape = Shape::new(u32::try_from(blocks).unwrap_or(0), config.threshold_blocks);
        if !section.extent_bytes.is_multiple_of(config.block_bytes.into()) || shape.is_err() {
            return fail(format!(
                "section '{name}': extents of {}; it takes a power of two, from {} to {}",
                show_size(section.extent_bytes),
                show_size(2 * u64::from(config.block_bytes)),
                show_size(65536 * u64::from(config.block_bytes))
            ));
        }
    }
    Ok(())
}

fn too_small(device: &DeviceInfo, config: &Config) -> Error {
    let sized: u64 = config.sections.iter().filter_map(|s| s.size_bytes).fold(0, u64::saturating_add);
    Error::invalid(format!(
        "{}: {} does not hold the log of {}, sections of {} with their tables, and at least one extent of \
         each section; make the sections or the log smaller",
        device.name,
        show_size(device.size_bytes),
        show_size(config.log_bytes),
        show_size(sized)
    ))
}

/// Lays everything out for sections of so many extents; `None` when it does not fit.
fn place(device: &DeviceInfo, config: &Config, extents: &[u64]) -> Option<Layout> {
    let limit = backup_offset(device.size_bytes);
    let block = u64::from(config.block_bytes);
    let mut at = TABLE_BLOCK;
    let mut region = |bytes: u64, align: u64| {
        let start = at.checked_next_multiple_of(align)?;
        at = start.checked_add(bytes).filter(|end| *end <= limit)?;
        Some(start)
    };
    let log = region(config.log_bytes, TABLE_BLOCK)?;
    let mut sections = Vec::new();
    let mut slots = 0u64;
    for (section, &extents) in config.sections.iter().zip(extents) {
        let extent_blocks = (section.extent_bytes / block) as u32;
        let shape = Shape::new(extent_blocks, config.threshold_blocks).ok()?;
        let extents = u32::try_from(extents).ok()?;
        let bitmap_bytes = table_bytes(extents.into(), EXTENTS_PER_BITMAP_BLOCK);
        let bitmaps = region(bitmap_bytes * u64::from(shape.parts()), TABLE_BLOCK)?;
        let bytes = u64::from(extents).checked_mul(section.extent_bytes)?;
        slots += (u64::from(extents) * u64::from(shape.parts())).min(bytes / config.bytes_per_slot + 1);
        let (sums, data) = (0, 0);
        let name = section.name.clone();
        sections.push(SectionLayout { name, extent_blocks, extents, bitmaps, bitmap_bytes, sums, data });
    }
    let per_block = TABLE_BLOCK as u32 / config.slot_bytes;
    let slot_count = u32::try_from(slots.max(64)).ok()?.checked_next_multiple_of(per_block)?;
    let inode_bitmap = region(table_bytes(slot_count.into(), SLOTS_PER_BITMAP_BLOCK), TABLE_BLOCK)?;
    let slots = region(table_bytes(slot_count.into(), per_block), TABLE_BLOCK)?;
    for section in &mut sections {
        let blocks = u64::from(section.extents) * u64::from(section.extent_blocks);
        section.sums = region(table_bytes(blocks, SUMS_PER_BLOCK), TABLE_BLOCK)?;
    }
    for section in &mut sections {
        let extent_bytes = u64::from(section.extent_blocks) * block;
        let align = config.flash_block_bytes.unwrap_or(extent_bytes.min(ALIGN_MAX)).max(TABLE_BLOCK);
        section.data = region(u64::from(section.extents) * extent_bytes, align)?;
    }
    Some(Layout {
        device_bytes: device.size_bytes,
        block_bytes: config.block_bytes,
        slot_bytes: config.slot_bytes,
        flash_block_bytes: config.flash_block_bytes.unwrap_or(0),
        threshold_blocks: config.threshold_blocks,
        log,
        log_bytes: config.log_bytes,
        log_unit: log_unit(config.log_bytes).max(device.block_bytes),
        inode_bitmap,
        slots,
        slot_count,
        sections,
    })
}

#[cfg(test)]
mod tests {
    use super::super::config::SectionConfig;
    use super::*;

    fn device(bytes: u64) -> DeviceInfo {
        DeviceInfo {
            name: "ssd".into(),
            size_bytes: bytes,
            block_bytes: 512,
            atomic_bytes: 512,
            rotational: false,
        }
    }

    fn section(name: &str, extent_bytes: u64, size_bytes: Option<u64>) -> SectionConfig {
        SectionConfig { name: name.into(), extent_bytes, size_bytes }
    }

    #[test]
    fn sections_without_a_size_share_the_rest_evenly() {
        let config = Config {
            sections: vec![
                section("a", 16 << 10, Some(100 << 20)),
                section("b", 64 << 10, None),
                section("c", 1 << 20, None),
            ],
            ..Config::default()
        };
        let layout = Layout::plan(&device(1 << 30), &config).unwrap();
        layout.validate().unwrap();
        let bytes: Vec<u64> = layout.sections.iter().map(|s| u64::from(s.blocks()) * 4096).collect();
        assert_eq!(bytes[0], 100 << 20);
        assert!(bytes[1].abs_diff(bytes[2]) <= 1 << 20, "{bytes:?}");
        assert!(bytes.iter().sum::<u64>() > (1 << 30) * 96 / 100, "{bytes:?}");
    }

    #[test]
    fn the_papers_four_sections_of_16_gib_fit_and_have_their_bitmaps() {
        let sections = [16u64, 64, 256, 512].map(|k| section(&k.to_string(), k << 10, Some(16 << 30)));
        let config = Config { block_bytes: 1024, sections: sections.to_vec(), ..Config::default() };
        let layout = Layout::plan(&device(80 << 30), &config).unwrap();
        layout.validate().unwrap();
        let bitmaps: Vec<u32> = layout.sections.iter().map(|s| layout.shape(s).unwrap().parts()).collect();
        assert_eq!(bitmaps, [5, 12, 16, 18]);
    }

    #[test]
    fn extents_not_smaller_than_the_flash_block_are_aligned_to_it() {
        let flash = 256 << 10;
        let config = Config {
            flash_block_bytes: Some(flash),
            sections: vec![section("a", 64 << 10, None), section("b", 512 << 10, None)],
            ..Config::default()
        };
        let layout = Layout::plan(&device(300 << 20), &config).unwrap();
        layout.validate().unwrap();
        assert!(layout.sections.iter().all(|section| section.data % flash == 0));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let whole = Config::default();
        let one = |extent, size| Config { sections: vec![section("a", extent, size)], ..whole.clone() };
        let cases = [
            (Config { block_bytes: 512, ..whole.clone() }, "block size"),
            (Config { log_bytes: 5000, ..whole.clone() }, "log"),
            (Config { flash_block_bytes: Some(3 << 18), ..whole.clone() }, "power of two"),
            (Config { sections: vec![], ..whole.clone() }, "sections"),
            (Config { default_section: 1, ..whole.clone() }, "default section"),
            (Config { slot_bytes: 128, ..whole.clone() }, "slots"),
            (Config { evict_below: 200, ..whole.clone() }, "eviction"),
            (one(48 << 10, None), "power of two"),
            (one(4096, None), "power of two"),
            (one(64 << 10, Some(4096)), "smaller than one"),
            (one(64 << 10, Some(1 << 40)), "does not hold"),
            (one(256 << 20, None), "does not hold"),
            (Config { sections: vec![section("a", 65536, None); 2], ..whole.clone() }, "two sections"),
            (Config { sections: vec![section(&"x".repeat(33), 65536, None)], ..whole.clone() }, "name"),
        ];
        for (config, words) in cases {
            let error = Layout::plan(&device(64 << 20), &config).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(Layout::plan(&device(1 << 20), &whole).is_err());
        assert!(Layout::plan(&device(0), &whole).is_err());
        let coarse = DeviceInfo { block_bytes: 4096, ..device(1 << 30) };
        let config = Config { block_bytes: 1024, ..whole };
        assert!(Layout::plan(&coarse, &config).unwrap_err().to_string().contains("4096"));
    }
}
