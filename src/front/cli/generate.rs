//! Man pages and shell completions, written from the same description as `--help`.

use crate::media::guard;
use crate::{Error, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man as Page;
use std::fmt::Write;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const MAN_EXAMPLES: &str = "\
Example:
  bimetal man /usr/local/share/man/man1; man bimetal-mount";

/// What `--help` ends with, by how a paragraph begins, and the section of a man page that it is.
const SECTIONS: [(&str, &str); 3] =
    [("Example", "EXAMPLES"), ("Environment:", "ENVIRONMENT"), ("Ends with", "EXIT STATUS")];
/// The section of everything else.
const NOTES: &str = "NOTES";

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
        let mut command = command.clone().disable_help_subcommand(true);
        command.build();
        write_pages(&command, &self.dir)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A page for a command and each one below it.
fn write_pages(command: &Command, dir: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, dir)?;
    }
    let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let page = Page::new(command.clone().after_help(None::<&str>).after_long_help(None::<&str>));
    let path = dir.join(page.get_filename());
    let failed = |why| Error::io(path.display(), why);
    let mut text = Vec::new();
    page.render(&mut text).map_err(failed)?;
    text.extend(sections(&after.unwrap_or_default()).into_bytes());
    guard::whole(&path, |file| file.write_all(&text).map_err(failed))
}

/// The end of a `--help` as sections of a man page, with its lines as they are.
fn sections(help: &str) -> String {
    let mut out = String::new();
    let mut current = "";
    for line in help.lines() {
        let named = SECTIONS.iter().find(|(begin, _)| line.starts_with(begin));
        // What is indented, goes on in the middle of a sentence, or is a heading, belongs to what is before it.
        let begins = line.starts_with(|first: char| first.is_uppercase() || first == '`');
        let section = match named {
            Some((_, section)) => section,
            None if begins && !line.ends_with(':') => NOTES,
            None => current,
        };
        if section != current {
            let end = if current.is_empty() { "" } else { ".fi\n" };
            let _ = writeln!(out, "{end}.SH {section}\n.nf");
            current = section;
        }
        let is_heading = named.is_some() && line.ends_with(':') && section != "EXIT STATUS";
        if !is_heading {
            let _ = writeln!(out, "\\&{}", escaped(line));
        }
    }
    if !current.is_empty() {
        out.push_str(".fi\n");
    }
    out
}

/// A line that roff(7) shows as it is, to be copied.
fn escaped(line: &str) -> String {
    let signs =
        [('\\', "\\e"), ('-', "\\-"), ('\'', "\\(aq"), ('`', "\\(ga"), ('~', "\\(ti"), ('^', "\\(ha")];
    let escape = |sign: char| signs.iter().find(|(known, _)| *known == sign).map(|(_, escape)| *escape);
    line.chars().fold(String::new(), |mut out, sign| {
        match escape(sign) {
            Some(escape) => out.push_str(escape),
            None => out.push(sign),
        }
        out
    })
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

/// How clap_complete completes the names of files, one word for each blank in them.
const SPLIT_NAMES: &str = r#"COMPREPLY=($(compgen -f "${cur}"))"#;

impl Completions {
    pub fn run(&self, command: &mut Command) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "bimetal", &mut script);
        if self.shell == Shell::Bash {
            // A name is one word, whatever is in it, and is quoted as one.
            let whole =
                r#"mapfile -t COMPREPLY < <(compgen -f -- "${cur}"); compopt -o filenames 2>/dev/null"#;
            script = String::from_utf8_lossy(&script).replace(SPLIT_NAMES, whole).into_bytes();
        }
        super::said(io::Write::write_all(&mut io::stdout(), &script))?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_help_ends_with_becomes_sections_with_its_lines_as_they_are() {
        let help = "Examples:\n  bimetal x -n   look\n`bimetal y` shows more.\nEnds with these codes:\n  0  well\nas always.";
        let meant = ".SH EXAMPLES\n.nf\n\\&  bimetal x \\-n   look\n.fi\n.SH NOTES\n.nf\n\\&\\(gabimetal y\\(ga shows more.\n.fi\n\
                     .SH EXIT STATUS\n.nf\n\\&Ends with these codes:\n\\&  0  well\n\\&as always.\n.fi\n";
        assert_eq!(sections(help), meant);
        assert_eq!(sections(""), "");
    }
}
