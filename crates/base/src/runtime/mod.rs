//! What a file system needs of the machine beside its devices: time, waiting, tasks and chance.
//!
//! A [`Runtime`] is given to a file system when it is opened and handed along to everything that waits or asks
//! what time it is. There are two:
//!
//! - [`Live`]: threads and the machine's clocks.
//! - [`Sim`]: virtual time on one thread. The same blocking code runs on stackful coroutines; what waits gives way
//!   to whatever is next in time, and of several tasks that could go on at one instant the seed says which does. So a
//!   run can be repeated to the byte, and another seed is another interleaving.
//!
//! Two clocks, never confused: [`Runtime::now`] is for deadlines and only moves on; [`Runtime::wall`] is what files are
//! stamped with, and may be set back and forth while a file system is mounted.
//!
//! Locks that may be held while something waits (for a device, a condition, another such lock) are those of
//! [`sync`]; they are the same type in both. A lock that is never held across a wait may be any.

mod live;
pub mod sim;
pub mod sync;

pub use live::Live;
pub use sim::Sim;

use crate::random::Random;
use crate::time::{Stamp, Time};
use crate::{Error, Result};
use std::sync::Arc;

/// Time, waiting, tasks and chance, live or simulated.
pub trait Runtime: Send + Sync {
    /// The present, for deadlines and devices: it never goes back, and means nothing outside this runtime.
    fn now(&self) -> Time;

    /// The present as files are stamped with it. It may jump either way.
    fn wall(&self) -> Stamp;

    /// Waits until `due`; returns at once if that has passed.
    fn sleep_until(&self, due: Time);

    /// Runs `task` beside the caller.
    ///
    /// # Errors
    /// [`Error::Io`] where the machine has no thread left.
    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Result<Task>;

    /// The stream of random numbers called `stream`: drawn from the machine (live) or from the seed (simulated).
    fn random(&self, stream: &str) -> Random;
}

/// A runtime as it is handed along.
pub type Clock = Arc<dyn Runtime>;

/// The live runtime, for whoever needs one to hand along.
pub fn live() -> Clock {
    Arc::new(Live)
}

/// A task that was spawned, to be joined. One that is dropped instead goes on by itself.
pub struct Task {
    join: Box<dyn FnOnce() -> Result<()> + Send>,
}

impl Task {
    fn new(join: impl FnOnce() -> Result<()> + Send + 'static) -> Task {
        Task { join: Box::new(join) }
    }

    /// Waits until the task has ended.
    ///
    /// # Errors
    /// [`Error::Io`] if it panicked.
    pub fn join(self) -> Result<()> {
        (self.join)()
    }
}

/// Who runs: a thread, or a task of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// A thread of the machine.
    Thread(std::thread::ThreadId),
    /// A task of the simulation that runs on this thread, by its number.
    Task(usize),
}

impl Runs {
    /// Whoever asks.
    pub fn here() -> Runs {
        match sim::is_inside() {
            true => Runs::Task(sim::current_task()),
            false => Runs::Thread(std::thread::current().id()),
        }
    }
}

/// What joining a task that panicked says.
fn panicked(name: &str) -> Error {
    Error::io(format!("task {name}"), std::io::Error::other("it panicked"))
}
