//! Names that shells complete. Other text may be typed, too: a path, a name with options.

use crate::reproduce::{EXPERIMENTS, LIVE};
use bimetal_cache::registry::POLICIES;
use bimetal_ftl::SCHEMES;
use bimetal_media::profile::PROFILES;
use bimetal_osd_core::placement;
use bimetal_trace::FORMATS;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use std::ffi::OsStr;

/// Takes any text, and knows some.
#[derive(Clone)]
pub struct Names(fn() -> Vec<&'static str>);

/// Page cache policies.
pub const CACHE: Names = Names(|| POLICIES.names().collect());
/// Page cache policies, and the least misses that any could have.
pub const CURVE: Names = Names(|| POLICIES.names().chain(["belady"]).collect());
/// Flash translation layers.
pub const FTL: Names = Names(|| SCHEMES.names().collect());
/// Device profiles.
pub const DEVICE: Names = Names(|| PROFILES.names().collect());
/// Trace formats.
pub const FORMAT: Names = Names(|| FORMATS.names().collect());
/// Placements of the object store.
pub const PLACEMENT: Names = Names(|| placement::SCHEMES.names().collect());
/// Experiments.
pub const EXPERIMENT: Names = Names(|| {
    let live = LIVE.names().filter(|name| EXPERIMENTS.find(name).is_err());
    EXPERIMENTS.names().chain(live).chain(["all"]).collect()
});

impl TypedValueParser for Names {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}
