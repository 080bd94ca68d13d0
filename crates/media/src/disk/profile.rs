//! What a disk profile states.

use crate::profile::{Described, InvalidField, size};
use serde::Deserialize;

/// The figures of a simulated disk. Every field must be given in a profile file, but its queue and platters; units end
/// the names.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DiskProfile {
    /// Always `disk`.
    pub kind: String,
    /// The device in words.
    pub model: String,
    /// Revolutions a minute.
    pub rpm: u32,
    /// Average seek of a read over random pairs of places.
    pub seek_average_ms: f64,
    /// Settling on another track, part of every seek.
    pub settle_ms: f64,
    /// What a seek before a write takes longer.
    pub write_settle_ms: f64,
    /// Media rate from the outer edge inwards.
    pub zones: Vec<Zone>,
    /// What the bus carries (10⁶ bytes a second).
    pub bus_mb_per_s: f64,
    /// Electronics' time a command.
    pub command_us: f64,
    /// Bytes read on after a read while the arm is free.
    #[serde(deserialize_with = "size")]
    pub read_ahead: u64,
    /// Bytes of writes the drive's memory may hold; 0: no write cache.
    #[serde(deserialize_with = "size")]
    pub write_cache: u64,
    /// Separate pieces of writes it may hold.
    pub write_cache_pieces: usize,
    /// A flush waits until the cache is on the platter.
    pub honour_flush: bool,
    /// Unit of requests in bytes; a power cut never tears one.
    #[serde(deserialize_with = "size")]
    pub sector: u64,
    /// Requests that the drive has at once and takes in the order of the shortest access (native command queuing). Left
    /// out: one.
    #[serde(default = "one")]
    pub queue: u32,
    /// Bytes of the platters, from the outer edge inwards; a smaller image lies at the outer edge of them. Left out: as
    /// many as the image has, so that the arm goes over the whole stroke.
    #[serde(default, deserialize_with = "some_size")]
    pub platter: Option<u64>,
}

fn one() -> u32 {
    1
}

fn some_size<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    size(from).map(Some)
}

/// A part of the platter with one media rate.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Where it begins, as a part of the disk's bytes: 0.0 is the outer edge.
    pub from: f64,
    /// What passes under the head (10⁶ bytes a second).
    pub mb_per_s: f64,
}

impl Described for DiskProfile {
    const KIND: &'static str = "disk";

    fn check(&self) -> Result<(), InvalidField> {
        let rate = |value: f64| (0.001..=1e6).contains(&value);
        let time = |value: f64| (0.0..=1e5).contains(&value);
        InvalidField::unless((1..=1_000_000).contains(&self.rpm), "rpm", "must be from 1 to 1000000")?;
        InvalidField::unless(time(self.seek_average_ms), "seek_average_ms", "must be from 0 to 100000")?;
        InvalidField::unless(
            time(self.settle_ms) && self.settle_ms <= self.seek_average_ms,
            "settle_ms",
            "must be from 0 to seek_average_ms",
        )?;
        InvalidField::unless(time(self.write_settle_ms), "write_settle_ms", "must be from 0 to 100000")?;
        InvalidField::unless(time(self.command_us / 1e3), "command_us", "must be from 0 to 100000000")?;
        InvalidField::unless(rate(self.bus_mb_per_s), "bus_mb_per_s", "must be from 0.001 to 1000000")?;
        let rising = self.zones.windows(2).all(|pair| pair[0].from < pair[1].from);
        let inside = self.zones.iter().all(|zone| (0.0..1.0).contains(&zone.from) && rate(zone.mb_per_s));
        InvalidField::unless(
            self.zones.first().is_some_and(|zone| zone.from == 0.0) && rising && inside,
            "zones",
            "must begin at 0.0, rise, stay below 1.0 and have rates from 0.001 to 1000000",
        )?;
        InvalidField::unless((1..=1024).contains(&self.queue), "queue", "must be from 1 to 1024")?;
        let holds = self.platter.is_none_or(|bytes| (1 << 20..=1 << 57).contains(&bytes));
        InvalidField::unless(holds, "platter", "must be from 1 MiB to 128 PiB")?;
        InvalidField::unless(
            self.write_cache == 0 || self.write_cache_pieces > 0,
            "write_cache_pieces",
            "must be at least 1 with a write cache",
        )?;
        InvalidField::unless(
            self.sector.is_power_of_two() && (512..=65536).contains(&self.sector),
            "sector",
            "must be a power of two from 512 to 65536 bytes",
        )
    }
}
