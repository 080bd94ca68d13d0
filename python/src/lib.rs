//! The native half of the Python package `bimetal`: stacks, traces, runs and grids of the laboratory.
//!
//! ```text
//! bimetal (Python, package/bimetal)     what people call: Stack, replay, sweep, Policy, status
//!     _bimetal (this)                   texts, numbers and buffers in; JSON and Arrow out
//!         bimetal-lab, bimetal-cache, bimetal-trace, bimetal-fuse
//! ```
//!
//! A run is made on a thread of its own, without the interpreter's lock, while the caller's thread looks for Ctrl-C
//! ([`wait`]). Only a policy written in Python takes the lock, for each call of it ([`policy`]).

mod policy;
mod requests;
mod run;
mod stack;
mod table;
mod wait;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;

pyo3::create_exception!(
    bimetal,
    Error,
    PyValueError,
    "What bimetal refuses, or a run that failed: the text says what, where and the remedy."
);

/// An error of the laboratory as Python's: what the system said is an `OSError`, all else an [`Error`].
fn raised(why: bimetal_base::Error) -> PyErr {
    let errno = match &why {
        bimetal_base::Error::Io { source, .. } => source.raw_os_error(),
        _ => None,
    };
    match errno {
        Some(errno) => PyOSError::new_err((errno, why.to_string())),
        None => Error::new_err(why.to_string()),
    }
}

/// The native half of bimetal.
#[pymodule]
mod _bimetal {
    use super::*;

    #[pymodule_export]
    use super::requests::Requests;
    #[pymodule_export]
    use super::run::{Grid, replay};
    #[pymodule_export]
    use super::stack::StackText;
    #[pymodule_export]
    use super::table::Table;

    /// What the server behind a mount point, or behind the socket of an exported device, says of itself, as JSON.
    #[pyfunction]
    fn status(py: Python<'_>, place: PathBuf) -> PyResult<String> {
        let told = py.detach(|| bimetal_fuse::ask(&place)).map_err(raised)?;
        Ok(told.to_string())
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("Error", module.py().get_type::<Error>())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
