//! Virtual time on one thread.
//!
//! Each task is a coroutine with a stack of its own. One runs at a time, until it waits: for an instant, a lock, a
//! condition, another task. Then the next event in time goes on; events of one instant go in the order of a number
//! drawn from the seed when they were made. While a task computes no time passes.
//!
//! 1. A task that waits notes its *turn*, which rises each time it goes on, with whatever may wake it.
//! 2. Waking puts an event (instant, draw, task, turn) into the queue; one whose turn has passed is dropped.
//! 3. [`Sim::run`] takes the events in order, moves the clock to each, and lets its task go on.
//!
//! Where a task takes a lock that is free, it gives way to the others of that instant now and then (one time in
//! [`PREEMPT_ONE_IN`], as the seed says), since a thread could have been interrupted there.
//!
//! Tasks that all wait for one another are a bug of what is simulated: [`Sim::run`] panics and names them. A panic of a
//! task ends the run with that panic.

use super::{Runtime, Task};
use crate::Result;
use crate::random::Random;
use crate::time::{Stamp, Time};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use parking_lot::Mutex;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A free lock is taken at once but for one time in so many.
pub const PREEMPT_ONE_IN: u64 = 8;

/// Bytes of a task's stack.
const STACK_BYTES: usize = 1 << 20;

/// So often tasks may go on within one instant, and so often for each task there is; more is a loop that waits for nothing.
const SWITCHES_PER_INSTANT_MAX: u64 = 1_000_000;
const SWITCHES_PER_INSTANT_AND_TASK_MAX: u64 = 1_000;

/// When a simulation's wall clock starts: 2026-01-01 UTC, in nanoseconds.
const WALL_START: i128 = 1_767_225_600_000_000_000;

type Body = Box<dyn FnOnce() + Send>;
type Panic = Box<dyn Any + Send>;

/// A simulated runtime; clones are the same one.
#[derive(Clone)]
pub struct Sim {
    world: Arc<World>,
}

struct World {
    seed: u64,
    state: Mutex<State>,
}

struct State {
    now: Time,
    /// What the wall clock is ahead of `now`, nanoseconds.
    wall_ahead: i128,
    draws: Random,
    events: BinaryHeap<Reverse<Event>>,
    made: u64,
    tasks: Vec<TaskState>,
    /// Tasks that have not begun.
    fresh: Vec<Body>,
    panic: Option<Panic>,
    switches: u64,
    /// Of them at this instant.
    here: u64,
}

struct TaskState {
    name: String,
    turn: u64,
    ended: bool,
    joiners: Vec<(usize, u64)>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Time,
    draw: u64,
    number: u64,
    task: usize,
    turn: u64,
}

impl State {
    fn wake(&mut self, task: usize, turn: u64, at: Time) {
        if self.tasks[task].turn == turn {
            let draw = self.draws.next();
            self.made += 1;
            self.events.push(Reverse(Event { at, draw, number: self.made, task, turn }));
        }
    }

    /// The next event that still matters; its instant is the present then.
    fn next(&mut self) -> Option<usize> {
        let most = SWITCHES_PER_INSTANT_MAX.max(SWITCHES_PER_INSTANT_AND_TASK_MAX * self.tasks.len() as u64);
        while let Some(Reverse(event)) = self.events.pop() {
            let task = &mut self.tasks[event.task];
            if task.turn == event.turn && !task.ended {
                task.turn += 1;
                self.here = if event.at > self.now { 0 } else { self.here + 1 };
                assert!(
                    self.here < most,
                    "the simulation does not move on from {:?}: {} goes on and on",
                    self.now,
                    task.name
                );
                self.now = self.now.max(event.at);
                self.switches += 1;
                return Some(event.task);
            }
        }
        None
    }
}

