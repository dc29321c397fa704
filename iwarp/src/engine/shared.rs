//! What the threads of users and the engine share: commands, doorbells, and how a sleeping engine is woken.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::verbs::{CmCommand, Notifier};

use super::doze::Doze;

/// The side of an engine that users reach from any thread.
pub(crate) struct EngineShared {
    index: usize,
    commands: Mutex<VecDeque<CmCommand>>,
    /// Set while `commands` may hold something, so that an idle turn takes no lock.
    commanded: AtomicBool,
    /// Slots of connections whose queue pair was posted to. A queue pair is in it once at most.
    doorbells: ArrayQueue<u32>,
    /// A doorbell did not fit: every connection is looked at.
    doorbells_lost: AtomicBool,
    doze: Doze,
    waker: Notifier,
    connections: AtomicUsize,
    /// Time of its last turn, microseconds.
    now_us: AtomicU64,
    stopped: AtomicBool,
}

impl EngineShared {
    pub(crate) fn new(index: usize, max_connections: usize, waker: Notifier) -> Self {
        Self {
            index,
            commands: Mutex::default(),
            commanded: AtomicBool::new(false),
            doorbells: ArrayQueue::new(max_connections.max(1)),
            doorbells_lost: AtomicBool::new(false),
            doze: Doze::new(),
            waker,
            connections: AtomicUsize::new(0),
            now_us: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Its place among the engines of its context.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Connections it carries now.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn set_connections(&self, count: usize) {
        self.connections.store(count, Ordering::Relaxed);
    }

    /// Time of its last turn, microseconds of its clock.
    pub(crate) fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed)
    }

    pub(crate) fn set_now_us(&self, now_us: u64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }

    /// Whether the engine is gone for good.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The engine goes: what is asked of it from now on is refused, what was asked before is still there to be taken.
    pub(crate) fn stop(&self) {
        let _commands = self.commands.lock().expect("no holder of this lock panics");
        self.stopped.store(true, Ordering::Release);
    }

    /// Asks the engine for something, in its next turn.
    pub(crate) fn command(&self, command: CmCommand) {
        let mut commands = self.commands.lock().expect("no holder of this lock panics");
        if self.is_stopped() {
            drop(commands);
            return command.refuse();
        }
        commands.push_back(command);
        self.commanded.store(true, Ordering::Release);
        drop(commands);
        self.wake();
    }

    pub(crate) fn next_command(&self) -> Option<CmCommand> {
        if !self.commanded.load(Ordering::Acquire) {
            return None;
        }
        let mut commands = self.commands.lock().expect("no holder of this lock panics");
        let command = commands.pop_front();
        if commands.is_empty() {
            self.commanded.store(false, Ordering::Release);
        }
        command
    }

    /// Says that the queue pair of connection `slot` was posted to.
    pub(crate) fn ring(&self, slot: u32) {
        if self.doorbells.push(slot).is_err() {
            self.doorbells_lost.store(true, Ordering::Release);
        }
        self.wake();
    }

    pub(crate) fn next_doorbell(&self) -> Option<u32> {
        // Looking costs less than taking in vain, which every idle turn would.
        if self.doorbells.is_empty() { None } else { self.doorbells.pop() }
    }

    /// Whether a doorbell was lost since the last call.
    pub(crate) fn take_doorbells_lost(&self) -> bool {
        self.doorbells_lost.load(Ordering::Relaxed) && self.doorbells_lost.swap(false, Ordering::AcqRel)
    }

    /// Ends the engine's sleep, if it sleeps.
    pub(crate) fn wake(&self) {
        if self.doze.must_wake() {
            self.waker.notify();
        }
    }

    /// Ends the engine's sleep or, if it does not sleep now, the next one before it begins: for what
    /// [`prepare_sleep`](Self::prepare_sleep) does not look at.
    pub(crate) fn interrupt(&self) {
        self.waker.notify();
    }

    /// Announces sleep. `false`: something is there to do already.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.doze.prepare(|| {
            self.doorbells.is_empty()
                && !self.commanded.load(Ordering::Acquire)
                && !self.doorbells_lost.load(Ordering::Acquire)
        })
    }

    /// Ends sleep and takes what woke it.
    pub(crate) fn end_sleep(&self) -> std::io::Result<()> {
        self.doze.end();
        self.waker.take().map(drop)
    }

    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
