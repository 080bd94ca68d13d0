//! What the papers claim, as data: one row a claim, judged by one evaluator ([`super::judge`]).
//!
//! A row says what the paper says, which figures of an experiment it is judged by, how they must relate, how far they may be
//! off and why, with how many seeds, and which parameters were given and which were searched. The experiment measures and
//! judges nothing; it has the same id.
//!
//! A tolerance has a reason that is not our result: what the paper prints, what it calls a difference itself, or how far
//! draws of its own workload differ. Those that hold for several rows are in [`tolerances`].

mod beyond;
mod cmfs;
mod csw;
mod ftl;
pub mod live;
mod nfh;
mod osd;
pub mod tolerances;

use bimetal_base::options::{Registered, Registry};
use std::borrow::Cow;

/// All claims: those of the papers in their order, then our own.
pub const CLAIMS: Registry<Claim> = Registry {
    what: "claim",
    entries: &[
        &nfh::FIG7,
        &nfh::FIG8,
        &nfh::FIG9,
        &nfh::FIG10,
        &nfh::FIG11,
        &nfh::FIG12,
        &nfh::FIG13,
        &nfh::FIG14,
        &nfh::FIG15,
        &nfh::FIG16,
        &nfh::FIG17,
        &nfh::FIG18,
        &nfh::FIG19,
        &nfh::FIG20,
        &nfh::ALIGN,
        &cmfs::RATIO,
        &cmfs::FIG9,
        &cmfs::FIG10,
        &cmfs::FIG11,
        &cmfs::FIG12,
        &cmfs::FIG13,
        &cmfs::FIG14,
        &cmfs::FIG15,
        &cmfs::FIG16,
        &cmfs::TABLE2,
        &osd::FIG2A,
        &osd::FIG2B,
        &ftl::FIG2,
        &ftl::TABLE1,
        &csw::FIG10,
        &csw::FIG11,
        &csw::FIG12,
        &csw::FIG13,
        &beyond::FTL_FIG2_STACK,
        &beyond::FTL_TABLE1_STACK,
        &beyond::CMFS_MOUNT,
        &beyond::OSD_BLOCK,
        &beyond::FDP_CACHELIB,
        &beyond::TIDE,
        &beyond::KERNEL_FSYNC,
        &beyond::INVENTORY,
        &beyond::P2P,
    ],
};

/// One claim.
#[derive(Debug)]
pub struct Claim {
    /// Its id, and its experiment's.
    pub id: &'static str,
    /// Whose it is.
    pub paper: Paper,
    /// The figure, table or section.
    pub figure: &'static str,
    /// What is claimed.
    pub says: &'static str,
    /// With how many seeds it is judged.
    pub seeds: Seeds,
    /// Under which parameters, the given ones first.
    pub ways: &'static [Way],
    /// What must hold, all of it.
    pub checks: &'static [Check<'static>],
}

impl Registered for Claim {
    fn name(&self) -> &'static str {
        self.id
    }

    fn about(&self) -> Cow<'static, str> {
        self.says.into()
    }
}

/// Whose claim it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    /// 000, NF-hybrid.
    Nfh,
    /// 001, CMFS.
    Cmfs,
    /// 002, object-based flash.
    Osd,
    /// 003, translation layers under VFAT.
    Ftl,
    /// 004, CSWLRU.
    Csw,
    /// No paper's: what this project says.
    Own,
}

impl Paper {
    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Paper::Nfh => "000 NF-hybrid",
            Paper::Cmfs => "001 CMFS",
            Paper::Osd => "002 object flash",
            Paper::Ftl => "003 FTLs",
            Paper::Csw => "004 CSWLRU",
            Paper::Own => "our own",
        }
    }
}

/// With how many seeds a claim is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// So many.
    Drawn(u32),
    /// One, since nothing is drawn: why.
    Fixed(&'static str),
}

/// The usual number.
pub const FIVE: Seeds = Seeds::Drawn(5);

/// Under which parameters figures were measured.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// What the names of its figures begin with.
    pub prefix: &'static str,
    /// The parameters.
    pub parameters: Parameters,
}

