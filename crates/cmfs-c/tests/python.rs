//! The Python package over the library that was built with this test, without a wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The dynamic library that was built with this test.
fn library() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let deps = own.parent().unwrap();
    [deps, deps.parent().unwrap()].into_iter().map(|dir| dir.join("libcmfs.so")).find(|path| path.exists())
}

#[test]
fn the_python_package_keeps_its_promises() {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    let Some(library) = library().filter(|_| found) else {
        println!("skipped: there is no python3, or no dynamic library");
        return;
    };
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let output = Command::new("python3")
        .args(["-B", "tests/test_cmfs.py"])
        .current_dir(&package)
        .env("PYTHONPATH", &package)
        .env("CMFS_LIBRARY", library)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("OK"), "{text}");
}
