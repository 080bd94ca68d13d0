//! What greedy cleaning costs under uniform random writes, by theory.
//!
//! Blocks that are rewritten at random lose valid pages at a rate proportional to what they have left, so that in the
//! steady state there are `c ÷ k` blocks with `k` valid pages, from the `x` at which a block is cleaned when it loses one
//! more, up to all `n`. Counting blocks and pages gives `α = n ÷ (n − x + 1) · Σ 1/k` of `α` physical pages a logical one,
//! and with the sum as a logarithm Desnoyers' closed form (Analytic Modeling of SSD Write Performance, SYSTOR 2012):
//! `x = ½ − (n ÷ α) W(−α (1 + 1/2n) e^{−α (1 + 1/2n)})`, `A = n ÷ (n − x + 1)`.

/// Steps that an over-provision is found in: to 10⁻¹² of a percent.
const STEPS: u32 = 48;

/// Pages programmed for each page written, with `percent` of the pages beyond what the host sees and blocks of `pages`.
pub fn amplification(percent: f64, pages: f64) -> f64 {
    let alpha = 1.0 / (1.0 - percent / 100.0);
    let scaled = alpha * (1.0 + 0.5 / pages);
    let cleaned_at = 0.5 - pages / alpha * lambert(-scaled * (-scaled).exp());
    pages / (pages - cleaned_at + 1.0)
}

/// The over-provision, in percent, with which blocks of `pages` cost what `percent` costs with blocks of `whole_pages`.
/// Smaller blocks need less; none, where they cost less even without.
pub fn same_amplification(percent: f64, whole_pages: u32, pages: u32) -> f64 {
    if pages >= whole_pages {
        return percent;
    }
    let wanted = amplification(percent, f64::from(whole_pages));
    let (mut least, mut most) = (0.0, percent);
    for _ in 0..STEPS {
        let middle = (least + most) / 2.0;
        match amplification(middle, f64::from(pages)) > wanted {
            true => least = middle,
            false => most = middle,
        }
    }
    most
}

/// The branch of Lambert's W through 0: `w` of `w e^w = value`, for values above −1/e, by Newton's steps.
fn lambert(value: f64) -> f64 {
    let mut w = 0.0f64.min(value);
    for _ in 0..200 {
        let exp = w.exp();
        let step = (w * exp - value) / (exp * (w + 1.0)).max(1e-12);
        w -= step;
        if step.abs() < 1e-14 {
            break;
        }
    }
    w
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_blocks_need_less_to_cost_the_same() {
        for percent in [0.0, 1.0, 7.0, 28.0, 90.0] {
            for pages in [16, 64, 200] {
                let less = same_amplification(percent, 256, pages);
                let (here, there) = (amplification(less, f64::from(pages)), amplification(percent, 256.0));
                assert!((0.0..=percent).contains(&less), "{percent} % {pages}: {less}");
                assert!(here <= there * (1.0 + 1e-9), "{percent} % {pages}: {here} {there}");
                assert!(
                    less < 1e-9 || (here / there - 1.0).abs() < 1e-9,
                    "{percent} % {pages}: {here} {there}"
                );
            }
        }
        assert_eq!(same_amplification(7.0, 256, 256), 7.0);
        assert_eq!(same_amplification(7.0, 256, 512), 7.0);
    }

    #[test]
    fn it_is_the_published_formula() {
        // Without over-provision every page of a block but one half is valid when it is cleaned, on average.
        assert!((amplification(7.0, 256.0) - 7.124).abs() < 1e-3);
        assert!((amplification(28.0, 64.0) - 1.943).abs() < 1e-3);
    }
}
