//! What a device has behind it before the trace begins.

use super::args::Args;
use super::driver::LOOK_EVERY;
use crate::stack::Stack;
use bimetal_base::random::Random;
use bimetal_base::time::Time;
use bimetal_base::{Error, Result};
use bimetal_media::{Gather, Request};

/// What a translation layer has behind it before the trace begins.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Precondition {
    /// New: erased
    #[default]
    None,
    /// Every page written once, in order
    Fill,
    /// The same, then as many pages again at random
    Random,
}

/// Writes what is to be there before the trace begins; when that is done.
///
/// # Errors
/// The device has no end, its flash wears out before the trace begins, or the run is to end.
pub(super) fn precondition(stack: &Stack, args: &Args) -> Result<Time> {
    let (kind, mut at) = (args.precondition, Time::ZERO);
    if kind == Precondition::None {
        return Ok(at);
    }
    let page = stack.told.page_bytes();
    let Some(pages) = stack.size_bytes().map(|size| size / page) else {
        return Err(Error::invalid("--precondition needs a device with a size, not 'none'"));
    };
    let mut asked = 0usize;
    let mut ask = |request| {
        if asked.is_multiple_of(LOOK_EVERY) {
            args.brought.go_on()?;
        }
        asked += 1;
        let done = stack.device.run(at, request);
        at = done.at;
        done.result.map(drop)
    };
    let write =
        |number: u64| Request::Write { offset: number * page, data: Gather::absent(page), durable: false };
    (0..pages).try_for_each(|number| ask(write(number)))?;
    if kind == Precondition::Random {
        let mut random = Random::new(args.seed, "precondition");
        (0..pages).try_for_each(|_| ask(write(random.below(pages))))?;
    }
    ask(Request::Flush)?;
    // What is left in memory that survives power loss would be programmed, and counted, in the run.
    stack.told.model.write_back(at)
}
