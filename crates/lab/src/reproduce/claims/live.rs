//! The NF-hybrid paper's claims, judged by figures of real mounts: the same checks, of figures that say they are live.

use super::nfh;
use super::tolerances::{LITTLE, times};
use super::{Check, Claim, Parameters, Seeds, Way, alike, ratio};
use bimetal_base::options::Registry;

const FIXED: Seeds = Seeds::Fixed("this machine's own time is in it: one run is one draw of many");
const WAYS: &[Way] = &[Way {
    prefix: crate::reproduce::live::PREFIX,
    parameters: Parameters::Given(
        "hdd-7200-lying and ssd-slc served in real time, real mounts: this machine's time is in every figure",
    ),
}];

/// The same claim of live figures.
const fn live(claim: Claim) -> Claim {
    Claim { seeds: FIXED, ways: WAYS, ..claim }
}

const FIG7: &[Check<'static>] = &[
    ratio(
        "over ext2 on the disk",
        "ignored/nfhybrid/write@4",
        "ignored/ext2 on the disk/write@4",
        times(4.0),
    ),
    ratio("over xfs on the disk", "ignored/nfhybrid/write@4", "ignored/xfs on the disk/write@4", times(4.0)),
    alike("beside ext2 on the SSD", &["ignored/nfhybrid/write@4", "ignored/ext2 on the SSD/write@4"], LITTLE),
    alike("beside xfs on the SSD", &["ignored/nfhybrid/write@4", "ignored/xfs on the SSD/write@4"], LITTLE),
];

/// Here there is a page cache above all of them.
const FIG9: &[Check<'static>] = &[
    alike("beside ext2 on the disk", &["ignored/nfhybrid/read", "ignored/ext2 on the disk/read"], LITTLE),
    alike("beside xfs on the disk", &["ignored/nfhybrid/read", "ignored/xfs on the disk/read"], LITTLE),
];

/// Of the 20 000 files that the paper has, too, none is made here.
const FIG19: &[Check<'static>] = &[ratio(
    "1 000 files, over ext2 on the SSD",
    "1000 files/512 KiB",
    "1000 files/ext2 on the SSD",
    super::tolerances::gain(0.18),
)];

/// All of them, by the ids of the claims that they are.
pub const LIVE: Registry<Claim> = Registry {
    what: "claim",
    entries: &[
        &Claim { checks: FIG7, ..live(nfh::FIG7) },
        &live(nfh::FIG8),
        &Claim { checks: FIG9, ..live(nfh::FIG9) },
        &live(nfh::FIG10),
        &live(nfh::FIG11),
        &live(nfh::FIG12),
        &live(nfh::FIG13),
        &live(nfh::FIG14),
        &live(nfh::FIG15),
        &live(nfh::FIG16),
        &live(nfh::FIG17),
        &live(nfh::FIG18),
        &Claim { checks: FIG19, ..live(nfh::FIG19) },
        &live(nfh::FIG20),
    ],
};
