//! The library on a Cortex-M4 under QEMU: code and memory that a life of files takes, held against what docs/cmfs.md says.
//! Two builds of the library take a while: it runs where `CORTEX_M` is set, and fails then if the target, the compiler or QEMU
//! is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "thumbv7em-none-eabi";
/// Bytes of code and constants: of the library with nothing left in that can be left out, and with all of it.
const CODE_MOST: [u64; 2] = [182_000, 206_000];
/// Bytes of memory in use at most with a bound of 32 KiB, and of stack.
const MEMORY_MOST: u64 = 64_000;
const STACK_MOST: u64 = 11_000;

fn has(command: &str, arguments: &[&str], wanted: &str) -> bool {
    let output = Command::new(command).args(arguments).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(wanted))
}

fn check_tools() {
    let here = has("arm-none-eabi-gcc", &["--version"], "gcc")
        && has("qemu-system-arm", &["-machine", "help"], "mps2-an386")
        && has("rustc", &["--print", "target-libdir", "--target", TARGET], TARGET)
        && Command::new("rustc")
            .args(["--print", "target-libdir", "--target", TARGET])
            .output()
            .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).exists());
    assert!(here, "CORTEX_M is set, but {TARGET}, arm-none-eabi-gcc or qemu-system-arm is missing");
}

fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?}: {error}", output.status.code());
    output
}

/// The library for the target, in a directory of its own.
fn build(features: &[&str]) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let target = own.ancestors().find(|dir| dir.ends_with("target")).unwrap().join("cortex-m");
    ok(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", "firmware", "--target", TARGET, "--no-default-features"])
        .args(features)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR")));
    target.join(TARGET).join("firmware/libcmfs.a")
}

/// Links the test program; bytes of code and constants in it.
fn link(library: &Path, program: &Path) -> u64 {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    ok(Command::new("arm-none-eabi-gcc")
        .args(["-std=c99", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=soft", "-Os", "-ffreestanding"])
        .args(["-Wall", "-Wextra", "-nostdlib", "-Wl,--gc-sections", "-Wl,-z,noexecstack", "-T"])
        .arg(here.join("tests/cortex_m/board.ld"))
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("tests/cortex_m/main.c"))
        .arg(library)
        .args(["-lgcc", "-o"])
        .arg(program));
    let sizes = ok(Command::new("arm-none-eabi-size").arg(program));
    let sizes = String::from_utf8_lossy(&sizes.stdout).into_owned();
    let line = sizes.lines().nth(1).unwrap_or_default();
    line.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a size")
}

#[test]
fn a_life_of_files_in_firmware_takes_no_more_code_and_memory_than_is_said() {
    if std::env::var_os("CORTEX_M").is_none() {
        println!("skipped: CORTEX_M is not set");
        return;
    }
    check_tools();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("firmware.elf");
    let all = link(&build(&["--features", "paper,yaffs2,summaries"]), &program);
    let least = link(&build(&[]), &program);
    println!("code: {least} bytes, {all} with all features");
    assert!(least <= CODE_MOST[0] && all <= CODE_MOST[1], "{least}, {all}: {CODE_MOST:?}");
    let run = Command::new("qemu-system-arm")
        .args(["-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none"])
        .args(["-semihosting-config", "enable=on,target=native", "-kernel"])
        .arg(&program)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    println!("{said}");
    assert!(run.status.success() && said.contains("all is well"), "{:?}: {said}", run.status.code());
    let number = |what: &str| -> u64 {
        let line = said.lines().find_map(|line| line.strip_prefix(what));
        line.and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| panic!("no {what} in {said}"))
    };
    let most = ["format", "mount", "work", "again"].map(number).into_iter().max().unwrap_or(0);
    assert!(most <= MEMORY_MOST && most <= number("needed"), "{most} bytes of memory: {said}");
    assert!(number("stack") <= STACK_MOST, "{said}");
}
