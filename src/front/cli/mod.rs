//! The `bimetal` command: verbs first, one file a verb.
//!
//! Exit codes: 0 when all that was asked for was done, 1 when something was not, 2 when the command line makes no
//! sense; fsck has those of e2fsck. Messages go to standard error, as `bimetal: what: why; remedy`. Under the names
//! `mount.bimetal`, `umount.bimetal` and `fsck.bimetal` the command is what mount(8), umount(8) and fsck(8) call.

mod adopt;
mod cat;
mod crash;
mod explain;
mod export;
mod exposition;
mod fsck;
mod generate;
mod get;
mod helper;
mod list;
mod ls;
mod map;
mod metrics;
mod mkfs;
mod mkimage;
mod mount;
mod named;
mod osd;
mod probe;
mod progress;
mod put;
mod record;
mod remount;
mod rescue;
mod sample;
mod screen;
mod scrub;
mod stack;
mod status;
mod top;
mod umount;

use crate::Result;
use crate::error::{acts, shown};
use crate::front::signals::{self, Ending};
use crate::front::{limits, messages, replay, reproduce};
use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use console::Term;
use helper::Called;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

const ENVIRONMENT: &str = "\
Environment:
  BIMETAL_SSD, BIMETAL_DISK     what --ssd and --disk say otherwise
  BIMETAL_NAND, BIMETAL_NVRAM   what --nand and --nvram say otherwise, except to status and export
                                A command line with one of these options, or --stack, is meant as a
                                whole: no variable adds to it. -t leaves those of its kind,
                                --without-ssd and -o without-ssd all but BIMETAL_SSD.
  BIMETAL_LOG                   what to report: error, warn (default), info, debug, trace; to the
                                log of a server in the background info, where nothing else is said
Ends with 0 when what was asked for was done, with 1 when it was not, and with 2 where the command line makes no sense; fsck, record
and the helpers of mount(8) have codes of their own, as their help says.";

/// One file system over a small SSD and a large disk.
#[derive(Debug, Parser)]
#[command(name = "bimetal", version, after_help = ENVIRONMENT, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    #[command(subcommand)]
    Mkfs(mkfs::Mkfs),
    Mkimage(mkimage::Mkimage),
    Adopt(adopt::Adopt),
    Mount(mount::MountVerb),
    Umount(umount::Umount),
    Status(status::Status),
    Top(top::Top),
    Explain(explain::Explain),
    Metrics(metrics::Metrics),
    Map(map::Map),
    Probe(probe::Probe),
    Fsck(fsck::Fsck),
    Scrub(scrub::Scrub),
    Rescue(rescue::Rescue),
    Ls(ls::Ls),
    Cat(cat::Cat),
    Put(put::Put),
    Get(get::Get),
    Osd(osd::Osd),
    Record(record::Record),
    Crash(Box<crash::Crash>),
    Replay(Box<replay::Args>),
    Curve(Box<replay::curve::Args>),
    Reproduce(reproduce::Args),
    Export(export::ExportVerb),
    List(list::List),
    Man(generate::Man),
    Completions(generate::Completions),
}

/// Runs the command line this process was started with.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // mount(8) knows both ways to fail by other numbers.
    let (failed, senseless) = if helper::mounts(&args) {
        (ExitCode::from(helper::FAILED), Some(1))
    } else {
        (ExitCode::FAILURE, None)
    };
    let args = match helper::translate(&args) {
        None => args,
        Some(Called::As(line)) => line,
        Some(Called::Idle) => return ExitCode::SUCCESS,
        Some(Called::Remount(place, options)) => {
            messages::begin();
            return ended(remount::remount(Path::new(&place), &options), failed);
        }
        Some(Called::Senseless(why, code)) => {
            complain(&why);
            return ExitCode::from(code);
        }
    };
    // What clap's own verb has no flag for.
    let asks_of_help = args.get(1).is_some_and(|verb| verb == "help")
        && args.get(2).is_some_and(|flag| flag == "--help" || flag == "-h");
    let args = if asks_of_help { [&args[..2], &["help".into()]].concat() } else { args };
    let mut command = named::command_for(for_people(Cli::command()), &args);
    let parsed = command.try_get_matches_from_mut(&args).and_then(|matches| {
        named::check(&mut command, &matches)?;
        Ok((Cli::from_arg_matches(&matches)?, named::is_json(&matches)))
    });
    let (cli, is_json) = match parsed {
        Ok(parsed) => parsed,
        // fsck(8) knows this one by another number.
        Err(why) if why.use_stderr() => {
            // Where standard error is closed, nobody listens.
            let _ = why.print();
            if args.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json") {
                // What clap writes for people ends with where there is more.
                let text = why.render().to_string();
                let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
                let words: Vec<&str> = text.split_whitespace().collect();
                let _ = say(&as_line(&json!({ "error": words.join(" ") })));
            }
            let is_fsck = args.get(1).is_some_and(|verb| verb == "fsck");
            let code = if is_fsck { Some(fsck::SENSELESS) } else { senseless };
            return ExitCode::from(code.unwrap_or(2));
        }
        // Help, and the version.
        Err(why) => {
            let shown = said(why.print().and_then(|()| io::stdout().flush()));
            return ended(shown.map(|()| ExitCode::SUCCESS), failed);
        }
    };
    messages::begin();
    let done = limits::heed().and_then(|()| run(cli.verb));
    if let (Err(why), true) = (&done, is_json) {
        // Why it cannot be told is told below.
        let _ = say(&as_line(&json!({ "error": why.to_string() })));
    }
    ended(done, failed)
}

