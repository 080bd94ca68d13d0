//! The `bimetal` command.

/// musl's own allocator gives each buffer of some hundred KiB back to the kernel, and takes its pages anew.
#[cfg(target_env = "musl")]
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    bimetal::front::cli::main()
}
