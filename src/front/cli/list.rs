//! `bimetal list`: what there is to choose from, printed from the tables the program itself uses.

use super::volumes::{CMFS_OPTIONS, KINDS, MEMFS_OPTIONS, NFHYBRID_OPTIONS};
use crate::Result;
use crate::cache::registry::POLICIES;
use crate::front::fuse::{OPTIONS, OptionSpec, RESIDENCY, SECTION, STATUS};
use crate::front::record::RECORD;
use crate::front::reproduce::EXPERIMENTS;
use crate::front::trace::{FORMATS, GENERATORS};
use crate::ftl::SCHEMES;
use crate::media::profile;
use clap::{Args, ValueEnum};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  bimetal list
  bimetal list mount-option
  bimetal list cache";

/// Show what there is: types of file system, mount options, device profiles, schemes, policies, experiments
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct List {
    /// What to list; everything without it
    what: Option<Registry>,
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
    /// Trace formats that replay reads
    TraceFormat,
    /// Traces that replay makes itself, as gen:NAME
    Generator,
    /// What reproduce can do
    Experiment,
}

type Row = (String, String);

impl List {
    pub fn run(&self) -> Result<ExitCode> {
        for registry in Registry::value_variants() {
            if self.what.is_none_or(|what| what == *registry) {
                let (title, rows) = table(*registry);
                if self.what.is_none() {
                    super::say(title)?;
                }
                let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
                for (name, text) in rows {
                    super::say(&format!("  {name:width$}  {text}"))?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(registry: Registry) -> (&'static str, Vec<Row>) {
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    let row = |name: &str, text: &str| (name.to_string(), text.to_string());
    match registry {
        Registry::Device => {
            let rows =
                profile::list().into_iter().map(|one| row(one.name, &format!("{}: {}", one.kind, one.model)));
            ("Profiles of simulated devices (--device)", rows.collect())
        }
        Registry::Ftl => (
            "Flash translation schemes (--ftl)",
            SCHEMES.iter().map(|one| row(one.name, one.about)).collect(),
        ),
        Registry::Cache => {
            let rows = POLICIES.iter().map(|one| row(one.name, &format!("{} ({})", one.about, one.source)));
            ("Page cache policies (--cache)", rows.collect())
        }
        Registry::TraceFormat => {
            ("Trace formats (replay --format)", FORMATS.iter().map(|one| row(one.name, one.about)).collect())
        }
        Registry::Generator => {
            ("Made traces (replay gen:NAME)", GENERATORS.iter().map(|one| row(one.name, one.about)).collect())
        }
        Registry::Experiment => {
            let rows = EXPERIMENTS.iter().map(|one| row(one.id, &format!("{}: {}", one.figure, one.about)));
            ("Experiments (reproduce)", rows.collect())
        }
        Registry::Type => ("Types of file system (-t)", pairs(KINDS)),
        Registry::MountOption => {
            let all = [
                ("", OPTIONS),
                ("nfhybrid: ", NFHYBRID_OPTIONS),
                ("cmfs: ", CMFS_OPTIONS),
                ("memfs: ", MEMFS_OPTIONS),
            ];
            let rows = all.iter().flat_map(|(kind, specs)| specs.iter().map(|spec| option_row(kind, spec)));
            ("Mount options (-o)", rows.collect())
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
                (RESIDENCY, "of a file: which parts are on the SSD, JSON"),
                (RECORD, "of the root: the file that requests are recorded to; set by bimetal record"),
            ]),
        ),
    }
}

fn option_row(kind: &str, spec: &OptionSpec) -> Row {
    let name = spec.value.map_or(spec.name.to_string(), |value| format!("{}={value}", spec.name));
    (name, format!("{kind}{} [{}]", spec.help, spec.default))
}
