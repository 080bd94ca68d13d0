//! The CMake function that builds the library, and the Zephyr module over it, as projects use them: configured, built, and a program
//! linked to the library is run. Zephyr itself is not here; what the module calls of it is put in its place, and its
//! options are read by kconfiglib, as Zephyr reads them. Skipped where there is no CMake, or no kconfiglib.

use std::path::{Path, PathBuf};
use std::process::Command;

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {program}");
    }
    found
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {:?}: {out}{error}", output.status.code());
    out.into_owned()
}

/// A project of these files, built by a generator; the directory it is built in. It stays, so that the library is built once.
fn project(name: &str, generator: &str, files: &[(&str, String)]) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let root = own.ancestors().find(|dir| dir.ends_with("target")).unwrap().join("cmake").join(name);
    let (source, build) = (root.join("source"), root.join("build"));
    for (path, text) in files {
        let path = source.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    ok(Command::new("cmake").args(["-G", generator, "-S"]).arg(&source).arg("-B").arg(&build));
    ok(Command::new("cmake").arg("--build").arg(&build));
    build
}

/// The example of this crate.
fn example() -> (&'static str, String) {
    ("firmware.c", std::fs::read_to_string(here().join("examples/firmware.c")).unwrap())
}

#[test]
fn a_project_builds_the_library_with_cargo_and_a_program_with_it() {
    if !has("cmake") || !has("make") || !has("cc") {
        return;
    }
    // What was included below is called above, as where libraries have a directory of their own.
    let lists = "cmake_minimum_required(VERSION 3.17)\n\
                 project(board C)\n\
                 add_subdirectory(libraries)\n\
                 cmfs_add_library(cmfs FEATURES summaries malloc)\n\
                 add_executable(board firmware.c)\n\
                 target_link_libraries(board cmfs)\n";
    let below = format!("include(\"{}\")\n", here().join("cmake/cmfs.cmake").display());
    let files = [("CMakeLists.txt", lists.into()), ("libraries/CMakeLists.txt", below), example()];
    let build = project("library", "Unix Makefiles", &files);
    assert_eq!(ok(&mut Command::new(build.join("board"))), "all is well\n");
}

/// What the module calls of Zephyr, and an application that is linked to what it gives.
const ZEPHYR: &str = "cmake_minimum_required(VERSION 3.20)\n\
    project(application C)\n\
    set(CONFIG_CMFS y)\n\
    set(CONFIG_CMFS_FEATURES \"summaries,yaffs2\")\n\
    add_library(zephyr_interface INTERFACE)\n\
    function(zephyr_link_libraries)\n\
        target_link_libraries(zephyr_interface INTERFACE ${ARGN})\n\
    endfunction()\n\
    function(zephyr_include_directories)\n\
        target_include_directories(zephyr_interface INTERFACE ${ARGN})\n\
    endfunction()\n";

#[test]
fn the_zephyr_module_gives_what_an_application_links_to() {
    if !has("cmake") || !has("make") || !has("cc") {
        return;
    }
    let root = here().join("../..");
    let module = std::fs::read_to_string(root.join("zephyr/module.yml")).unwrap();
    let named = |key: &str| {
        let line = module.lines().find_map(|line| line.trim().strip_prefix(key));
        root.join(line.unwrap_or_else(|| panic!("no {key}")).trim())
    };
    let kconfig = std::fs::read_to_string(named("kconfig:")).unwrap();
    for option in ["config CMFS\n", "config CMFS_TARGET\n", "config CMFS_FEATURES\n"] {
        assert!(kconfig.contains(option), "no {option}");
    }
    let lists = format!(
        "{ZEPHYR}add_subdirectory(\"{}\" module)\n\
         add_executable(application firmware.c)\n\
         target_link_libraries(application zephyr_interface)\n",
        named("cmake:").display()
    );
    let build = project("zephyr", "Unix Makefiles", &[("CMakeLists.txt", lists), example()]);
    assert_eq!(ok(&mut Command::new(build.join("application"))), "all is well\n");
}

/// What Zephyr's own options are to the module's, and what is asked of them.
const OPTIONS: &str = "import kconfiglib, sys
for processor, target in [(None, 'thumbv7em-none-eabi'), ('CPU_CORTEX_M0', 'thumbv6m-none-eabi'),
                          ('CPU_CORTEX_M0PLUS', 'thumbv6m-none-eabi'), ('CPU_CORTEX_M3', 'thumbv7m-none-eabi'),
                          ('CPU_CORTEX_M33', 'thumbv8m.main-none-eabi'), ('RISCV', 'riscv32imac-unknown-none-elf')]:
    options = kconfiglib.Kconfig(sys.argv[1], warn_to_stderr=False)
    assert options.syms['CMFS'].str_value == 'n' and options.syms['CMFS_TARGET'].config_string == ''
    options.syms['CMFS'].set_value('y')
    if processor:
        options.syms[processor].set_value('y')
    found = [options.syms[name].str_value for name in ('CMFS_TARGET', 'CMFS_FEATURES')]
    assert found == [target, 'summaries'], (processor, found)
    assert not options.warnings, options.warnings
";

#[test]
fn the_zephyr_modules_options_choose_the_target_by_the_processor() {
    let import = Command::new("python3").args(["-c", "import kconfiglib"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no kconfiglib");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (top, script) = (dir.path().join("Kconfig"), dir.path().join("options.py"));
    let processors = ["CPU_CORTEX_M0", "CPU_CORTEX_M0PLUS", "CPU_CORTEX_M3", "CPU_CORTEX_M33", "RISCV"];
    let own: String = processors.iter().map(|name| format!("config {name}\n\tbool \"{name}\"\n\n")).collect();
    let module = here().join("zephyr/Kconfig");
    std::fs::write(&top, format!("{own}source \"{}\"\n", module.display())).unwrap();
    std::fs::write(&script, OPTIONS).unwrap();
    ok(Command::new("python3").arg(&script).arg(&top));
}
