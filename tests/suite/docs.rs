//! The documents tell what the program has.

use crate::mounts::{bimetal, no_fuse, skip};
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
    let program = bimetal().get_program().to_owned();
    let program = Path::new(&program).parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let run = Command::new("sh")
        .args(["-euc", &script])
        .env("TMPDIR", home.path())
        .env("PATH", format!("{program}:/usr/sbin:/sbin:{path}"))
        .output()
        .expect("sh(1)");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    for part in ["The disk alone", "small", "every byte is the same", "the tour is over"] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
}
