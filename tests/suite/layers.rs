//! The layers are packages, and what the compiler does not hold of their order is held here: that a package names only
//! packages below it (the compiler refuses a circle, and no more), that the libraries for C stay free of what only a
//! command needs, and that the Rust version this project asks for is the one it takes.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// Top to bottom. A package may use those in the lines below its own.
const STACK: &[&[&str]] = &[
    &["bimetal", "cmfs-c", "osd-c"],
    &["bimetal-lab", "bimetal-fuse"],
    &["bimetal-trace"],
    &["bimetal-nfhybrid", "bimetal-cmfs", "bimetal-osdfs", "bimetal-fat", "bimetal-memfs"],
    &["bimetal-ext4", "bimetal-osd-core", "cmfs-core"],
    &["bimetal-vfs"],
    &["bimetal-cache"],
    &["bimetal-ftl"],
    &["bimetal-media"],
    &["bimetal-base"],
];

/// What a library for C has no use for, and the most packages each may take, itself among them.
const NOT_FOR_C: [&str; 6] = ["fuser", "plotters", "parquet", "clap", "indicatif", "zstd"];
const FOR_C: [(&str, usize); 2] = [("osd-c", 55), ("cmfs-c", 16)];

fn cargo(arguments: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output().expect("cargo");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn metadata(arguments: &[&str]) -> Vec<Value> {
    let said = cargo(&[&["metadata", "--offline", "--format-version", "1"], arguments].concat());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    said["packages"].as_array().expect("packages").clone()
}

fn rank(name: &str) -> Option<usize> {
    STACK.iter().position(|line| line.contains(&name))
}

/// What is wrong with a package that names another, if both are ours.
fn upward(name: &str, dependency: &str) -> Option<String> {
    let (own, other) = (rank(name)?, rank(dependency)?);
    (other <= own).then(|| format!("{name} names {dependency}, which is not below it"))
}

#[test]
fn a_package_names_only_packages_below_it() {
    let members = metadata(&["--no-deps"]);
    let name = |value: &Value| value["name"].as_str().expect("a name").to_string();
    let mut wrong = Vec::new();
    for member in &members {
        let own = name(member);
        assert!(rank(&own).is_some(), "{own} has no place in STACK");
        let dependencies = member["dependencies"].as_array().expect("a list");
        wrong.extend(dependencies.iter().filter_map(|dependency| upward(&own, &name(dependency))));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        members.len(),
        STACK.iter().map(|line| line.len()).sum::<usize>(),
        "STACK names who is not there"
    );
}

#[test]
fn a_dependency_on_what_is_above_or_beside_would_be_found() {
    for (own, other) in
        [("bimetal-media", "bimetal-ftl"), ("bimetal-fat", "bimetal-memfs"), ("osd-c", "bimetal")]
    {
        assert!(upward(own, other).is_some(), "{own}, {other}");
    }
    for (own, other) in [("bimetal-ftl", "bimetal-media"), ("bimetal-ext4", "serde")] {
        assert!(upward(own, other).is_none(), "{own}, {other}");
    }
}

#[test]
fn the_libraries_for_c_take_what_they_need_and_no_more() {
    for (library, most) in FOR_C {
        let tree =
            cargo(&["tree", "--locked", "--offline", "-p", library, "-e", "normal", "--prefix", "none"]);
        let packages: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        let needless: Vec<_> = NOT_FOR_C.iter().filter(|name| packages.contains(*name)).collect();
        assert!(needless.is_empty(), "{library} takes {needless:?}");
        assert!(
            (2..=most).contains(&packages.len()),
            "{library} takes {} packages: {packages:?}",
            packages.len()
        );
    }
}

#[test]
fn the_rust_version_asked_for_is_what_the_locked_dependencies_need() {
    let version =
        |text: &str| text.split('.').map(|part| part.parse().expect("a number")).collect::<Vec<u32>>();
    let stated = version(env!("CARGO_PKG_RUST_VERSION"));
    let mut needed = Vec::new();
    for package in metadata(&["--locked", "--filter-platform", "host-tuple"]) {
        let own = package["source"].is_null();
        match package["rust_version"].as_str() {
            Some(text) if own => assert_eq!(version(text), stated, "{}", package["name"]),
            Some(text) => needed.push((version(text), package["name"].to_string())),
            None => assert!(!own, "{} states no version", package["name"]),
        }
    }
    let (highest, by) = needed.into_iter().max().expect("a dependency that states one");
    assert!(stated >= highest, "rust-version is {stated:?}, but {by} needs {highest:?}");
}
