//! `--stack` and `--set` of a command line.

use super::file::{Setting, StackFile, StackText, parse_axis};
use bimetal_base::{Error, Result};
use clap::Args;
use std::path::PathBuf;

/// A stack file, and what is said otherwise.
#[derive(Args, Clone, Debug, Default)]
pub struct StackArgs {
    /// Do what this stack file (TOML) says; README has one
    #[arg(long, value_name = "FILE")]
    pub stack: Option<PathBuf>,
    /// Set a key of the stack file to a value, as cache.size=64MiB; of replay also to several in turn, A,B,...; may be
    /// repeated
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "stack")]
    pub set: Vec<String>,
}

impl StackArgs {
    /// The file, and the values of each key that is set; none without `--stack`.
    ///
    /// # Errors
    /// The file is not one, or a setting is malformed.
    pub fn read(&self) -> Result<Option<(StackText, Vec<Vec<Setting>>)>> {
        let Some(path) = &self.stack else { return Ok(None) };
        let text = StackText::read(path)?;
        let axes = self.set.iter().map(|axis| parse_axis(axis)).collect::<Result<Vec<_>>>()?;
        let key =
            |at: usize| axes.get(at).and_then(|axis: &Vec<Setting>| axis.first()).map(|setting| &setting.key);
        if let Some(twice) = (0..axes.len()).find(|at| (0..*at).any(|before| key(before) == key(*at))) {
            return Err(Error::invalid(format!(
                "--set {}: the key was set before; write --set KEY=A,B for several values",
                self.set[twice]
            )));
        }
        Ok(Some((text, axes)))
    }

    /// The one stack that is described; none without `--stack`.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if a key has several values.
    pub fn one(&self) -> Result<Option<StackFile>> {
        let Some((text, axes)) = self.read()? else { return Ok(None) };
        if let Some(several) = axes.iter().position(|axis| axis.len() > 1) {
            return Err(Error::invalid(format!(
                "--set {}: here a key has one value; several are for bimetal replay --out FOLDER",
                self.set[several]
            )));
        }
        text.with(&axes.concat()).map(Some)
    }
}
