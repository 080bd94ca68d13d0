//! Locks and conditions that work live and simulated.
//!
//! Live they are parking_lot's. In a simulation everything runs on one thread: a task that finds a lock taken, or
//! waits for a condition, gives way to the others until it is woken. Which of several waiters goes on first is the
//! seed's to say, and so is whether a task gives way where it takes a free lock.
//!
//! Cost over parking_lot's: a look at a thread-local flag when a lock is taken, one relaxed load when it is given back.

use super::sim::{self, Waiters};
use crate::time::Time;
use std::ops::{Deref, DerefMut};

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized> {
    waiters: Waiters,
    inner: parking_lot::Mutex<T>,
}

/// The lock, held until this is dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    inner: Option<parking_lot::MutexGuard<'a, T>>,
}

const HELD: &str = "a guard holds its lock but while its condition waits";

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { waiters: Waiters::new(), inner: parking_lot::Mutex::new(value) }
    }

    /// The value, the lock gone.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock, waiting until it is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: self, inner: Some(self.acquire()) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { lock: self, inner: Some(inner) })
    }

    fn acquire(&self) -> parking_lot::MutexGuard<'_, T> {
        if !sim::is_inside() {
            return self.inner.lock();
        }
        sim::maybe_give_way();
        loop {
            match self.inner.try_lock() {
                Some(inner) => return inner,
                None => self.waiters.wait(None, || ()),
            }
        }
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Gives the lock back while `work` runs, and takes it again.
    pub fn unlocked<U>(guard: &mut Self, work: impl FnOnce() -> U) -> U {
        guard.release();
        let done = work();
        guard.inner = Some(guard.lock.acquire());
        done
    }

    #[inline]
    fn release(&mut self) {
        drop(self.inner.take());
        self.lock.waiters.wake_all();
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.release();
    }
}

/// A condition that tasks wait for, each holding the same lock.
#[derive(Debug, Default)]
pub struct Condvar {
    waiters: Waiters,
    inner: parking_lot::Condvar,
}

impl Condvar {
    /// A condition nobody waits for.
    pub const fn new() -> Condvar {
        Condvar { waiters: Waiters::new(), inner: parking_lot::Condvar::new() }
    }

    /// Gives the lock back, waits to be notified, takes the lock again. May return without a reason.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        match sim::is_inside() {
            true => self.wait_simulated(guard, None),
            false => self.inner.wait(guard.inner.as_mut().expect(HELD)),
        }
    }

    /// The same, but no longer than until `due` on the clock `now`.
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        clock: &dyn super::Runtime,
        due: Time,
    ) {
        match sim::is_inside() {
            true => self.wait_simulated(guard, Some(due)),
            false => {
                let left = due.since(clock.now());
                self.inner.wait_for(guard.inner.as_mut().expect(HELD), left);
            }
        }
    }

    fn wait_simulated<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, due: Option<Time>) {
        self.waiters.wait(due, || guard.release());
        guard.inner = Some(guard.lock.acquire());
    }

    /// Lets one of those who wait go on.
    pub fn notify_one(&self) {
        self.inner.notify_one();
        self.waiters.wake_one();
    }

    /// Lets all who wait go on.
    pub fn notify_all(&self) {
        self.inner.notify_all();
        self.waiters.wake_all();
    }
}
