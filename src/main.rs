//! The `bimetal` command.

fn main() -> std::process::ExitCode {
    bimetal::front::cli::main()
}
