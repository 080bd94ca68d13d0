//! `bimetal list`: what there is to choose from, printed from the tables the program itself uses.

use super::screen::fit;
use crate::Result;
use crate::cache::registry::POLICIES;
use crate::front::fuse::{DURABILITY, OPTIONS, RESIDENCY, SECTION, STATUS};
use crate::front::kinds::KINDS;
use crate::front::record::RECORD;
use crate::front::reproduce::EXPERIMENTS;
use crate::front::trace::{FORMATS, GENERATORS};
use crate::fs::nfhybrid::admission;
use crate::fs::osd::placement;
use crate::ftl::{ALIASES, SCHEMES};
use crate::media::profile::PROFILES;
use crate::options::{self, OptionSpec, Registered};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal list
  bimetal list mount-option
  bimetal list cache
  bimetal list --json";

/// Show what there is: types of file system, mount options, device profiles, schemes, policies, experiments
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct List {
    /// What to list; everything without it
    what: Option<Registry>,
    /// Print JSON, one object a registry and line, with the options of every name
    #[arg(long)]
    json: bool,
    /// Columns of the screen; without it those of the terminal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000))]
    columns: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Registry {
    /// Types of file system, for -t
    Type,
    /// Mount options, for -o
    MountOption,
    /// What --section of mkfs takes
    Section,
    /// Virtual extended attributes of a mount
    Attribute,
    /// Profiles of simulated devices
    Device,
    /// Flash translation schemes
    Ftl,
    /// Page cache policies
    Cache,
    /// Placements of the object store
    Placement,
    /// What reads bring to the SSD of an nfhybrid
    Promote,
    /// Trace formats that replay reads
    TraceFormat,
    /// Traces that replay makes itself, as gen:NAME
    Generator,
    /// What reproduce can do
    Experiment,
}

/// One name, as it is listed.
#[derive(Serialize)]
struct Listed {
    name: String,
    about: String,
    options: Vec<OptionSpec>,
}

impl Listed {
    fn of(name: impl Into<String>, about: impl Into<String>) -> Listed {
        Listed { name: name.into(), about: about.into(), options: Vec::new() }
    }
}

impl List {
    pub fn run(&self) -> Result<ExitCode> {
        let columns = self.columns.map_or_else(super::columns, usize::from);
        let all = Registry::value_variants().iter().filter(|one| self.what.is_none_or(|what| what == **one));
        for registry in all {
            let (title, listed) = table(*registry);
            if self.json {
                let name = registry.to_possible_value().map(|value| value.get_name().to_string());
                super::say(&json!({ "registry": name, "title": title, "entries": listed }).to_string())?;
                continue;
            }
            if self.what.is_none() {
                super::say(fit(title, columns).trim_end())?;
            }
            let width = listed.iter().map(|one| one.name.len()).max().unwrap_or(0);
            for Listed { name, about, .. } in listed {
                super::say(fit(&format!("  {name:width$}  {about}"), columns).trim_end())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn entries<T: Registered>(registry: &options::Registry<T>) -> Vec<Listed> {
    let listed = |one: &&T| Listed { options: one.options().to_vec(), ..Listed::of(one.name(), one.about()) };
    registry.iter().map(listed).collect()
}

/// A scheme with what papers call it otherwise.
fn with_other_names(scheme: Listed) -> Listed {
    let others = ALIASES.iter().filter(|(_, name)| *name == scheme.name);
    let others: Vec<&str> = others.map(|(other, _)| *other).collect();
    match others[..] {
        [] => scheme,
        _ => Listed { about: format!("{} (also: {})", scheme.about, others.join(", ")), ..scheme },
    }
}

fn table(registry: Registry) -> (&'static str, Vec<Listed>) {
    let pairs =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(name, about)| Listed::of(*name, *about)).collect();
    match registry {
        Registry::Device => ("Profiles of simulated devices (--device)", entries(&PROFILES)),
        Registry::Ftl => (
            "Flash translation schemes (--ftl)",
            entries(&SCHEMES).into_iter().map(with_other_names).collect(),
        ),
        Registry::Cache => {
            let from = POLICIES.iter().map(|entry| entry.make.source);
            let listed = entries(&POLICIES).into_iter().zip(from);
            let with =
                |(one, from): (Listed, &str)| Listed { about: format!("{} ({from})", one.about), ..one };
            ("Page cache policies (--cache)", listed.map(with).collect())
        }
        Registry::Placement => {
            ("Placements of the object store (mkfs osd --placement)", entries(&placement::SCHEMES))
        }
        Registry::Promote => {
            ("What reads bring to the SSD (mount -o promote)", entries(&admission::POLICIES))
        }
        Registry::TraceFormat => ("Trace formats (replay --format)", entries(&FORMATS)),
        Registry::Generator => ("Made traces (replay gen:NAME)", entries(&GENERATORS)),
        Registry::Experiment => ("Experiments (reproduce)", entries(&EXPERIMENTS)),
        Registry::Type => ("Types of file system (-t)", entries(&KINDS)),
        Registry::MountOption => {
            let own = KINDS
                .iter()
                .flat_map(|kind| kind.options.iter().map(|spec| (format!("{}: ", kind.name), spec)));
            let all = OPTIONS.iter().map(|spec| (String::new(), spec)).chain(own);
            ("Mount options (-o)", all.map(|(kind, spec)| of_option(&kind, spec)).collect())
        }
        Registry::Section => (
            "Sections (--section NAME=extent:SIZE[,size:SIZE])",
            pairs(&[
                ("extent:SIZE", "how much of a file lies together; small for small files, large for streams"),
                ("size:SIZE", "its share of the SSD [an equal part of what is left]"),
            ]),
        ),
        Registry::Attribute => (
            "Virtual extended attributes of a mount",
            pairs(&[
                (STATUS, "of the root: the state of the mount, JSON"),
                (SECTION, "of a directory: the section its files go to; may be set"),
                (DURABILITY, "of a directory or file: what its fsync waits for, either or both; may be set"),
                (RESIDENCY, "of a file: which parts are on the SSD, JSON"),
                (RECORD, "of the root: the file that requests are recorded to; set by bimetal record"),
            ]),
        ),
    }
}

fn of_option(kind: &str, spec: &OptionSpec) -> Listed {
    let name = spec.value.map_or(spec.name.to_string(), |value| format!("{}={value}", spec.name));
    Listed::of(name, format!("{kind}{} [{}]", spec.help, spec.default))
}
