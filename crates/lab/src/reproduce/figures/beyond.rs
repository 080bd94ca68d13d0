//! What is of no paper.

use super::{Of, Plot, Plots, bars};

pub(super) const PLOTS: &[Plots] = &[
    (
        "osd-block",
        &[
            bars(
                "copies",
                "Placement handles on a page map: pages copied",
                "pages copied",
                &["{group}/{series}/copied"],
            ),
            bars(
                "erases",
                "Placement handles on a page map: erases",
                "blocks erased",
                &["{group}/{series}/erases"],
            ),
        ],
    ),
    (
        "fdp-cachelib",
        &[bars(
            "",
            "A flash cache with and without placement handles",
            "write amplification",
            &["{group}/{series}"],
        )],
    ),
    (
        "cache-tide",
        &[Plot {
            part: "",
            title: "Tide over CSWLRU in every setting of the traces that it was not tuned on",
            quantity: "Tide's over CSWLRU's",
            of: Of::Ranked(&[
                ("misses", "held out/{group}/tide/misses", "held out/{group}/cswlru/misses"),
                ("page writes", "held out/{group}/tide/page writes", "held out/{group}/cswlru/page writes"),
                ("erases", "held out/{group}/tide/erases", "held out/{group}/cswlru/erases"),
                ("time", "held out/{group}/tide/time", "held out/{group}/cswlru/time"),
            ]),
        }],
    ),
    ("kernel-fsync", &[bars("", "4 KiB appended and fsynced", "time of a sync (ms)", &["{group}/{series}"])]),
    (
        "trace-p2p",
        &[bars(
            "",
            "A download, recorded and generated: writes that do not follow the one before",
            "not sequential (%)",
            &["{group}/not sequential"],
        )],
    ),
    (
        "trace-inventory",
        &[bars(
            "",
            "The recorded traces: requests, counted and as written down",
            "requests",
            &["{}/{group} requests"],
        )],
    ),
];
