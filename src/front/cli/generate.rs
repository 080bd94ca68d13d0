//! Man pages and shell completions, written from the same description as `--help`.

use crate::{Error, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

const MAN_EXAMPLES: &str = "\
Example:
  bimetal man /usr/local/share/man/man1; man bimetal-mount";

/// Write the man pages into a directory
#[derive(Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(super) struct Man {
    /// The directory, made if missing
    dir: PathBuf,
}

impl Man {
    pub fn run(&self, command: &Command) -> Result<ExitCode> {
        let failed = |why| Error::io(self.dir.display(), why);
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        clap_mangen::generate_to(command.clone(), &self.dir).map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

const EXAMPLES: &str = "\
Examples:
  bimetal completions bash > /etc/bash_completion.d/bimetal
  bimetal completions zsh > /usr/local/share/zsh/site-functions/_bimetal
  bimetal completions fish > ~/.config/fish/completions/bimetal.fish";

/// Write a completion script for a shell to standard output
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(&self, command: &mut Command) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "bimetal", &mut script);
        super::said(io::Write::write_all(&mut io::stdout(), &script))?;
        Ok(ExitCode::SUCCESS)
    }
}
