//! One page with everything: the claims to sort and filter, every experiment's figures drawn, and its configuration.
//!
//! It needs nothing beside itself: uPlot (MIT), which draws, is in it. Which figures belong in one chart follows from their
//! names: points of one quantity are curves, one quantity of several things in several settings is bars.

use super::claim_table;
use super::claims::CLAIMS;
use super::judge::Verdict;
use super::{Done, Row};
use bimetal_base::{Error, Result};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

const PAGE: &str = include_str!("page.html");
/// What stands in the page for what, in this order.
const PARTS: [(&str, &str); 4] = [
    ("/*uplot.css*/", include_str!("uplot.css")),
    ("/*page.css*/", include_str!("page.css")),
    ("/*uplot.js*/", include_str!("uplot.js")),
    ("/*page.js*/", include_str!("page.js")),
];

/// A claim as the page lists it.
#[derive(Serialize)]
struct Listed {
    id: &'static str,
    paper: String,
    says: &'static str,
    seeds: String,
    verdict: Verdict,
    name: &'static str,
    why: String,
}

/// An experiment as the page shows it.
#[derive(Serialize)]
struct Shown<'a> {
    id: &'a str,
    about: &'a str,
    verdict: Option<Verdict>,
    name: &'static str,
    why: &'a str,
    seeds: Vec<u64>,
    rows: Vec<Row>,
    config: Option<&'a Value>,
}

#[derive(Serialize)]
struct Everything<'a> {
    claims: Vec<Listed>,
    done: Vec<Shown<'a>>,
}

/// Writes the page of these experiments; the claims of others have the verdict that was recorded last.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(path: &Path, all: &[Done]) -> Result<()> {
    std::fs::write(path, page(all)?).map_err(|why| Error::io(path.display(), why))
}

fn page(all: &[Done]) -> Result<String> {
    let recorded = claim_table::last()?;
    let claims = CLAIMS.iter().map(|claim| {
        let done = all.iter().find(|done| done.id == claim.id);
        let (verdict, seeds, why) = match done.and_then(|done| Some((done, done.judgement.as_ref()?))) {
            Some((done, judged)) => (judged.verdict, done.found.seeds.len().to_string(), judged.why.clone()),
            None => claim_table::cells(claim, &recorded),
        };
        let paper = format!("{}, {}", claim.paper.name(), claim.figure);
        Listed { id: claim.id, paper, says: claim.says, seeds, verdict, name: verdict.name(), why }
    });
    let done = all.iter().map(|done| Shown {
        id: &done.id,
        about: &done.about,
        verdict: done.judgement.as_ref().map(|judged| judged.verdict),
        name: done.judgement.as_ref().map_or("", |judged| judged.verdict.name()),
        why: done.judgement.as_ref().map_or("", |judged| &judged.why),
        seeds: done.found.seeds.iter().map(|(seed, _)| *seed).collect(),
        rows: done.found.rows(),
        config: done.found.seeds.first().map(|(_, measured)| &measured.config),
    });
    let everything = Everything { claims: claims.collect(), done: done.collect() };
    let data = serde_json::to_string(&everything).map_err(|why| Error::invalid(why.to_string()))?;
    // No text may end the element that it is in.
    let data = data.replace("</", "<\\/");
    let page = PARTS.iter().fold(PAGE.to_string(), |page, (mark, text)| page.replacen(mark, text, 1));
    Ok(page.replacen("<!--version-->", env!("CARGO_PKG_VERSION"), 1).replacen("<!--data-->", &data, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{Found, Measured};

    #[test]
    fn the_page_has_every_claim_and_needs_nothing_else_and_no_name_breaks_it() {
        let mut measured = Measured::default();
        measured.add("</script><b>/here/erases", "", 3.0);
        let found = Found { seeds: vec![(1, measured)] };
        let done = Done { id: "mine".into(), about: "</script>".into(), found, judgement: None, full: false };
        let page = page(&[done]).unwrap();
        let scripts = page.matches("</script>").count();
        assert_eq!((scripts, page.matches("<script").count()), (3, 3), "the data, uPlot and the page's own");
        assert!(CLAIMS.iter().all(|claim| page.contains(&format!("\"id\":\"{}\"", claim.id))));
        assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("<link"));
        assert!(PARTS.iter().all(|(mark, _)| !page.contains(mark)));
    }
}