/// The task that runs on this thread.
struct Current {
    world: Arc<World>,
    task: usize,
    yielder: *const Yielder<(), ()>,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Whether the caller is a task of a simulation.
pub fn is_inside() -> bool {
    INSIDE.get()
}

fn with_current<T>(work: impl FnOnce(&Current) -> T) -> T {
    CURRENT.with_borrow(|current| work(current.as_ref().expect("only tasks of a simulation wait in it")))
}

/// The number of the task that asks.
pub(super) fn current_task() -> usize {
    with_current(|current| current.task)
}

/// Lets the others of this instant go first, now and then.
pub(super) fn maybe_give_way() {
    let gives_way = with_current(|current| {
        let mut state = current.world.state.lock();
        let gives_way = state.draws.below(PREEMPT_ONE_IN) == 0;
        if gives_way {
            let (turn, now) = (state.tasks[current.task].turn, state.now);
            state.wake(current.task, turn, now);
        }
        gives_way
    });
    if gives_way {
        suspend();
    }
}

/// The current task stops until something wakes it.
fn suspend() {
    let yielder = with_current(|current| current.yielder);
    // SAFETY: the pointer is that of the coroutine we run on: `body_of` set it from the reference the coroutine was
    // begun with, which lives as long as the coroutine's stack does, and `Running::go_on` puts it back each time this
    // coroutine, and no other, goes on.
    unsafe { (*yielder).suspend(()) }
}

/// Tasks of a simulation that wait for one thing; always empty live.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    count: AtomicUsize,
    /// Task and turn.
    waiting: Mutex<Vec<(usize, u64)>>,
}

impl Waiters {
    pub(super) const fn new() -> Waiters {
        Waiters { count: AtomicUsize::new(0), waiting: Mutex::new(Vec::new()) }
    }

    /// The current task waits here, from before `then` is called, and no longer than until `due`.
    pub(super) fn wait(&self, due: Option<Time>, then: impl FnOnce()) {
        with_current(|current| {
            let mut state = current.world.state.lock();
            let turn = state.tasks[current.task].turn;
            if let Some(due) = due {
                let at = due.max(state.now);
                state.wake(current.task, turn, at);
            }
            let mut waiting = self.waiting.lock();
            waiting.push((current.task, turn));
            self.count.store(waiting.len(), Relaxed);
        });
        then();
        suspend();
    }

    #[inline]
    pub(super) fn wake_all(&self) {
        if self.count.load(Relaxed) > 0 {
            self.wake(|waiting, _| std::mem::take(waiting));
        }
    }

    /// Wakes one, drawn from those who still wait.
    pub(super) fn wake_one(&self) {
        if self.count.load(Relaxed) > 0 {
            self.wake(|waiting, state| {
                waiting.retain(|&(task, turn)| state.tasks[task].turn == turn);
                match waiting.len() {
                    0 => Vec::new(),
                    count => vec![waiting.swap_remove(state.draws.below(count as u64) as usize)],
                }
            });
        }
    }

    #[cold]
    fn wake(&self, choose: impl FnOnce(&mut Vec<(usize, u64)>, &mut State) -> Vec<(usize, u64)>) {
        with_current(|current| {
            let mut state = current.world.state.lock();
            let mut waiting = self.waiting.lock();
            for (task, turn) in choose(&mut waiting, &mut state) {
                let now = state.now;
                state.wake(task, turn, now);
            }
            self.count.store(waiting.len(), Relaxed);
        });
    }
}

/// A coroutine, and where it suspends itself.
struct Running {
    coroutine: Coroutine<(), (), ()>,
    yielder: *const Yielder<(), ()>,
}

impl Running {
    fn new(body: Body, world: &Arc<World>, task: usize) -> Running {
        let stack = DefaultStack::new(STACK_BYTES).expect("memory for a task's stack");
        let world = world.clone();
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            CURRENT.with_borrow_mut(|current| current.as_mut().expect("set by go_on").yielder = yielder);
            let done = catch_unwind(AssertUnwindSafe(body));
            let mut state = world.state.lock();
            state.panic = state.panic.take().or(done.err());
            state.tasks[task].ended = true;
            let now = state.now;
            for (joiner, turn) in std::mem::take(&mut state.tasks[task].joiners) {
                state.wake(joiner, turn, now);
            }
        });
        Running { coroutine, yielder: std::ptr::null() }
    }

    /// Runs until it waits again; whether it has ended.
    fn go_on(&mut self, world: &Arc<World>, task: usize) -> bool {
        let current = Current { world: world.clone(), task, yielder: self.yielder };
        CURRENT.set(Some(current));
        INSIDE.set(true);
        let result = self.coroutine.resume(());
        INSIDE.set(false);
        self.yielder = CURRENT.take().map_or(self.yielder, |current| current.yielder);
        matches!(result, CoroutineResult::Return(()))
    }
}

impl Sim {
    /// A simulation at time zero; everything left open in it follows from `seed`.
    pub fn new(seed: u64) -> Sim {
        let state = State {
            now: Time::ZERO,
            wall_ahead: WALL_START,
            draws: Random::new(seed, "interleaving"),
            events: BinaryHeap::new(),
            made: 0,
            tasks: Vec::new(),
            fresh: Vec::new(),
            panic: None,
            switches: 0,
            here: 0,
        };
        Sim { world: Arc::new(World { seed, state: Mutex::new(state) }) }
    }

