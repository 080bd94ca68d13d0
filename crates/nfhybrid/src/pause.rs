//! When to try what may not pay: not after it did not, for twice as long each time, until it does.

/// Most turns that are left out after one that did not pay.
const PAUSE_MAX: u32 = 63;

/// Which turns to try.
#[derive(Debug, Default)]
pub(super) struct Pause {
    left: u32,
    next: u32,
}

impl Pause {
    /// Whether to try this turn.
    pub fn is_over(&mut self) -> bool {
        let over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        over
    }

    /// Hears whether it paid.
    pub fn tried(&mut self, paid: bool) {
        self.left = if paid { 0 } else { self.next };
        self.next = if paid { 0 } else { (self.next * 2 + 1).min(PAUSE_MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_tried_ever_more_rarely_until_it_does() {
        let mut pause = Pause::default();
        let tries = (0..1000).filter(|_| {
            let over = pause.is_over();
            if over {
                pause.tried(false);
            }
            over
        });
        assert!((10..30).contains(&tries.count()));
        pause.tried(true);
        assert!(pause.is_over());
    }
}
