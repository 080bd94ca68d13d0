//! Making a new SSD half.

use super::Ssd;
use super::config::{Config, Pairing};
use super::layout::{Layout, backup_offset};
use super::log::{Log, Position, first_group};
use super::sector::{Seal, TABLE_BLOCK};
use super::superblock::Superblock;
use bimetal_base::Result;
use bimetal_base::time::Time;
use bimetal_media::{BlockDevice, Gather, Request};
use bytes::Bytes;
use std::time::Duration;
use uuid::Uuid;

/// Tables are written in pieces of so many bytes.
const CHUNK: u64 = 1 << 20;

impl Ssd {
    /// Whether an SSD half with this configuration fits on `device`, and makes sense.
    ///
    /// # Errors
    /// [`bimetal_base::Error::Invalid`] with the reason.
    pub fn check_config(device: &dyn BlockDevice, config: &Config) -> Result<()> {
        Layout::plan(device.info(), config).map(drop)
    }

    /// Formats `device`: everything on it is lost. The new SSD's UUID.
    ///
    /// Nothing is written before the configuration is known to fit. Old superblocks go first and the new
    /// ones come last, each behind a flush, so an interrupted format leaves no SSD rather than half of one.
    ///
    /// # Errors
    /// [`bimetal_base::Error::Invalid`] for a configuration that makes no sense or does not fit; errors of the device.
    pub fn format(device: &dyn BlockDevice, config: &Config, pairing: &Pairing) -> Result<[u8; 16]> {
        Ssd::format_named(device, config, pairing, *Uuid::new_v4().as_bytes())
    }

    /// The same, under a UUID that is given.
    ///
    /// # Errors
    /// As [`Ssd::format`].
    pub fn format_named(
        device: &dyn BlockDevice,
        config: &Config,
        pairing: &Pairing,
        uuid: [u8; 16],
    ) -> Result<[u8; 16]> {
        Ssd::format_as(device, config, (pairing, uuid), Layout::plan(device.info(), config)?)
    }

    /// The same, laid out as given.
    pub(super) fn format_as(
        device: &dyn BlockDevice,
        config: &Config,
        (pairing, uuid): (&Pairing, [u8; 16]),
        layout: Layout,
    ) -> Result<[u8; 16]> {
        // Of all that identifies it a log has but eight bytes.
        let (high, low) = Uuid::from_bytes(uuid).as_u64_pair();
        let superblock = Superblock {
            uuid,
            generation: 1,
            clean: true,
            pairing: *pairing,
            default_section: config.default_section as u8,
            wait: config.wait.min(Duration::from_nanos(u64::MAX)),
            evict_below: config.evict_below,
            evict_to: config.evict_to,
            bytes_per_slot: config.bytes_per_slot,
            log_id: high ^ low.rotate_left(17),
            is_first: false,
            free_marks: true,
            log_reached: (1, 1),
            layout,
        };
        let blank = Bytes::from(vec![0; TABLE_BLOCK as usize]);
        for offset in [0, backup_offset(device.info().size_bytes)] {
            device.write(offset, blank.clone())?;
        }
        device.flush()?;
        write_tables(device, &superblock)?;
        device.flush()?;
        for (offset, bytes) in superblock.writes() {
            device.write(offset, bytes)?;
            device.flush()?;
        }
        Ok(uuid)
    }
}

/// Bitmaps that say all is free, and the log's first group. Slots and checksums need no first contents:
/// they are read only where they were written.
fn write_tables(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    let layout = &superblock.layout;
    let seal = Seal::new(&superblock.uuid);
    for section in &layout.sections {
        let bytes = section.bitmap_bytes * u64::from(layout.shape(section)?.parts());
        write_blank(device, &seal, section.bitmaps, bytes)?;
    }
    write_blank(device, &seal, layout.inode_bitmap, layout.slots - layout.inode_bitmap)?;
    let position = Position {
        groups: Vec::new(),
        incarnation: 1,
        last_incarnation: 0,
        trimmed: 0,
        last_op: 0,
        complete: 0,
        slots_written: 0,
    };
    let mut log = Log::new(layout.log_place(), superblock.log_id, position);
    if let Some(write) = first_group(&mut log)? {
        let offset = write.offset;
        let request = Request::Write { offset, data: Gather::from_iter([write.close()]), durable: true };
        device.run(Time::ZERO, request).result?;
    }
    Ok(())
}

fn write_blank(device: &dyn BlockDevice, seal: &Seal, start: u64, bytes: u64) -> Result<()> {
    let mut at = start;
    while at < start + bytes {
        let mut chunk = vec![0; CHUNK.min(start + bytes - at) as usize];
        seal.close(at, &mut chunk);
        at += chunk.len() as u64;
        device.write(at - chunk.len() as u64, chunk)?;
    }
    Ok(())
}
