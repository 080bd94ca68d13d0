//! The documents tell what the program has.

use crate::mounts::{bimetal, need_fuse, no_fuse, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file of the project")
}

/// The variants of the error type, from its source: names in the first column of the enumeration's body.
fn variants() -> Vec<String> {
    let source = text("crates/base/src/error.rs");
    let body = source.split("pub enum Error {").nth(1).expect("the error type");
    let body = body.split("\n}").next().expect("its end");
    let name = |line: &str| {
        let name: String =
            line.strip_prefix("    ")?.chars().take_while(char::is_ascii_alphanumeric).collect();
        name.starts_with(|first: char| first.is_ascii_uppercase()).then_some(name)
    };
    body.lines().filter_map(name).collect()
}

#[test]
fn the_page_of_errors_lists_every_one_and_no_other() {
    let page = text("docs/errors.md");
    let mut listed: Vec<String> =
        page.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_string).collect();
    let mut known = variants();
    assert!(known.len() > 20, "{known:?}");
    listed.sort();
    known.sort();
    assert_eq!(listed, known);
}

#[test]
fn every_document_that_another_names_is_there() {
    for page in ["README.md", "docs/DESIGN.md", "docs/errors.md", "docs/install.md", "docs/reliability.md"] {
        let home = Path::new(page).parent().expect("a folder");
        let text = text(page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if !file.is_empty() && !link.contains("://") {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(home).join(file);
                assert!(path.exists(), "{page} names {link}");
            }
        }
    }
}

#[test]
fn the_tour_of_the_readme_works_as_it_is_pasted() {
    if let Some(why) = no_fuse() {
        return skip(&why);
    }
    let page = text("README.md");
    let tour = page.split("## A tour").nth(1).and_then(|rest| rest.split("```sh\n").nth(1));
    let tour = tour.and_then(|rest| rest.split("```").next()).expect("a script in the tour");
    let home = tempfile::tempdir().expect("a temporary directory");
    // Root already; and what the script mounts and makes goes even if it fails.
    let script = format!(
        "sudo() {{ \"$@\"; }}\ntrap 'umount -q mnt kernel || true' EXIT\n{tour}\necho the tour is over\n"
    );
    let run = Command::new("sh")
        .args(["-euc", &script])
        .env("TMPDIR", home.path())
        .env("PATH", path_with_program())
        .output()
        .expect("sh(1)");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    for part in ["The disk alone", "small", "every byte is the same", "the tour is over"] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
}

/// Pages of the book below `docs`, by their paths from there.
fn pages() -> BTreeMap<String, String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut todo = vec![home.clone()];
    let mut found = BTreeMap::new();
    while let Some(dir) = todo.pop() {
        for path in fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                let name = path.strip_prefix(&home).expect("below it").display().to_string();
                found.insert(name, fs::read_to_string(&path).expect("text"));
            }
        }
    }
    found
}

/// What is no code of a page, and the code of its blocks of a language.
fn prose_and_blocks(page: &str, language: &str) -> (String, String) {
    let (mut prose, mut blocks) = (String::new(), String::new());
    let mut inside: Option<bool> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), inside) {
            (Some(of), None) => inside = Some(of.trim() == language),
            (Some(_), Some(_)) => inside = None,
            (None, Some(true)) => blocks += &format!("{line}\n"),
            (None, Some(false)) => {}
            (None, None) if line.starts_with("    ") => {}
            // Every second part between backquotes is code.
            (None, None) => {
                prose += &line.split('`').step_by(2).collect::<Vec<_>>().join("");
                prose.push('\n');
            }
        }
    }
    assert_eq!(inside, None, "a block of code ends");
    (prose, blocks)
}

fn links(prose: &str) -> Vec<String> {
    prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_string())).collect()
}

/// The names by which mdBook, as GitHub does, finds a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let text = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?.trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
    };
    page.lines().filter_map(heading).collect()
}

#[test]
fn the_book_has_every_page_and_each_link_in_it_leads_somewhere() {
    let mut pages = pages();
    let config = text("docs/book.toml");
    assert!(config.contains("src = \".\"") && config.contains("title = \"bimetal\""), "{config}");
    let summary = links(&pages.remove("SUMMARY.md").expect("the book's summary"));
    let listed: BTreeSet<&String> = summary.iter().collect();
    assert_eq!(listed.len(), summary.len(), "a page is there once");
    assert_eq!(listed, pages.keys().collect(), "the summary has the pages that there are");
    let mut followed = 0;
    for (name, page) in &pages {
        let (prose, _) = prose_and_blocks(page, "sh");
        assert!(page.starts_with("# "), "{name} begins with its name");
        for link in links(&prose).iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let mut place: Vec<&str> = name.split('/').collect();
            place.pop();
            for part in file.split('/').filter(|part| !part.is_empty()) {
                match part {
                    ".." => assert!(place.pop().is_some(), "{name}: {link} leads out of the book"),
                    part => place.push(part),
                }
            }
            let target = if file.is_empty() { name.clone() } else { place.join("/") };
            followed += 1;
            if target.ends_with(".svg") {
                assert!(!text(&format!("docs/{target}")).is_empty(), "{name}: {link}");
                continue;
            }
            let found = pages.get(&target).unwrap_or_else(|| panic!("{name}: {link} leads nowhere"));
            assert!(anchor.is_empty() || anchors(found).contains(anchor), "{name}: {link}: no such heading");
        }
    }
    assert!(followed > 50, "{followed} links");
}

