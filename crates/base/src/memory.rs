//! Whether memory holds what is about to be allocated: a size that somebody gave is refused, not met by an abort.

use crate::units::show_size;
use crate::{Error, Result};
use std::fmt::Display;
use std::hint::black_box;

/// Refuses `what` if the `bytes` it needs cannot be had. Reserves them for a moment and touches none, so that it costs
/// nothing; what is lazily used later may still turn out to be more than there is.
///
/// # Errors
/// [`Error::Invalid`] with what needs how much, and that a smaller size is the remedy.
pub fn check_room(what: impl Display, bytes: u64) -> Result<()> {
    let has_room = usize::try_from(bytes).is_ok_and(|bytes| {
        let mut reserved = Vec::<u8>::new();
        black_box(&mut reserved).try_reserve_exact(bytes).is_ok()
    });
    match has_room {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{what} needs {} of memory, more than can be had; choose a smaller size",
            show_size(bytes)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_memory_holds_is_refused_by_name() {
        check_room("a page", 4096).unwrap();
        check_room("nothing", 0).unwrap();
        for bytes in [1 << 50, u64::MAX] {
            let why = check_room("the model", bytes).unwrap_err().to_string();
            assert!(why.starts_with("the model needs") && why.contains("smaller size"), "{why}");
        }
    }
}