    /// Runs `main` as the first task, and all tasks spawned from it, until every one of them has ended.
    ///
    /// # Panics
    /// With what a task panicked with; or if tasks are left that wait for ever, with their names.
    pub fn run<T: Send + 'static>(&self, main: impl FnOnce() -> T + Send + 'static) -> T {
        let answer = Arc::new(Mutex::new(None));
        let slot = answer.clone();
        self.begin("main", Box::new(move || *slot.lock() = Some(main())));
        // What still waits when a panic ends the run would go on while it is dropped, and wait for those who go on no more:
        // its memory is left alone.
        let mut running: ManuallyDrop<Vec<Option<Running>>> = ManuallyDrop::default();
        while let Some(task) = self.next(&mut running) {
            let ended = running[task].as_mut().is_some_and(|one| one.go_on(&self.world, task));
            if ended {
                running[task] = None;
            }
            if let Some(panic) = self.world.state.lock().panic.take() {
                resume_unwind(panic);
            }
        }
        let state = self.world.state.lock();
        let stuck: Vec<&str> =
            state.tasks.iter().filter(|task| !task.ended).map(|task| task.name.as_str()).collect();
        assert!(stuck.is_empty(), "the simulation stands still at {:?}: {stuck:?} wait for ever", state.now);
        drop(state);
        drop(ManuallyDrop::into_inner(running));
        let answer = answer.lock().take();
        answer.expect("the first task has ended")
    }

    fn next(&self, running: &mut Vec<Option<Running>>) -> Option<usize> {
        let mut state = self.world.state.lock();
        for body in std::mem::take(&mut state.fresh) {
            let task = running.len();
            running.push(Some(Running::new(body, &self.world, task)));
        }
        state.next()
    }

    /// Queues a new task; its number.
    fn begin(&self, name: &str, body: Body) -> usize {
        let mut state = self.world.state.lock();
        let task = state.tasks.len();
        state.tasks.push(TaskState { name: name.into(), turn: 0, ended: false, joiners: Vec::new() });
        state.fresh.push(body);
        let now = state.now;
        state.wake(task, 0, now);
        task
    }

    /// Sets the wall clock forward or, by a negative number of seconds, back.
    pub fn step_wall(&self, seconds: i64) {
        self.world.state.lock().wall_ahead += i128::from(seconds) * 1_000_000_000;
    }

    /// Waits so long.
    pub fn sleep(&self, span: Duration) {
        let now = self.now();
        self.sleep_until(now + span);
    }

    /// How often a task went on, so far.
    pub fn switches(&self) -> u64 {
        self.world.state.lock().switches
    }

    fn join(&self, task: usize) {
        loop {
            let mut state = self.world.state.lock();
            if state.tasks[task].ended {
                return;
            }
            let (own, turn) = with_current(|current| (current.task, state.tasks[current.task].turn));
            state.tasks[task].joiners.push((own, turn));
            drop(state);
            suspend();
        }
    }
}

impl Runtime for Sim {
    fn now(&self) -> Time {
        self.world.state.lock().now
    }

    fn wall(&self) -> Stamp {
        let state = self.world.state.lock();
        let nanos = i128::from(state.now.0) + state.wall_ahead;
        let sec = nanos.div_euclid(1_000_000_000);
        Stamp { sec: sec as i64, nsec: nanos.rem_euclid(1_000_000_000) as u32 }
    }

    fn sleep_until(&self, due: Time) {
        if !is_inside() {
            // Set up or looked at from outside: nobody else is to go on.
            let mut state = self.world.state.lock();
            state.now = state.now.max(due);
            return;
        }
        with_current(|current| {
            let mut state = self.world.state.lock();
            let (turn, at) = (state.tasks[current.task].turn, due.max(state.now));
            state.wake(current.task, turn, at);
        });
        suspend();
    }

    fn spawn(&self, name: &str, task: Box<dyn FnOnce() + Send>) -> Result<Task> {
        let task = self.begin(name, task);
        let sim = self.clone();
        Ok(Task::new(move || {
            sim.join(task);
            Ok(())
        }))
    }

