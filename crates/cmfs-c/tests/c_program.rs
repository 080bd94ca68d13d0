//! A C program against the header and the library, as firmware uses them: the example, built with every warning the
//! compiler has and run; and the header alone in C++.

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

#[test]
fn the_example_builds_without_a_warning_and_does_what_it_says() {
    let Some(cc) = compiler("cc") else { return };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("firmware");
    ok(Command::new(cc)
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O1", "-I"])
        .arg(here.join("include"))
        .arg(here.join("examples/firmware.c"))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program));
    assert_eq!(ok(&mut Command::new(&program)), "all is well\n");
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
