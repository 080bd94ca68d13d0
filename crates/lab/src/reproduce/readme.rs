//! What README.md shows of the claims: how many hold, and three figures, both of the verdicts that were recorded last.
//!
//! `bimetal reproduce claims --plots docs/figures` draws the figures; a test sees that they and the summary are what the recorded
//! verdicts give, and makes them again with `WRITE_CLAIMS=1`.

use super::Found;
use super::claim_table::Recorded;
use super::figures;
use crate::chart::{self, Chart};
use bimetal_base::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// Experiments and the parts of them that are shown: all of their figures are asked for by checks, so that all are recorded.
const SHOWN: [(&str, &str); 3] = [("nfh-fig8", ""), ("nfh-align", "-copies"), ("csw-fig10", "-erases")];

/// Draws the figures into a folder, as SVG.
///
/// # Errors
/// One of them was not recorded; the files cannot be written.
pub(super) fn draw(dir: &Path, recorded: &BTreeMap<String, Recorded>) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|why| Error::io(dir.display(), why))?;
    for (id, chart) in charts(recorded)? {
        chart::save(&dir.join(format!("{id}{}.svg", chart.part)), &chart)?;
    }
    Ok(())
}

fn charts(recorded: &BTreeMap<String, Recorded>) -> Result<Vec<(&'static str, Chart)>> {
    let chart = |(id, part): (&'static str, &str)| {
        let missing = || Error::invalid(format!("{id}: nothing was recorded"));
        let found = Found { seeds: vec![(1, recorded.get(id).ok_or_else(missing)?.measured())] };
        let charts = figures::charts(id, &found.rows());
        let chart = charts.into_iter().find(|chart| chart.part == part).ok_or_else(missing)?;
        Ok((id, chart))
    };
    SHOWN.into_iter().map(chart).collect()
}

#[cfg(test)]
mod tests {
    use super::super::claim_table;
    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    /// Around what is generated.
    const MARKS: [&str; 2] = ["<!-- claims -->\n", "<!-- end of claims -->"];

    #[test]
    fn readme_shows_the_summary_and_the_figures_of_what_was_recorded() {
        let recorded = claim_table::lying().unwrap();
        let (path, folder) = (format!("{ROOT}/README.md"), format!("{ROOT}/docs/figures"));
        let readme = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = readme.split_once(MARKS[0]).unwrap();
        let (_, after) = rest.split_once(MARKS[1]).unwrap();
        let made = format!("{before}{}{}{}{after}", MARKS[0], claim_table::summary(&recorded), MARKS[1]);
        if std::env::var_os("WRITE_CLAIMS").is_some() {
            std::fs::write(&path, &made).unwrap();
            draw(Path::new(&folder), &recorded).unwrap();
        }
        let readme = std::fs::read_to_string(&path).unwrap();
        assert!(readme == made, "README.md's summary of the claims is old; WRITE_CLAIMS=1 makes it again");
        for (id, chart) in charts(&recorded).unwrap() {
            let name = format!("{id}{}.svg", chart.part);
            let lies = std::fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
            assert!(
                lies == chart::svg(&chart).unwrap(),
                "docs/figures/{name} is old; WRITE_CLAIMS=1 makes it again"
            );
            assert!(readme.contains(&format!("docs/figures/{name}")), "{name} is not in README.md");
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), SHOWN.len());
    }

    #[test]
    fn a_figure_of_nothing_is_an_error() {
        let why = charts(&BTreeMap::new()).unwrap_err().to_string();
        assert!(why.contains("nfh-fig8: nothing was recorded"), "{why}");
    }
}
