//! `bimetal mkfs`: a new file system on devices or images; which kinds there are, and what each is told, stands with the kind.

use super::progress::Progress;
use crate::Result;
use crate::front::kinds::{KINDS, Made, Make};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand, error::ErrorKind};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example:
  truncate -s 256M ssd.img; truncate -s 4G disk.img
  bimetal mkfs nfhybrid --ssd ssd.img --disk disk.img
`bimetal mkfs TYPE --help` shows what each type is told, with examples.";

/// A new file system, of the kind that was named; whether it is told of in JSON.
#[derive(Debug)]
pub(super) struct Mkfs(Box<dyn Make>, bool);

impl FromArgMatches for Mkfs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Mkfs, clap::Error> {
        let missing = || clap::Error::new(ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let kind = KINDS.find(name).map_err(|_| missing())?;
        let mkfs = kind.mkfs.as_ref().ok_or_else(missing)?;
        Ok(Mkfs((mkfs.parse)(matches)?, matches.get_flag("json")))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Mkfs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Mkfs {
    fn augment_subcommands(command: Command) -> Command {
        let own = KINDS.iter().filter_map(|kind| {
            let mkfs = kind.mkfs.as_ref()?;
            let json = Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("What was made, as one JSON object");
            Some((mkfs.command)(Command::new(kind.name)).arg(json))
        });
        command
            .about("Make a file system")
            .after_help(EXAMPLES)
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(own)
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Mkfs::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        KINDS.iter().any(|kind| kind.name == name && kind.mkfs.is_some())
    }
}

impl Mkfs {
    pub fn run(&self) -> Result<ExitCode> {
        let progress = Progress::spinner("making the file system");
        let made = self.0.make();
        progress.done();
        tell(&made?, self.1)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Says what was made.
pub(super) fn tell(made: &Made, json: bool) -> Result<()> {
    super::say(&if json { super::as_line(&made.told) } else { made.text.clone() })
}
