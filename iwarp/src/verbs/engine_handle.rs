//! The handle of an engine: user threads send commands to the engine and read the engine's state through this
//! handle.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::queues::{Doorbells, Notifier};

use super::{CmCommand, StatusRequests};

/// The part of an engine that any thread may use. The engine itself is used by only one thread at a time.
pub(crate) struct EngineHandle {
    index: usize,
    commands: Mutex<VecDeque<CmCommand>>,
    status: StatusRequests,
    doorbells: Arc<Doorbells>,
    connections: AtomicUsize,
    /// Number of commands to begin a connection that the engine has not handled yet.
    to_begin: AtomicUsize,
    /// Time of the engine's last poll, in microseconds.
    now_us: AtomicU64,
    stopped: AtomicBool,
}

impl EngineHandle {
    pub(crate) fn new(index: usize, max_connections: usize, waker: Notifier) -> Self {
        Self {
            index,
            commands: Mutex::default(),
            status: StatusRequests::default(),
            doorbells: Arc::new(Doorbells::new(max_connections, waker)),
            connections: AtomicUsize::new(0),
            to_begin: AtomicUsize::new(0),
            now_us: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of connections that the engine carries now, plus the number that it still has to
    /// begin.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed) + self.to_begin.load(Ordering::Relaxed)
    }

    pub(crate) fn set_connections(&self, count: usize) {
        self.connections.store(count, Ordering::Relaxed);
    }

    /// Returns the time of the engine's last poll, in microseconds of the engine's own time.
    pub(crate) fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed)
    }

    pub(crate) fn set_now_us(&self, now_us: u64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }

    /// Whether the engine was dropped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Called when the engine was dropped. From now on commands are refused. Commands that are queued already
    /// can still be removed and handled.
    pub(crate) fn stop(&self) {
        let _commands = self.commands.lock().expect("no holder of this lock panics");
        self.stopped.store(true, Ordering::Release);
    }

    /// Queues a command for the next poll of the engine. If the engine was dropped, refuses the command.
    pub(crate) fn command(&self, command: CmCommand) {
        let mut commands = self.commands.lock().expect("no holder of this lock panics");
        if self.is_stopped() {
            drop(commands);
            return command.refuse();
        }
        if command.begins_connection() {
            self.to_begin.fetch_add(1, Ordering::Relaxed);
        }
        commands.push_back(command);
        self.doorbells.set_commanded(true);
        drop(commands);
        self.doorbells.wake();
    }

    /// Whether commands wait.
    #[inline]
    pub(crate) fn is_commanded(&self) -> bool {
        self.doorbells.is_commanded()
    }

    #[inline]
    pub(crate) fn next_command(&self) -> Option<CmCommand> {
        if self.doorbells.is_commanded() { self.take_command() } else { None }
    }

    #[cold]
    fn take_command(&self) -> Option<CmCommand> {
        let mut commands = self.commands.lock().expect("no holder of this lock panics");
        let command = commands.pop_front();
        if command.as_ref().is_some_and(CmCommand::begins_connection) {
            self.to_begin.fetch_sub(1, Ordering::Relaxed);
        }
        if commands.is_empty() {
            self.doorbells.set_commanded(false);
        }
        command
    }

    /// Returns the [`StatusRequests`], by which threads request the engine's status.
    pub(crate) fn status(&self) -> &StatusRequests {
        &self.status
    }

    pub(crate) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }
}
