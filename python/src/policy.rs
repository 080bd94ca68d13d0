//! A replacement policy written in Python, as the cache's.
//!
//! Each call takes the interpreter's lock. The first exception ends it: it is kept, the run is told to end, and nothing
//! of Python is called any more; the cache goes on by itself until the run has ended, and the exception is raised then.

use crate::Error as BimetalError;
use bimetal_base::{Error, Result};
use bimetal_cache::Config;
use bimetal_cache::outside::{MakeOutside, OutsidePolicy};
use bimetal_cache::policy::{Access, Leaving};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The first exception of a policy, and what ends the run for it.
#[derive(Clone, Default)]
pub struct Failure {
    first: Arc<Mutex<Option<PyErr>>>,
    stop: Arc<AtomicBool>,
}

impl Failure {
    /// Of a run that `stop` ends.
    pub fn of(stop: Arc<AtomicBool>) -> Failure {
        Failure { stop, ..Failure::default() }
    }

    /// Notes an exception.
    fn note(&self, why: PyErr) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.stop.store(true, Relaxed);
    }

    /// The exception, if there was one.
    pub fn taken(&self) -> Option<PyErr> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What makes a policy: a class, or anything that is called with the cache's capacity in pages.
pub struct Factory {
    make: Py<PyAny>,
    name: String,
    failure: Failure,
}

impl Factory {
    /// The policy that `make` gives; reports call it `name`.
    pub fn new(make: Py<PyAny>, name: String, failure: Failure) -> Factory {
        Factory { make, name, failure }
    }
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl MakeOutside for Factory {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn make(&self, config: &Config) -> Result<Box<dyn OutsidePolicy>> {
        let made = Python::attach(|py| {
            let policy = self.make.bind(py).call1((config.capacity,))?;
            Methods::of(&policy, &self.name)
        });
        match made {
            Ok(methods) => Ok(Box::new(InPython {
                methods,
                name: self.name.clone(),
                failure: self.failure.clone(),
                ended: false,
            })),
            Err(why) => {
                self.failure.note(why);
                Err(Error::invalid(format!("{}: the policy cannot be made", self.name)))
            }
        }
    }
}

/// What is called of the policy's object.
struct Methods {
    hit: Py<PyAny>,
    insert: Py<PyAny>,
    evict: Py<PyAny>,
    remove: Py<PyAny>,
    cleaned: Option<Py<PyAny>>,
    keeps_reads: bool,
}

impl Methods {
    fn of(policy: &Bound<'_, PyAny>, name: &str) -> PyResult<Methods> {
        let method = |method: &str| {
            let found = policy.getattr_opt(method)?.filter(|found| found.is_callable());
            found.map(Bound::unbind).ok_or_else(|| {
                let why = "a policy has hit, insert, evict and remove; see bimetal.Policy";
                PyTypeError::new_err(format!("{name} has no method '{method}': {why}"))
            })
        };
        // What the base class has does nothing, and need not be called.
        let usual = policy.py().import("bimetal")?.getattr("Policy")?.getattr("cleaned")?;
        let own = policy.get_type().getattr_opt("cleaned")?.filter(|own| !own.is(&usual));
        let keeps_reads = policy.getattr_opt("keeps_reads")?;
        Ok(Methods {
            hit: method("hit")?,
            insert: method("insert")?,
            evict: method("evict")?,
            remove: method("remove")?,
            cleaned: own.map(|_| method("cleaned")).transpose()?,
            keeps_reads: keeps_reads.map_or(Ok(true), |keeps| keeps.is_truthy())?,
        })
    }
}

/// A policy that lives in Python.
struct InPython {
    methods: Methods,
    name: String,
    failure: Failure,
    /// It failed, or another one of the same sweep did.
    ended: bool,
}

impl InPython {
    /// Calls something of Python; none once it has failed.
    fn call<T>(&mut self, call: impl FnOnce(Python<'_>, &Methods) -> PyResult<T>) -> Option<T> {
        if self.ended {
            return None;
        }
        match Python::attach(|py| call(py, &self.methods)) {
            Ok(given) => Some(given),
            Err(why) => {
                self.fail(why);
                None
            }
        }
    }

    fn fail(&mut self, why: PyErr) {
        self.ended = true;
        self.failure.note(why);
    }
}

impl OutsidePolicy for InPython {
    fn keeps_reads(&self) -> bool {
        self.methods.keeps_reads
    }

    fn hit(&mut self, page: u64, access: Access, was_dirty: bool) {
        let write = access == Access::Write;
        self.call(|py, of| of.hit.call1(py, (page, write, was_dirty)).map(drop));
    }

    fn insert(&mut self, page: u64, access: Access) {
        let write = access == Access::Write;
        self.call(|py, of| of.insert.call1(py, (page, write)).map(drop));
    }

    fn evict(&mut self, coming: u64) -> Option<u64> {
        let name = self.name.clone();
        self.call(|py, of| {
            let named = of.evict.call1(py, (coming,))?;
            named.extract::<u64>(py).map_err(|_| {
                let shown =
                    named.bind(py).repr().map_or_else(|_| "something".into(), |text| text.to_string());
                PyTypeError::new_err(format!(
                    "{name}.evict gave {shown}, not the number of a page in the cache"
                ))
            })
        })
    }

    fn remove(&mut self, page: u64, why: Leaving) {
        let evicted = why == Leaving::Evicted;
        self.call(|py, of| of.remove.call1(py, (page, evicted)).map(drop));
    }

    fn cleaned(&mut self, page: u64) {
        if self.methods.cleaned.is_some() {
            self.call(|py, of| of.cleaned.as_ref().map_or(Ok(()), |call| call.call1(py, (page,)).map(drop)));
        }
    }

    fn refused(&mut self, named: Option<u64>) {
        if let Some(page) = named.filter(|_| !self.ended) {
            let why = format!("{}.evict named page {page}, which is not in the cache", self.name);
            self.fail(BimetalError::new_err(why));
        }
    }
}