#[test]
fn the_promises_of_the_book_are_those_of_the_readme() {
    let table = |page: &str| {
        let rows: Vec<String> = page.lines().filter(|line| line.starts_with('|')).map(String::from).collect();
        rows
    };
    let readme = text("README.md");
    let section = readme.split("## What it promises").nth(1).and_then(|rest| rest.split("\n## ").next());
    let (of_readme, of_book) = (table(section.expect("the section")), table(&text("docs/promises.md")));
    assert!(of_readme.len() > 8);
    assert_eq!(of_readme, of_book);
}

#[test]
fn the_tours_of_the_book_work_as_they_are_pasted() {
    need_fuse!();
    for tour in ["administrator", "firmware", "researcher"] {
        let (_, script) = prose_and_blocks(&text(&format!("docs/tour/{tour}.md")), "sh");
        assert!(script.lines().count() > 5, "{tour}: {script}");
        runs_to_its_end(tour, &script, "umount -q mnt || true");
    }
}

/// Where programs are found, ours first.
fn path_with_program() -> String {
    let program = bimetal().get_program().to_owned();
    let program = Path::new(&program).parent().expect("a folder").display().to_string();
    format!("{program}:/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default())
}

/// Runs a script of a page in a folder of its own, and what clears up after it, whatever became of it.
fn runs_to_its_end(of: &str, script: &str, after: &str) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let whole = format!("trap '{after}' EXIT\n{script}\necho that is all\n");
    let run = Command::new("timeout")
        .args(["300", "bash", "-euc", &whole])
        .current_dir(home.path())
        .env("TMPDIR", home.path())
        .env("PATH", path_with_program())
        .output()
        .expect("bash(1)");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let complained = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.ends_with("that is all\n"), "{of}: {script}\n{said}{complained}");
}

/// The code of each block of a page that is of a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let parts = page.split("\n```").skip(1).step_by(2);
    parts.filter_map(|part| Some(part.strip_prefix(language)?.strip_prefix('\n')?.to_string())).collect()
}

/// Those that install, or take hours, are left out.
#[test]
fn each_block_of_the_readme_works_as_it_is_pasted() {
    need_fuse!();
    let blocks = blocks(&text("README.md"), "sh");
    let (left_out, pasted): (Vec<_>, Vec<_>) =
        blocks.iter().partition(|block| block.lines().any(|line| line.starts_with("make ")));
    assert!(left_out.len() == 2 && pasted.len() >= 7, "{blocks:?}");
    for block in pasted {
        let after = "umount -q mnt kernel served || true; jobs -p | xargs -r kill 2>/dev/null || true";
        runs_to_its_end("README.md", block, after);
    }
}

/// A line of a status without what differs from run to run: numbers, their units, bars.
fn masked(line: &str) -> String {
    let words = line.split_whitespace().filter(|word| {
        let is_number =
            word.trim_matches(&['(', ')', ',', '.'][..]).starts_with(|c: char| c.is_ascii_digit());
        let is_unit = matches!(word.trim_end_matches(['.', ',']), "B" | "KiB" | "MiB" | "GiB" | "s" | "%");
        let is_bar = word.starts_with('[') || word.ends_with(']');
        !is_number && !is_unit && !is_bar
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_status_that_the_readme_shows_is_that_of_its_tour() {
    need_fuse!();
    let page = text("README.md");
    let block = |after: &str, fence: &str| {
        let rest = page.split(after).nth(1).and_then(|rest| rest.split(fence).nth(1)).expect(after);
        rest.split("```").next().expect("its end").to_string()
    };
    let shown = block("`bimetal status` in the middle of it:", "```text\n");
    let tour = block("## A tour", "```sh\n");
    let tour = tour.split("bimetal map").next().expect("what comes before the status");
    let home = tempfile::tempdir().expect("a temporary directory");
    let run = Command::new("bash")
        .args(["-euc", &format!("trap 'bimetal umount mnt' EXIT\n{tour}")])
        .env("TMPDIR", home.path())
        .env("PATH", path_with_program())
        .output()
        .expect("bash(1)");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    let said = said.split_at(said.find("nfhybrid on").expect("a status")).1;
    let words = |text: &str| text.lines().map(masked).filter(|line| !line.is_empty()).collect::<Vec<_>>();
    assert_eq!(words(&shown), words(said), "\n{said}");
}
