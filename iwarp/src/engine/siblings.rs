//! Engines on the queues of one device, which share the addresses of the device.
//!
//! Each engine has its own queue, stack and connections, and a thread if the program wants one. While an
//! engine processes a frame that arrived on the queue of the frame's connection, the engine uses no state of
//! another engine. Any other frame of a connection is handed over to the stack that has the connection
//! ([`tcp_lite::steering`]), and the engine that received the frame wakes the engine of that stack.

use std::sync::Arc;

use dp::{Clock, Port};
use tcp_lite::Member;

use super::poller::Poller;
use super::thread::{self, EngineThread, ThreadOptions};
use super::{Engine, EngineConfig};
use crate::queues::Notifier;
use crate::verbs::{CmCommand, Context, EngineHandle, VerbsError};

/// All engines on the queues of one device, as one of these engines sees them.
#[derive(Default)]
pub(super) struct Siblings {
    /// All engines, by the numbers of their stacks.
    engines: Arc<[Arc<EngineHandle>]>,
    /// The queues of engines that are gone. Only this engine receives the frames that arrive there.
    pub(super) adopted: Vec<Box<dyn Port>>,
}

impl Siblings {
    /// Whether [`Engine::on_queues`] has created this engine, so that there may be other engines.
    #[inline]
    pub(super) fn exist(&self) -> bool {
        !self.engines.is_empty()
    }

    /// Whether there are queues of engines that are gone.
    #[inline]
    pub(super) fn have_left(&self) -> bool {
        !self.adopted.is_empty()
    }

    /// Wakes the sleeping engines whose bits are set in `engines`.
    pub(super) fn wake(&self, engines: u64) {
        let mut left = engines;
        while left != 0 {
            if let Some(engine) = self.engines.get(left.trailing_zeros() as usize) {
                engine.doorbells().wake();
            }
            left &= left - 1;
        }
    }

    /// Gives the queues of an engine that ends to an engine that still runs, if there is one.
    pub(super) fn leave(&mut self, own: Box<dyn Port>) {
        let Some(heir) = self.engines.iter().find(|engine| !engine.is_stopped()) else { return };
        for port in self.adopted.drain(..).chain([own]) {
            heir.command(CmCommand::Adopt { port });
        }
    }
}

impl Engine {
    /// Creates an engine on each of several queues of one device. The engines share the addresses of
    /// `config`. `ports` are the queues, as [`dp::dpdk::open`] returns them. If `cpus` has an entry `n`, the
    /// memory of engine `n` is allocated while the calling thread runs on the CPU `cpus[n]`, so that the
    /// memory is near the CPU.
    ///
    /// [`ConnParam::engine`](crate::verbs::ConnParam::engine) chooses the engine of a connection; by default
    /// it is the engine with the fewest connections. Listeners accept connections on all engines. If an
    /// engine is dropped, its connections end, and one of the remaining engines serves the queue of the
    /// dropped engine.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if there is no port, or if there are more than
    /// [`MAX_MEMBERS`](tcp_lite::steering::MAX_MEMBERS) ports. [`VerbsError::System`] if a file descriptor
    /// cannot be created.
    pub fn on_queues(
        context: &Context,
        ports: Vec<Box<dyn Port>>,
        config: &EngineConfig,
        cpus: &[usize],
    ) -> Result<Vec<Self>, VerbsError> {
        let most = tcp_lite::steering::MAX_MEMBERS;
        if !(1..=most).contains(&ports.len()) {
            return Err(VerbsError::Invalid(format!("engines need 1 to {most} ports, not {}", ports.len())));
        }
        let queues: Vec<_> = ports.iter().map(|port| port.info().queue.clone()).collect();
        let wakers = ports.iter().map(|_| Notifier::new()).collect::<Result<Vec<_>, _>>()?;
        let connections = config.stack.limits.connections;
        let add = |waker| context.shared.add_engine(|index| EngineHandle::new(index, connections, waker));
        let engines: Arc<[_]> = wakers.into_iter().map(add).collect();
        // All engines share a clock, since sequence numbers and cookies of a host need a common time.
        let clock = Clock::new();
        let _back = (!cpus.is_empty()).then(thread::Affinity::save);
        let members = Member::group(&config.stack, &queues);
        let each = ports.into_iter().zip(members).enumerate().map(|(at, (port, member))| {
            if let Some(cpu) = cpus.get(at) {
                thread::pin(*cpu);
            }
            let resources = &context.shared.resources;
            let mut poller =
                Poller::new(Arc::clone(&engines[at]), port, config.clone(), resources.events.clone());
            poller.join(member, Siblings { engines: Arc::clone(&engines), adopted: Vec::new() });
            Self {
                context: context.clone(),
                participant: resources.memory.join(),
                clock: clock.clone(),
                polled_at: 0,
                poller,
            }
        });
        Ok(each.collect())
    }
}

impl EngineThread {
    /// As [`Engine::on_queues`], with a thread for each engine. The thread of engine `n` is pinned to the CPU
    /// `cpus[n]`. If `cpus` has no entry `n`, [`ThreadOptions::cpu`] applies to the thread.
    ///
    /// # Errors
    /// The errors of [`Engine::on_queues`] and of [`Engine::spawn`].
    pub fn on_queues(
        context: &Context,
        ports: Vec<Box<dyn Port>>,
        config: &EngineConfig,
        cpus: &[usize],
        options: ThreadOptions,
    ) -> Result<Vec<Self>, VerbsError> {
        let engines = Engine::on_queues(context, ports, config, cpus)?;
        let spawn = |(at, engine): (usize, Engine)| {
            engine.spawn(ThreadOptions { cpu: cpus.get(at).copied().or(options.cpu), ..options })
        };
        engines.into_iter().enumerate().map(spawn).collect()
    }
}
