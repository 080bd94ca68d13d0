//! What a program that uses this library brings to a run beside its stack: what no text can say.

use crate::stack::file::StackFile;
use bimetal_base::options::Named;
use bimetal_base::{Error, Result};
use bimetal_cache::outside::MakeOutside;
use bimetal_trace::{GENERATED, Source, check_generator};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What is played, and how, where the stack alone does not say it. Nothing of that by default.
#[derive(Clone, Default)]
pub struct Brought {
    /// What is played instead of the stack's trace.
    pub trace: Option<Played>,
    /// The policy of the page cache instead of the stack's.
    pub policy: Option<Arc<dyn MakeOutside>>,
    /// Ends the run, with an error, once it is true.
    pub stop: Arc<AtomicBool>,
}

/// A trace that is brought to a run.
#[derive(Clone, Debug)]
pub enum Played {
    /// A path, or a generator as `gen:NAME:option=value:…`.
    Named(String),
    /// Requests in memory.
    Requests(Source),
}

impl fmt::Debug for Brought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace = self.trace.as_ref().map(|trace| match trace {
            Played::Named(text) => text.clone(),
            Played::Requests(source) => source.name(),
        });
        f.debug_struct("Brought").field("trace", &trace).field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Brought {
    /// The stack with what is brought in the place of what it says, by its name.
    ///
    /// # Errors
    /// A generator that there is not; a policy without a page cache, or under a file system.
    pub fn over(&self, stack: &StackFile) -> Result<StackFile> {
        let mut stack = stack.clone();
        if let Some(trace) = &self.trace {
            (stack.trace.file, stack.trace.generator) = match trace {
                Played::Requests(source) => (Some(source.name()), None),
                Played::Named(text) => match text.strip_prefix(GENERATED) {
                    Some(text) => {
                        let named: Named = text.parse()?;
                        check_generator(&named)?;
                        (None, Some(named))
                    }
                    None => (Some(text.clone()), None),
                },
            };
        }
        if let Some(policy) = &self.policy {
            let refused = |why| Err(Error::invalid(format!("cache.policy: {}: {why}", policy.name())));
            let Some(cache) = stack.cache.as_mut().filter(|_| stack.fs.is_none()) else {
                return refused(match stack.fs {
                    Some(_) => {
                        "a policy that is brought along is for replays of requests; with fs.kind name one of 'bimetal list cache'"
                    }
                    None => "the stack has no page cache; say cache.size, too",
                });
            };
            cache.policy = Named::plain(policy.name());
        }
        Ok(stack)
    }

    /// The requests that are brought.
    pub(super) fn requests(&self) -> Option<&Source> {
        match &self.trace {
            Some(Played::Requests(source)) => Some(source),
            _ => None,
        }
    }

    /// Whether the run is to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Refuses to go on once the run is to end.
    pub(super) fn go_on(&self) -> Result<()> {
        match self.is_stopped() {
            true => Err(Error::invalid("the run was told to end before its end")),
            false => Ok(()),
        }
    }
}