/// Where parameters are from.
#[derive(Clone, Copy, Debug)]
pub enum Parameters {
    /// From the paper, a data sheet or the literature, whatever came of it.
    Given(&'static str),
    /// These were searched until the claim's own figures came out.
    Searched(&'static str),
}

/// Parameters that are given, of figures without a prefix.
pub const fn given(what: &'static str) -> Way {
    Way { prefix: "", parameters: Parameters::Given(what) }
}

/// Something that must hold.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// In words.
    pub what: &'a str,
    /// How figures must relate.
    pub relation: Relation<'a>,
}

/// How figures must relate. Names are of figures or curves, and may have a `*` for every setting measured.
#[derive(Clone, Copy, Debug)]
pub enum Relation<'a> {
    /// The figure is the paper's.
    Is {
        /// Ours.
        figure: &'a str,
        /// The paper's.
        paper: f64,
        /// How far it may be off.
        within: Tolerance<'a>,
    },
    /// The paper's figure is one of the draws that ours are: it lies within 1.96 standard deviations of their mean, that of the
    /// mean included.
    Draw {
        /// Ours.
        figure: &'a str,
        /// The paper's.
        paper: f64,
        /// A draw's standard deviation, as it follows from what is drawn.
        sigma: f64,
        /// From what.
        reason: &'a str,
    },
    /// The figure lies within limits.
    Within {
        /// Which.
        figure: &'a str,
        /// The limits.
        limits: Limits,
    },
    /// One figure over another one lies within limits.
    Ratio {
        /// Dividend.
        of: &'a str,
        /// Divisor.
        to: &'a str,
        /// The limits.
        limits: Limits,
    },
    /// Each figure is less than the next.
    Ascending(&'a [&'a str]),
    /// The largest is not much more than the least.
    Alike {
        /// Of these.
        figures: &'a [&'a str],
        /// How much more.
        within: Tolerance<'a>,
    },
    /// None of the others is less.
    Least {
        /// This one.
        of: &'a str,
        /// Than these.
        others: &'a [&'a str],
    },
    /// The points of a curve lie on a straight line that rises: the least squares' residuals are small beside the rise.
    Straight {
        /// The curve.
        curve: &'a str,
        /// The largest residual, as a part of the line's rise.
        within: Tolerance<'a>,
    },
    /// Cannot be tested here, whatever is measured: why.
    Untestable(&'a str),
}

/// How far a figure may be off, and why so far.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance<'a> {
    /// How far.
    pub width: Width,
    /// Why.
    pub reason: &'a str,
}

/// A distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Width {
    /// In the figure's unit.
    Absolute(f64),
    /// A part of the figure that it is compared with: 0.1 is a tenth.
    Part(f64),
}

/// What a figure may be at least and at most, and why.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At least.
    pub least: f64,
    /// At most.
    pub most: f64,
    /// Why.
    pub reason: &'static str,
}

/// A check that the paper's figure comes out.
pub const fn is(
    what: &'static str,
    figure: &'static str,
    paper: f64,
    within: Tolerance<'static>,
) -> Check<'static> {
    Check { what, relation: Relation::Is { figure, paper, within } }
}

/// A check that the paper's figure is one of our draws.
pub const fn draw(
    what: &'static str,
    figure: &'static str,
    paper: f64,
    sigma: f64,
    reason: &'static str,
) -> Check<'static> {
    Check { what, relation: Relation::Draw { figure, paper, sigma, reason } }
}

/// A check of limits.
pub const fn within(what: &'static str, figure: &'static str, limits: Limits) -> Check<'static> {
    Check { what, relation: Relation::Within { figure, limits } }
}

/// A check of a ratio.
pub const fn ratio(what: &'static str, of: &'static str, to: &'static str, limits: Limits) -> Check<'static> {
    Check { what, relation: Relation::Ratio { of, to, limits } }
}

/// A check of an order.
pub const fn ascending(what: &'static str, figures: &'static [&'static str]) -> Check<'static> {
    Check { what, relation: Relation::Ascending(figures) }
}

/// A check that figures are alike.
pub const fn alike(
    what: &'static str,
    figures: &'static [&'static str],
    within: Tolerance<'static>,
) -> Check<'static> {
    Check { what, relation: Relation::Alike { figures, within } }
}

/// A check that one figure is the least.
pub const fn least(what: &'static str, of: &'static str, others: &'static [&'static str]) -> Check<'static> {
    Check { what, relation: Relation::Least { of, others } }
}

/// A check that a curve is a straight line.
pub const fn straight(what: &'static str, curve: &'static str, within: Tolerance<'static>) -> Check<'static> {
    Check { what, relation: Relation::Straight { curve, within } }
}

/// A part of a claim that cannot be tested.
pub const fn untestable(what: &'static str, why: &'static str) -> Check<'static> {
    Check { what, relation: Relation::Untestable(why) }
}

/// A tolerance in the figure's unit.
pub const fn absolute(width: f64, reason: &'static str) -> Tolerance<'static> {
    Tolerance { width: Width::Absolute(width), reason }
}

/// A tolerance as a part.
pub const fn part(width: f64, reason: &'static str) -> Tolerance<'static> {
    Tolerance { width: Width::Part(width), reason }
}

impl Width {
    /// How far, beside `figure`.
    pub fn beside(self, figure: f64) -> f64 {
        match self {
            Width::Absolute(width) => width,
            Width::Part(part) => part * figure.abs(),
        }
    }
}
