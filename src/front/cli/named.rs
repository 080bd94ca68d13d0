//! Which volume a command line means: what it says itself, and the environment where it says nothing.
//!
//! A volume is named by two halves (`--ssd`, `--disk`) or by flash (`--nand`, `--nvram`), each with a variable of the
//! environment. The command line wins as a whole: where one of the four is on it, or `--stack`, no variable counts, so
//! that no volume is put together of parts of two. `-t` alone leaves the variables of its kind. Two kinds at once are
//! refused by name.

use crate::front::kinds::{KINDS, LiesOn};
use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error};
use std::ffi::OsString;

const HALVES: [&str; 2] = ["ssd", "disk"];
const FLASH: [&str; 2] = ["nand", "nvram"];

/// The command as it takes this line: without the variables that do not count.
pub(super) fn command_for(command: Command, args: &[OsString]) -> Command {
    let unheard = unheard(command.clone(), args);
    without_variables(command, &unheard)
}

fn without_variables(mut command: Command, options: &[&'static str]) -> Command {
    for option in options {
        if command.get_arguments().any(|one| one.get_id() == *option) {
            command = command.mut_arg(option, |one| one.env(Resettable::Reset));
        }
    }
    command.mut_subcommands(|verb| without_variables(verb, options))
}

/// The options whose variables do not count for a command line, as the command itself reads it.
fn unheard(command: Command, args: &[OsString]) -> Vec<&'static str> {
    let all = || HALVES.into_iter().chain(FLASH);
    // Of a line that makes no sense, the rest.
    let bare = without_variables(command, &all().collect::<Vec<_>>()).ignore_errors(true);
    let Ok(read) = bare.try_get_matches_from(args) else { return Vec::new() };
    let verb = last(&read);
    let said = |option: &str| {
        verb.try_contains_id(option).unwrap_or(false)
            && verb.value_source(option) == Some(ValueSource::CommandLine)
    };
    if all().chain(["stack"]).any(said) {
        return all().collect();
    }
    let kind = verb.try_get_one::<String>("kind").ok().flatten().filter(|_| said("kind"));
    let mut unheard: Vec<_> = match kind.and_then(|kind| KINDS.find(kind).ok()).map(|kind| kind.lies_on) {
        None => Vec::new(),
        Some(LiesOn::Halves) => FLASH.to_vec(),
        Some(LiesOn::Nand { .. }) => HALVES.to_vec(),
        Some(LiesOn::Block(_) | LiesOn::Nothing) => all().collect(),
    };
    let mut options = verb.try_get_many::<String>("options").ok().flatten().into_iter().flatten();
    if said("without_ssd") || options.any(|option| option == "without-ssd") {
        unheard.push("ssd");
    }
    unheard
}

/// What was said of the verb, below all verbs around it.
fn last(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, below)| last(below))
}

/// Whether the verb is to answer in JSON.
pub(super) fn is_json(matches: &ArgMatches) -> bool {
    last(matches).try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json)
}

/// An error if a command line, or the environment where that counts, names volumes of two kinds.
pub(super) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let verb = last(matches);
    // Only of a volume there can be either.
    if [HALVES[1], FLASH[0]].iter().any(|option| verb.try_contains_id(option).is_err()) {
        return Ok(());
    }
    let named = |options: [&'static str; 2]| options.into_iter().find_map(|option| named(verb, option));
    let (halves, flash) = (named(HALVES), named(FLASH));
    let kind = verb.try_get_one::<String>("kind").ok().flatten();
    let kind = kind.filter(|_| verb.value_source("kind") == Some(ValueSource::CommandLine));
    let lies_on = kind.and_then(|kind| Some((format!("-t {kind}"), KINDS.find(kind).ok()?.lies_on)));
    let conflict = match (&halves, &flash, &lies_on) {
        (Some(halves), Some(flash), _) => Some((halves, flash)),
        (Some(halves), _, Some((kind, LiesOn::Nand { .. } | LiesOn::Nothing))) => Some((kind, halves)),
        (_, Some(flash), Some((kind, LiesOn::Halves | LiesOn::Nothing))) => Some((kind, flash)),
        _ => None,
    };
    conflict.map_or(Ok(()), |(one, other)| {
        let text = format!(
            "{one} and {other} name volumes of two kinds; say which is meant: --ssd and --disk for an SSD and a disk, --nand (and \
             --nvram) for flash"
        );
        Err(command.error(ErrorKind::ArgumentConflict, text))
    })
}

/// How an option, or its variable, is called where it is given.
fn named(verb: &ArgMatches, option: &'static str) -> Option<String> {
    match verb.try_contains_id(option).unwrap_or(false).then(|| verb.value_source(option))?? {
        ValueSource::EnvVariable => Some(format!("BIMETAL_{}", option.to_uppercase())),
        _ => Some(format!("--{option}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn unheard_of(line: &str) -> Vec<&'static str> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        unheard(crate::front::cli::Cli::command(), &words)
    }

    #[test]
    fn a_word_on_the_command_line_wins_over_the_ssd_of_the_environment() {
        for line in [
            "bimetal fsck --without-ssd",
            "bimetal mount -o ro,without-ssd m",
            "bimetal mount -owithout-ssd m",
            "bimetal mount --options=without-ssd m",
            "bimetal mount --options ro,without-ssd m",
            "bimetal mount -o=without-ssd m",
            "bimetal mount -fo ro,without-ssd m",
            "bimetal mount -foro,without-ssd m",
            "bimetal crash -o without-ssd -- x",
        ] {
            assert_eq!(unheard_of(line), ["ssd"], "{line}");
        }
        for line in [
            "bimetal mount -o ro without-ssd",
            "bimetal put without-ssd /",
            "bimetal crash -- x --without-ssd",
            "bimetal crash -- x --ssd y",
        ] {
            assert!(unheard_of(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn what_is_named_on_the_command_line_wins_over_the_environment_as_a_whole() {
        for line in [
            "bimetal fsck --ssd s --disk d",
            "bimetal fsck --disk=d",
            "bimetal ls --nand n",
            "bimetal mount --stack f m",
            "bimetal mount -t memfs m",
        ] {
            assert_eq!(unheard_of(line), ["ssd", "disk", "nand", "nvram"], "{line}");
        }
        assert_eq!(unheard_of("bimetal ls -t nfhybrid"), FLASH);
        assert_eq!(unheard_of("bimetal ls --type=cmfs"), HALVES);
        assert_eq!(unheard_of("bimetal ls -tosd"), HALVES);
        assert!(unheard_of("bimetal ls /").is_empty());
    }
}
