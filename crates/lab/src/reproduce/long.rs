//! What the long form, `--full`, has that the short one has not.

/// By experiment.
pub(super) const LONG: &[(&str, &str)] = &[
    ("nfh-fig13", "the large file is the paper's, 256 MiB, for 64 MiB"),
    ("nfh-fig14", "the large file is the paper's, 256 MiB, for 64 MiB"),
    ("nfh-fig15", "the large file is the paper's, 256 MiB, for 64 MiB"),
    ("nfh-fig19", "the paper's 100 000 transactions for 20 000, which is what the recorded peers made"),
    ("nfh-fig20", "the paper's 1 GiB for 256 MiB, which is what the recorded peers wrote"),
    ("cmfs-mount", "parts of more than 1 GB, up to 16 GB"),
    ("cmfs-ratio", "parts of 1 GB beside those of 128 MB"),
    ("csw-fig10", "every policy on every translation layer, for the paper's on BAST, FAST and the page map"),
    ("csw-fig11", "every policy on every translation layer, for the paper's on BAST, FAST and the page map"),
    ("csw-fig12", "every policy on every translation layer, for the paper's on BAST, FAST and the page map"),
    ("csw-fig13", "every policy on every translation layer, and caches of 256 MiB"),
    ("osd-fig2a", "nine flashes, 70 to 90 % full in segments of 256 to 1024 KiB, for one"),
    ("osd-fig2b", "nine flashes, 70 to 90 % full in segments of 256 to 1024 KiB, for one"),
    (
        "cache-tide",
        "also the 35 traces that the policy was tuned on, block traces with and without their flushes",
    ),
];

/// Of an experiment; nothing where both forms are the same.
pub(super) fn long(id: &str) -> Option<&'static str> {
    LONG.iter().find(|(of, _)| *of == id).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::super::EXPERIMENTS;
    use super::*;

    /// Every file that asks which form it is, and the experiments that it has.
    const ASK: [(&str, &str, &[&str]); 7] = [
        (
            "nfh/extents.rs",
            include_str!("experiments/nfh/extents.rs"),
            &["nfh-fig13", "nfh-fig14", "nfh-fig15"],
        ),
        ("nfh/marks.rs", include_str!("experiments/nfh/marks.rs"), &["nfh-fig19", "nfh-fig20"]),
        ("cmfs/mounting.rs", include_str!("experiments/cmfs/mounting.rs"), &["cmfs-mount"]),
        ("cmfs/coding.rs", include_str!("experiments/cmfs/coding.rs"), &["cmfs-ratio"]),
        ("csw.rs", include_str!("experiments/csw.rs"), &["csw-fig10", "csw-fig11", "csw-fig12", "csw-fig13"]),
        ("osd.rs", include_str!("experiments/osd.rs"), &["osd-fig2a", "osd-fig2b"]),
        ("tide.rs", include_str!("experiments/tide.rs"), &["cache-tide"]),
    ];

    #[test]
    fn every_experiment_with_a_long_form_says_what_that_has_and_the_document_does() {
        let document = include_str!("../../../../docs/traces.md");
        let mut told = 0;
        for (file, text, ids) in ASK {
            assert!(text.contains("setting.full"), "{file}");
            for id in ids {
                assert!(EXPERIMENTS.find(id).is_ok() && long(id).is_some(), "{id}");
                assert!(document.contains(&format!("`{id}`")), "docs/traces.md says nothing of {id}");
                told += 1;
            }
        }
        assert_eq!(told, LONG.len());
    }
}
