//! A stack as its text and what is set otherwise: `bimetal_lab::stack::file`, whose messages it passes on.

use crate::raised;
use bimetal_lab::stack::file::{self, Setting, parse_axis};
use pyo3::prelude::*;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// The text of a stack file that was read and found to be one.
#[pyclass(frozen, module = "bimetal._bimetal")]
pub struct StackText {
    text: Arc<file::StackText>,
}

#[pymethods]
impl StackText {
    /// Takes a text; messages call it `name`.
    #[staticmethod]
    fn parse(name: &str, text: &str) -> PyResult<StackText> {
        file::StackText::parse(name, text).map(StackText::of).map_err(raised)
    }

    /// Reads a file.
    #[staticmethod]
    fn read(path: PathBuf) -> PyResult<StackText> {
        file::StackText::read(&path).map(StackText::of).map_err(raised)
    }

    /// What messages call it.
    #[getter]
    fn name(&self) -> &str {
        self.text.name()
    }

    /// All that it says with some keys set, `KEY=VALUE` each, every default filled in: as JSON.
    fn config(&self, settings: Vec<String>) -> PyResult<String> {
        let settings = of_one_value(&settings)?;
        self.text.with(&settings).map(|stack| json!(stack).to_string()).map_err(raised)
    }
}

impl StackText {
    fn of(text: file::StackText) -> StackText {
        StackText { text: Arc::new(text) }
    }

    /// The text itself.
    pub fn text(&self) -> &Arc<file::StackText> {
        &self.text
    }
}

/// Settings of `KEY=VALUE,VALUE,…`, a list a key.
pub fn axes(texts: &[String]) -> PyResult<Vec<Vec<Setting>>> {
    texts.iter().map(|text| parse_axis(text)).collect::<Result<_, _>>().map_err(raised)
}

/// Settings of one value each; commas were quoted by whoever wrote them.
pub fn of_one_value(texts: &[String]) -> PyResult<Vec<Setting>> {
    axes(texts).map(|axes| axes.concat())
}