/// The command as it is read from a line: a value may be a number below 0, which is then refused as a value, and what help ends
/// with is wrapped once, to the terminal.
fn for_people(command: Command) -> Command {
    let after = command.get_after_help().map(|text| unwrapped(&text.to_string()));
    let command = match after {
        Some(text) => command.after_help(text),
        None => command,
    };
    let takes_values = |arg: &Arg| arg.get_action().takes_values();
    let command = command.mut_args(|arg| match takes_values(&arg) {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(for_people)
}

/// A text whose paragraphs are a line each; what is indented, and a heading, stays as it is.
fn unwrapped(text: &str) -> String {
    let mut joined = String::new();
    let mut before = "";
    for line in text.lines() {
        let stands = |line: &str| line.is_empty() || line.starts_with(' ') || line.ends_with(':');
        let goes_on = !stands(before) && !before.ends_with('.') && !line.is_empty() && !line.starts_with(' ');
        if !joined.is_empty() {
            joined.push(if goes_on { ' ' } else { '\n' });
        }
        joined.push_str(line);
        before = line;
    }
    joined
}

/// The exit code of what was done, this one if it failed; why is told.
fn ended(done: Result<ExitCode>, failed: ExitCode) -> ExitCode {
    done.unwrap_or_else(|why| {
        complain(&why);
        failed
    })
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Mkfs(verb) => verb.run(),
        Verb::Mkimage(verb) => verb.run(),
        Verb::Adopt(verb) => verb.run(),
        Verb::Mount(verb) => verb.run(),
        Verb::Umount(verb) => verb.run(),
        Verb::Status(verb) => verb.run(),
        Verb::Top(verb) => verb.run(),
        Verb::Explain(verb) => verb.run(),
        Verb::Metrics(verb) => verb.run(),
        Verb::Map(verb) => verb.run(),
        Verb::Probe(verb) => verb.run(),
        Verb::Fsck(verb) => verb.run(),
        Verb::Scrub(verb) => verb.run(),
        Verb::Rescue(verb) => verb.run(),
        Verb::Ls(verb) => verb.run(),
        Verb::Cat(verb) => verb.run(),
        Verb::Put(verb) => verb.run(),
        Verb::Get(verb) => verb.run(),
        Verb::Osd(verb) => verb.run(),
        Verb::Record(verb) => verb.run(),
        Verb::Crash(verb) => verb.run(),
        Verb::Replay(verb) => {
            signals::end_whole(|| ())?;
            replay::run(&verb).map(|()| ExitCode::SUCCESS)
        }
        Verb::Curve(verb) => {
            signals::end_whole(|| ())?;
            replay::curve::run(&verb).map(|()| ExitCode::SUCCESS)
        }
        Verb::Reproduce(verb) => {
            signals::end_whole(reproduce::give_up)?;
            reproduce::run(&verb).map(|()| ExitCode::SUCCESS)
        }
        Verb::Export(verb) => verb.run(),
        Verb::List(verb) => verb.run(),
        Verb::Man(verb) => verb.run(&Cli::command()),
        Verb::Completions(verb) => verb.run(&mut Cli::command()),
    }
}

/// How copying ended; a signal that kept something from being copied has the exit code that a shell gives it.
fn copied(ending: &Ending, done: [Result<()>; 3]) -> Result<ExitCode> {
    match (all(done), ending.asked()) {
        (Ok(()), _) => Ok(ExitCode::SUCCESS),
        (Err(why), None) => Err(why),
        (Err(why), Some(signal)) => {
            complain(&why);
            Ok(ExitCode::from(signals::exit_code(signal)))
        }
    }
}

/// The last of the errors; those before it are told.
fn all<const N: usize>(done: [Result<()>; N]) -> Result<()> {
    let mut errors = done.into_iter().filter_map(Result::err).peekable();
    while let Some(why) = errors.next() {
        if errors.peek().is_none() {
            return Err(why);
        }
        complain(&why);
    }
    Ok(())
}

/// An error for a name of nothing, as a variable without a value gives one.
fn named(path: &OsStr) -> Result<()> {
    match path.is_empty() {
        true => Err(crate::Error::invalid("a path is empty; the root is /")),
        false => Ok(()),
    }
}

/// An error if two sources would get one name in the target: the second would replace the first.
fn distinct(named: Vec<(Vec<u8>, &OsStr)>) -> Result<()> {
    let mut first: HashMap<Vec<u8>, &OsStr> = HashMap::new();
    for (name, source) in named {
        if let Some(other) = first.get(&name) {
            return Err(crate::Error::invalid(format!(
                "{} and {} have the same name, {}, and one would replace the other; copy them to different directories",
                other.display(),
                source.display(),
                String::from_utf8_lossy(if name.is_empty() { b"/" } else { &name })
            )));
        }
        first.insert(name, source);
    }
    Ok(())
}

/// Tells what went wrong.
fn complain(what: &dyn std::fmt::Display) {
    // Where standard error is closed, nobody listens.
    let _ = writeln!(io::stderr(), "bimetal: {}", messages::tame(&what.to_string()));
}

/// How long a line may be; what is no terminal takes any.
fn columns() -> usize {
    let term = Term::stdout();
    if term.is_term() { term.size().1.into() } else { usize::MAX }
}

/// A path for a report, with nothing in it that a terminal would act on.
fn place(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

/// Gives an object of a report a name of any bytes, as text and, where JSON's text cannot hold it, in `KEY_hex` by its bytes, too.
fn set_name(object: &mut Value, key: &str, name: &[u8]) {
    object[key] = String::from_utf8_lossy(name).into();
    if str::from_utf8(name).is_err() {
        object[format!("{key}_hex")] =
            name.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    }
}

/// JSON for a report; what a terminal would act on in its texts is written by its number.
fn as_text(value: &impl Serialize) -> String {
    tame_json(&serde_json::to_string_pretty(value).unwrap_or_default())
}

/// JSON in one line, as [`as_text`].
fn as_line(value: &Value) -> String {
    tame_json(&value.to_string())
}

/// Line ends are between values only, and stay.
fn tame_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match acts(c) && c != '\n' {
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    text
}

/// Prints a line of a report. A reader that has heard enough, as `head`, ends the report, not the program.
fn say(text: &str) -> Result<()> {
    heard(text).map(drop)
}

/// As [`say`]; whether there still is a reader, for what goes on for as long as it has one.
fn heard(text: &str) -> Result<bool> {
    let done = writeln!(io::stdout(), "{text}");
    let is_heard = done.is_ok();
    said(done).map(|()| is_heard)
}

fn said(done: io::Result<()>) -> Result<()> {
    match done {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => Err(crate::Error::io("standard output", why)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_nothing_that_a_terminal_acts_on_and_says_the_same() {
        let odd = json!({ "name": "a\u{7f}\u{9b}\u{202e}\u{1b}\nb" });
        for text in [as_text(&odd), as_line(&odd)] {
            assert!(text.chars().all(|c| c == '\n' || !acts(c)), "{text:?}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), odd);
        }
    }

    #[test]
    fn a_name_of_any_bytes_can_be_read_back_from_json() {
        let mut line = json!({});
        set_name(&mut line, "path", b"a\x1b\n");
        assert_eq!(serde_json::from_str::<Value>(&as_line(&line)).unwrap(), json!({ "path": "a\u{1b}\n" }));
        set_name(&mut line, "path", b"a\xff");
        assert_eq!(line, json!({ "path": "a\u{fffd}", "path_hex": "61ff" }));
    }

    #[test]
    fn what_help_ends_with_is_wrapped_once() {
        let text = "Examples:\n  bimetal x   one\n  bimetal y   two\nEnds with 0 when it is done; with 1 when\nit is not. See also.\nSecond.";
        let meant = "Examples:\n  bimetal x   one\n  bimetal y   two\nEnds with 0 when it is done; with 1 when it is not. See also.\nSecond.";
        assert_eq!(unwrapped(text), meant);
        // At whatever width, no line is broken that is followed by one which began in the text.
        let mut command = for_people(Cli::command()).term_width(60);
        let umount = command.find_subcommand_mut("umount").unwrap().clone().term_width(60);
        let help = umount.clone().render_help().to_string();
        let end: Vec<&str> = help.lines().skip_while(|line| !line.starts_with("Ends with")).collect();
        assert!(end.len() > 3 && end[..end.len() - 1].iter().all(|line| line.len() > 40), "{end:#?}");
    }

    #[test]
    fn the_command_line_is_consistent_and_every_verb_shows_an_example() {
        let mut command = for_people(Cli::command());
        command.clone().debug_assert();
        for verb in command.get_subcommands_mut() {
            let name = verb.get_name().to_string();
            let help = verb.render_long_help().to_string();
            let nested = verb.get_subcommands().next().is_some();
            assert!(nested || verb.is_hide_set() || help.contains("Example"), "{name} has no example");
        }
    }
}
