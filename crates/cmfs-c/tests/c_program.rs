//! C programs against the header and the library, as firmware uses them: the example, and one that uses every function, each
//! built with every warning the compiler has and run, the latter under valgrind, too; and the header alone in C++.

use std::path::{Path, PathBuf};
use std::process::Command;

fn compiler(name: &str) -> Option<&str> {
    let found = Command::new(name).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {name}");
    }
    found.then_some(name)
}

/// The static library that was built with this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let deps = own.parent().unwrap();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name == "libcmfs.a" || name.starts_with("libcmfs-") && name.ends_with(".a")
    };
    let all = [deps, deps.parent().unwrap()].into_iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let found = all.map(|entry| entry.unwrap().path()).filter(is_ours);
    let age = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).unwrap();
    found.max_by_key(age).expect("libcmfs.a beside the test")
}

fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?}: {error}", output.status.code());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program of this crate, built with every warning the compiler has.
fn build(cc: &str, source: &str, program: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    ok(Command::new(cc)
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1", "-g", "-I"])
        .arg(here.join("include"))
        .arg(here.join(source))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(program));
}

#[test]
fn the_example_builds_without_a_warning_and_does_what_it_says() {
    let Some(cc) = compiler("cc") else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("firmware");
    build(cc, "examples/firmware.c", &program);
    assert_eq!(ok(&mut Command::new(&program)), "all is well\n");
}

/// Names of functions that the header declares.
fn functions() -> Vec<String> {
    let header =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/cmfs.h")).unwrap();
    let without: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    let called = without.match_indices("cmfs_").filter_map(|(at, _)| {
        let name: String =
            without[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        without[at + name.len()..].starts_with('(').then_some(name)
    });
    called.collect()
}

#[test]
fn a_program_uses_every_function_of_the_header_and_the_library_has_no_other() {
    let Some(cc) = compiler("cc") else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/every_function.c");
    let text = std::fs::read_to_string(source).unwrap();
    let functions = functions();
    assert!(functions.len() > 40, "{functions:?}");
    for function in &functions {
        assert!(text.contains(&format!("{function}(")), "{function} is not used");
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("every_function");
    build(cc, "tests/every_function.c", &program);
    assert_eq!(ok(&mut Command::new(&program)), "all is well\n");
    assert_eq!(ok(Command::new(&program).arg("bounded")), "all is well, in bounded memory\n");
    if compiler("nm").is_some() {
        let symbols = ok(Command::new("nm").args(["--defined-only", "--extern-only"]).arg(library()));
        let exported = symbols.lines().filter_map(|line| line.split_once(" T cmfs_")).map(|(_, name)| name);
        let mut unknown = exported.filter(|name| !functions.contains(&format!("cmfs_{name}")));
        assert_eq!(unknown.next(), None);
    }
    if compiler("valgrind").is_some() {
        let quiet =
            ["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"];
        assert_eq!(ok(Command::new("valgrind").args(quiet).arg(&program)), "all is well\n");
        let bounded = ok(Command::new("valgrind").args(quiet).arg(&program).arg("bounded"));
        assert_eq!(bounded, "all is well, in bounded memory\n");
    }
}

#[test]
fn the_header_stands_alone_in_c_and_in_cpp() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/cmfs.h");
    for (name, language) in [("cc", "c"), ("c++", "c++")] {
        if let Some(compiler) = compiler(name) {
            ok(Command::new(compiler)
                .args(["-fsyntax-only", "-Wall", "-Werror", "-x", language])
                .arg(&header));
        }
    }
}
