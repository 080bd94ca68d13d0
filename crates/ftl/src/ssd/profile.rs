//! What an SSD profile states.

use bimetal_media::profile::{Described, InvalidField, size};
use serde::Deserialize;

/// The figures of a simulated SSD. Every field must be given in a profile file; units end the names.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SsdProfile {
    /// Always `ssd`.
    pub kind: String,
    /// The device in words.
    pub model: String,
    /// The profile of its flash, by name or path.
    pub nand: String,
    /// The translation layer, by name.
    pub ftl: String,
    /// Its settings, `name=value,name=value`.
    pub settings: String,
    /// Percent of the flash that the host does not see.
    pub over_provision_percent: f64,
    /// What the bus carries (10⁶ bytes a second).
    pub bus_mb_per_s: f64,
    /// Electronics' time a command.
    pub command_us: f64,
    /// Commands that the electronics begin a second, one after the other. Left out: as many as there are.
    #[serde(default)]
    pub commands_per_s: Option<f64>,
    /// Bytes of writes that may wait in memory; 0: none.
    #[serde(deserialize_with = "size")]
    pub write_cache: u64,
    /// A flush waits until the cache is in the flash.
    pub honour_flush: bool,
    /// The cache survives power loss: a flush has nothing to wait for.
    pub protected: bool,
    /// Unit of requests in bytes; a power cut never tears one.
    #[serde(deserialize_with = "size")]
    pub sector: u64,
}

impl Described for SsdProfile {
    const KIND: &'static str = "ssd";

    fn check(&self) -> Result<(), InvalidField> {
        for (value, least, most, field) in [
            (self.over_provision_percent, 0.0, 90.0, "over_provision_percent"),
            (self.bus_mb_per_s, 0.001, 1e6, "bus_mb_per_s"),
            (self.command_us, 0.0, 1e6, "command_us"),
            (self.commands_per_s.unwrap_or(1.0), 1.0, 1e9, "commands_per_s"),
        ] {
            let holds = (least..=most).contains(&value);
            InvalidField::unless(holds, field, format_args!("must be from {least} to {most}"))?;
        }
        InvalidField::unless(
            self.sector.is_power_of_two() && (512..=65536).contains(&self.sector),
            "sector",
            "must be a power of two from 512 to 65536 bytes",
        )
    }
}
