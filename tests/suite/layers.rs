//! The stack is the folders' order: nothing imports upward.

use std::fs;
use std::path::{Path, PathBuf};

/// Top to bottom. A folder may use itself and what comes after it.
const STACK: [&str; 5] = ["front", "fs", "cache", "ftl", "media"];

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("source folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

fn layers_named_in(line: &str) -> impl Iterator<Item = usize> + '_ {
    let code = line.split("//").next().unwrap_or("");
    STACK
        .iter()
        .enumerate()
        .filter(move |(_, layer)| {
            code.match_indices("crate::").any(|(at, _)| {
                let rest = &code[at + "crate::".len()..];
                let names: Vec<&str> = match rest.strip_prefix('{') {
                    Some(group) => group.split(',').map(str::trim).collect(),
                    None => vec![rest],
                };
                names.iter().any(|name| {
                    name.strip_prefix(**layer)
                        .is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
                })
            })
        })
        .map(|(index, _)| index)
}

fn upward_imports(own: usize, text: &str) -> Vec<String> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| layers_named_in(line).any(|used| used < own))
        .map(|(number, line)| format!("{}: {}", number + 1, line.trim()))
        .collect()
}

#[test]
fn no_layer_imports_from_a_layer_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (own, layer) in STACK.iter().enumerate() {
        let mut files = Vec::new();
        rust_files(&root.join(layer), &mut files);
        for file in files {
            seen += 1;
            let text = fs::read_to_string(&file).expect("readable source");
            wrong.extend(upward_imports(own, &text).iter().map(|line| format!("{}:{line}", file.display())));
        }
    }
    assert!(seen >= STACK.len(), "the source folders were not found");
    assert!(wrong.is_empty(), "upward imports:\n{}", wrong.join("\n"));
}

#[test]
fn an_upward_import_would_be_found() {
    let media = STACK.len() - 1;
    for line in ["use crate::fs::Later;", "    crate::front::cli::main()", "use crate::{Error, fs};"] {
        assert_eq!(upward_imports(media, line).len(), 1, "{line}");
    }
    for line in ["use crate::ftl_notes::x;", "// crate::fs is above", "use crate::media::ram;"] {
        assert!(upward_imports(media, line).is_empty(), "{line}");
    }
}
