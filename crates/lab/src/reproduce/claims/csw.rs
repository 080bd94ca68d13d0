//! Lee and others: CSWLRU, a page cache policy for SSDs.

use super::tolerances::UNREAD;
use super::{Check, Claim, FIVE, Paper, Way, alike, given, least};

const WAYS: &[Way] = &[given(
    "4 KiB pages, erase blocks of 256 KiB; area and caches a 32nd of the paper's; the policies' own defaults",
)];

const BEST: &[Check<'static>] = &[
    least(
        "page writes",
        "*/cswlru/page writes",
        &["*/lru/page writes", "*/cflru/page writes", "*/cfdc/page writes", "*/fab/page writes"],
    ),
    least("erases", "*/cswlru/erases", &["*/lru/erases", "*/cflru/erases", "*/cfdc/erases", "*/fab/erases"]),
    least(
        "full merges",
        "*/cswlru/full merges",
        &["*/lru/full merges", "*/cflru/full merges", "*/cfdc/full merges", "*/fab/full merges"],
    ),
];

const ALIKE: &[Check<'static>] = &[
    alike(
        "page writes",
        &[
            "*/cswlru/page writes",
            "*/lru/page writes",
            "*/cflru/page writes",
            "*/cfdc/page writes",
            "*/fab/page writes",
        ],
        UNREAD,
    ),
    alike(
        "erases",
        &["*/cswlru/erases", "*/lru/erases", "*/cflru/erases", "*/cfdc/erases", "*/fab/erases"],
        UNREAD,
    ),
];

const fn claim(
    id: &'static str,
    figure: &'static str,
    says: &'static str,
    checks: &'static [Check<'static>],
) -> Claim {
    Claim { id, paper: Paper::Csw, figure, says, seeds: FIVE, ways: WAYS, checks }
}

/// Figure 10.
pub const FIG10: Claim = claim(
    "csw-fig10",
    "figure 10",
    "Iometer, 60 % random: CSWLRU has the fewest page writes, erases and full merges of LRU, CFLRU, CFDC, FAB",
    BEST,
);

/// Figure 11.
pub const FIG11: Claim =
    claim("csw-fig11", "figure 11", "Iometer, sequential: all policies are alike", ALIKE);

/// Figure 12.
pub const FIG12: Claim = claim(
    "csw-fig12",
    "figure 12",
    "Iometer, random: CSWLRU has the fewest page writes, erases and full merges of LRU, CFLRU, CFDC, FAB",
    BEST,
);

/// Figure 13.
pub const FIG13: Claim = claim(
    "csw-fig13",
    "figure 13",
    "P2P download of a 739 MB file: CSWLRU has the fewest page writes, erases and full merges of LRU, CFLRU, CFDC, FAB",
    BEST,
);
