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
    let unheard = unheard(args);
    if unheard.is_empty() { command } else { without_variables(command, &unheard) }
}

fn without_variables(mut command: Command, options: &[&'static str]) -> Command {
    for option in options {
        if command.get_arguments().any(|one| one.get_id() == *option) {
            command = command.mut_arg(option, |one| one.env(Resettable::Reset));
        }
    }
    command.mut_subcommands(|verb| without_variables(verb, options))
}

/// The options whose variables do not count for a command line.
fn unheard(args: &[OsString]) -> Vec<&'static str> {
    let words = args.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
    let words: Vec<_> = words.collect();
    let all = || HALVES.into_iter().chain(FLASH);
    if all().chain(["stack"]).any(|option| values(&words, &format!("--{option}"), None).next().is_some()) {
        return all().collect();
    }
    let kind = values(&words, "--type", Some("-t")).last().and_then(|kind| KINDS.find(kind).ok());
    let mut unheard: Vec<_> = match kind.map(|kind| kind.lies_on) {
        None => Vec::new(),
        Some(LiesOn::Halves) => FLASH.to_vec(),
        Some(LiesOn::Nand { .. }) => HALVES.to_vec(),
        Some(LiesOn::Block(_) | LiesOn::Nothing) => all().collect(),
    };
    let mut options = values(&words, "--options", Some("-o")).flat_map(|list| list.split(','));
    let without_ssd = words.iter().any(|word| word == "--without-ssd");
    if without_ssd || options.any(|option| option == "without-ssd") {
        unheard.push("ssd");
    }
    unheard
}

/// The values of an option among words: `--name VALUE`, `--name=VALUE`, `-n VALUE`, `-nVALUE`, `-n=VALUE`.
fn values<'w, W: AsRef<str>>(
    words: &'w [W],
    long: &'w str,
    short: Option<&'w str>,
) -> impl Iterator<Item = &'w str> {
    let value = move |index: usize, word: &'w str| {
        let next = || words.get(index + 1).map_or("", |next| next.as_ref());
        if word == long || Some(word) == short {
            return Some(next());
        }
        let attached = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('='));
        let short = short.filter(|_| !word.starts_with("--")).and_then(|short| word.strip_prefix(short));
        attached.or(short.map(|rest| rest.strip_prefix('=').unwrap_or(rest)))
    };
    words.iter().enumerate().filter_map(move |(index, word)| value(index, word.as_ref()))
}

/// An error if a command line, or the environment where that counts, names volumes of two kinds.
pub(super) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let mut verb = matches;
    while let Some((_, below)) = verb.subcommand() {
        verb = below;
    }
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

    fn unheard_of(line: &str) -> Vec<&'static str> {
        unheard(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_word_on_the_command_line_wins_over_the_ssd_of_the_environment() {
        for line in [
            "bimetal fsck --without-ssd",
            "bimetal mount -o ro,without-ssd m",
            "bimetal mount -owithout-ssd m",
            "bimetal mount --options=without-ssd m",
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