    fn random(&self, stream: &str) -> Random {
        Random::new(self.world.seed, stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::sync;

    /// Three tasks that count under a lock, sleep and tell each other: what they did, in order.
    fn story(seed: u64) -> Vec<(u64, usize)> {
        let sim = Sim::new(seed);
        let inner = sim.clone();
        sim.run(move || {
            let told = Arc::new((sync::Mutex::new(Vec::new()), sync::Condvar::new()));
            let tasks: Vec<Task> = (0..3)
                .map(|number| {
                    let (sim, told) = (inner.clone(), told.clone());
                    let body = move || {
                        for _ in 0..5 {
                            sim.sleep(Duration::from_micros(10));
                            let mut list = told.0.lock();
                            list.push((sim.now().0, number));
                            told.1.notify_all();
                        }
                    };
                    inner.spawn(&format!("task {number}"), Box::new(body)).unwrap()
                })
                .collect();
            let mut list = told.0.lock();
            while list.len() < 15 {
                told.1.wait(&mut list);
            }
            drop(list);
            tasks.into_iter().for_each(|task| task.join().unwrap());
            told.0.lock().clone()
        })
    }

    #[test]
    fn the_same_seed_tells_the_same_story_and_another_seed_another() {
        assert_eq!(story(1), story(1));
        let different = (0..20).map(story).collect::<std::collections::BTreeSet<_>>();
        assert!(different.len() > 10, "{} of 20", different.len());
        assert!(story(3).windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert_eq!(story(3).last().map(|last| last.0), Some(50_000));
    }

    #[test]
    fn a_lock_held_across_a_wait_keeps_others_out_and_time_goes_on_meanwhile() {
        let sim = Sim::new(5);
        let inner = sim.clone();
        let (first, second) = sim.run(move || {
            let lock = Arc::new(sync::Mutex::new(Time::ZERO));
            let (other, clock) = (lock.clone(), inner.clone());
            let held = lock.lock();
            let task = inner.spawn(
                "waits",
                Box::new(move || {
                    let mut taken = other.lock();
                    *taken = clock.now();
                }),
            );
            let task = task.unwrap();
            inner.sleep(Duration::from_secs(3));
            let first = inner.now();
            drop(held);
            task.join().unwrap();
            let second = *lock.lock();
            (first, second)
        });
        assert_eq!((first, second), (Time(3_000_000_000), Time(3_000_000_000)));
    }

    #[test]
    fn a_condition_waits_no_longer_than_asked() {
        let sim = Sim::new(6);
        let inner = sim.clone();
        let woke = sim.run(move || {
            let lock = sync::Mutex::new(());
            let mut guard = lock.lock();
            sync::Condvar::new().wait_until(&mut guard, &inner, Time(77));
            inner.now()
        });
        assert_eq!(woke, Time(77));
    }

    #[test]
    #[should_panic(expected = "[\"main\"] wait for ever")]
    fn a_simulation_that_stands_still_names_who_waits() {
        Sim::new(1).run(|| {
            let lock = sync::Mutex::new(());
            let mut guard = lock.lock();
            sync::Condvar::new().wait(&mut guard);
        });
    }

    #[test]
    #[should_panic(expected = "as intended")]
    fn a_panic_of_a_task_ends_the_run() {
        let sim = Sim::new(1);
        let inner = sim.clone();
        sim.run(move || {
            let task = inner.spawn("t", Box::new(|| panic!("as intended"))).unwrap();
            let _ = task.join();
        });
    }

    /// Waits in a simulation, for what nobody will do, when it is dropped.
    struct WaitsWhenDropped(Arc<(sync::Mutex<()>, sync::Condvar)>);

    impl Drop for WaitsWhenDropped {
        fn drop(&mut self) {
            let mut guard = self.0.0.lock();
            self.0.1.wait(&mut guard);
        }
    }

    #[test]
    #[should_panic(expected = "does not move on")]
    fn tasks_that_go_on_for_ever_in_one_instant_end_the_run_and_drop_nothing_that_waits() {
        let sim = Sim::new(1);
        let inner = sim.clone();
        sim.run(move || {
            let told = Arc::new((sync::Mutex::new(()), sync::Condvar::new()));
            let held = WaitsWhenDropped(told);
            let clock = inner.clone();
            let body = move || loop {
                clock.sleep(Duration::ZERO);
            };
            inner.spawn("loops", Box::new(body)).unwrap().join().unwrap();
            drop(held);
        });
    }

    #[test]
    fn the_wall_clock_steps_back_and_the_present_does_not() {
        let sim = Sim::new(1);
        let (wall, now) = (sim.wall(), sim.now());
        sim.step_wall(-3600);
        assert_eq!((sim.wall().sec, sim.now()), (wall.sec - 3600, now));
    }
}
