//! The context: what protection domains, regions and queue pairs of a process share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};

use crate::engine::EngineShared;
use crate::memory::{MemoryTable, TableConfig, UserMemory};

use super::usage::Quota;
use super::{
    AsyncEvents, CmCommand, CmId, CmShared, CompletionChannel, CompletionQueue, ContextUsage, CqOptions,
    EventChannel, ListenerShared, ProtectionDomain, Usage, VerbsError,
};

/// How a context is made.
#[derive(Clone, Debug, Default)]
pub struct ContextConfig {
    /// Bounds on objects.
    pub limits: ContextLimits,
    /// How memory of callers is accessed: guarded, by default, against their taking it away too early.
    pub user_memory: UserMemory,
    /// Memory that peers of one protection domain may write to is not registered for peers of another to write to
    /// (RFC 5042 section 6.3.6). Off by default; [`MemoryRegion::other_writers`](super::MemoryRegion::other_writers) tells
    /// about one region.
    pub strict_overlap: bool,
    /// Key of STags; `None` (always, outside tests) takes OS entropy.
    pub seed: Option<[u8; 32]>,
}

/// How many objects a context makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// Protection domains.
    pub max_pd: usize,
    /// Memory regions.
    pub max_mr: usize,
    /// Memory windows.
    pub max_mw: usize,
    /// Queue pairs.
    pub max_qp: usize,
    /// Completion queues.
    pub max_cq: usize,
    /// Entries of one completion queue.
    pub max_cqe: usize,
    /// Entries of all completion queues together.
    pub max_cqe_total: usize,
    /// Requests of one send or receive queue.
    pub max_qp_wr: usize,
    /// Shared receive queues.
    pub max_srq: usize,
    /// Requests of one shared receive queue.
    pub max_srq_wr: usize,
    /// Inbound Reads and atomics that all connections together may have outstanding. A connection counts with its IRD, and
    /// with as much again where its queue pair understands atomics ([`Extensions::ATOMICS`](super::Extensions::ATOMICS)), as by
    /// default it does: they have buffers of their own. Until depths are settled the IRD counts as what it may come to:
    /// [`ConnParam::responder_resources`](super::ConnParam::responder_resources), or 128 if that is more, as the peer may have
    /// it raised.
    pub max_read_slots: usize,
    /// Asynchronous events that wait; more are lost and counted.
    pub max_async_events: usize,
    /// Events that wait in one event channel; what comes beyond is lost, and counted.
    pub max_cm_events: usize,
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            max_pd: 16_384,
            max_mr: 65_536,
            max_mw: 65_536,
            max_qp: 16_384,
            max_cq: 16_384,
            max_cqe: 1 << 20,
            max_cqe_total: 1 << 24,
            max_qp_wr: 32_768,
            max_srq: 16_384,
            max_srq_wr: 1 << 20,
            max_read_slots: 16_384 * 2 * 128,
            max_async_events: 1024,
            max_cm_events: 512,
        }
    }
}

/// The root of all objects. Cheap to clone: clones are the same context.
#[derive(Clone)]
pub struct Context {
    pub(crate) shared: Arc<ContextShared>,
}

/// What engines and objects share.
pub(crate) struct ContextShared {
    pub(crate) limits: ContextLimits,
    pub(crate) quotas: Quotas,
    pub(crate) events: AsyncEvents,
    pub(crate) memory: MemoryTable,
    engines: RwLock<Vec<Arc<EngineShared>>>,
    /// Taken before the lock of any engine's commands.
    listeners: Mutex<Vec<Listening>>,
    qp_num: AtomicU32,
    pd_num: AtomicU32,
    cq_num: AtomicU32,
    srq_num: AtomicU32,
}

/// A port that is listened on.
struct Listening {
    id: Weak<CmShared>,
    listener: Arc<ListenerShared>,
}

/// What there may be of each kind, and is.
pub(crate) struct Quotas {
    pub(crate) pd: Arc<Quota>,
    pub(crate) qp: Arc<Quota>,
    pub(crate) cq: Arc<Quota>,
    pub(crate) cqe: Arc<Quota>,
    pub(crate) srq: Arc<Quota>,
    pub(crate) read_slots: Arc<Quota>,
}

impl ContextShared {
    /// Objects of two contexts are not used together: each context numbers its own, and has its own memory and limits.
    pub(crate) fn same(&self, other: &Self) -> Result<(), VerbsError> {
        if std::ptr::eq(self, other) {
            return Ok(());
        }
        Err(VerbsError::Invalid("these objects are of different contexts, which share nothing".into()))
    }

    pub(crate) fn next_qp_num(&self) -> u32 {
        self.qp_num.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_pd_num(&self) -> u32 {
        self.pd_num.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_cq_num(&self) -> u32 {
        self.cq_num.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_srq_num(&self) -> u32 {
        self.srq_num.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an engine; its index is its place in the list. It joins those who listen.
    pub(crate) fn add_engine(&self, make: impl FnOnce(usize) -> EngineShared) -> Arc<EngineShared> {
        let listeners = self.listeners();
        let mut engines = self.engines.write().expect("no holder of this lock panics");
        let engine = Arc::new(make(engines.len()));
        engines.push(Arc::clone(&engine));
        drop(engines);
        for Listening { id, listener } in listeners.iter() {
            if let Some(id) = id.upgrade() {
                engine.command(CmCommand::Listen { id, listener: Arc::clone(listener) });
            }
        }
        engine
    }

    /// The engine asked for, or the one with the fewest connections.
    pub(crate) fn engine(&self, index: Option<usize>) -> Result<Arc<EngineShared>, VerbsError> {
        let engines = self.engines.read().expect("no holder of this lock panics");
        let mut alive = engines.iter().filter(|engine| !engine.is_stopped());
        match index {
            Some(index) => alive.find(|engine| engine.index() == index),
            None => alive.min_by_key(|engine| engine.connections()),
        }
        .cloned()
        .ok_or(VerbsError::NoEngine)
    }

    /// All engines that still run.
    pub(crate) fn engines(&self) -> Vec<Arc<EngineShared>> {
        let engines = self.engines.read().expect("no holder of this lock panics");
        engines.iter().filter(|engine| !engine.is_stopped()).cloned().collect()
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listening>> {
        self.listeners.lock().expect("no holder of this lock panics")
    }

    /// Connections that are on their way in, of all listeners: half-open, and not decided.
    fn incoming(&self) -> [Usage; 2] {
        let mut half_open = Usage { name: "half_open", limit: 0, used: 0, refused: 0 };
        let mut backlog = Usage { name: "backlog", ..half_open };
        for Listening { listener, .. } in self.listeners().iter() {
            let stats = listener.stats();
            half_open.limit += stats.half_open_limit;
            half_open.used += stats.half_open;
            half_open.refused += stats.syns.half_open_full + stats.syns.half_open_address_full;
            backlog.limit += listener.options.backlog.max(1);
            backlog.used += stats.undecided;
            backlog.refused += stats.backlog_full + stats.backlog_address_full;
        }
        [half_open, backlog]
    }

    /// Has every engine listen, those that come later as well.
    pub(crate) fn listen(
        &self,
        id: &Arc<CmShared>,
        listener: &Arc<ListenerShared>,
    ) -> Result<(), VerbsError> {
        let mut listeners = self.listeners();
        let engines = self.engines();
        if engines.is_empty() {
            return Err(VerbsError::NoEngine);
        }
        let port = listener.options.port;
        if listeners.iter().any(|other| other.listener.options.port == port) {
            return Err(VerbsError::Invalid(format!("port {port} is being listened on: choose another one")));
        }
        listeners.push(Listening { id: Arc::downgrade(id), listener: Arc::clone(listener) });
        for engine in engines {
            engine.command(CmCommand::Listen { id: Arc::clone(id), listener: Arc::clone(listener) });
        }
        Ok(())
    }

    /// Ends that, and gives the port back.
    pub(crate) fn unlisten(&self, id: &Arc<CmShared>) {
        let mut listeners = self.listeners();
        let Some(at) = listeners.iter().position(|other| std::ptr::eq(other.id.as_ptr(), Arc::as_ptr(id)))
        else {
            return;
        };
        let port = listeners.swap_remove(at).listener.options.port;
        for engine in self.engines() {
            engine.command(CmCommand::Unlisten { port });
        }
    }
}

impl Context {
    /// A context with its own STag table. It moves no data until an [`Engine`](crate::engine::Engine) is made for it.
    ///
    /// # Errors
    /// [`VerbsError::System`] when the system has no entropy or no descriptor is left.
    pub fn new(config: ContextConfig) -> Result<Self, VerbsError> {
        let seed = match config.seed {
            Some(seed) => seed,
            None => entropy()?,
        };
        let limits = config.limits;
        let table = TableConfig {
            max_mr: limits.max_mr,
            max_mw: limits.max_mw,
            user_memory: config.user_memory,
            strict_overlap: config.strict_overlap,
        };
        Ok(Self {
            shared: Arc::new(ContextShared {
                limits,
                quotas: Quotas {
                    pd: Quota::new("max_pd", limits.max_pd),
                    qp: Quota::new("max_qp", limits.max_qp),
                    cq: Quota::new("max_cq", limits.max_cq),
                    cqe: Quota::new("max_cqe_total", limits.max_cqe_total),
                    srq: Quota::new("max_srq", limits.max_srq),
                    read_slots: Quota::new("max_read_slots", limits.max_read_slots),
                },
                events: AsyncEvents::new(limits.max_async_events)?,
                memory: MemoryTable::with(&table, seed),
                engines: RwLock::new(Vec::new()),
                listeners: Mutex::new(Vec::new()),
                qp_num: AtomicU32::new(1),
                pd_num: AtomicU32::new(1),
                cq_num: AtomicU32::new(1),
                srq_num: AtomicU32::new(1),
            }),
        })
    }

    /// A protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(&self.shared)
    }

    /// A completion queue of `cqe` entries (`ibv_create_cq`), whose events go to `channel`, if any.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`] for 0 entries.
    pub fn create_cq(
        &self,
        cqe: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        self.create_cq_with(&CqOptions { channel, ..CqOptions::new(cqe) })
    }

    /// The same with all options.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`] for 0 entries.
    pub fn create_cq_with(&self, options: &CqOptions<'_>) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(Arc::clone(&self.shared), options)
    }

    /// What happens to queues and is no completion: one queue of events for the context.
    pub fn async_events(&self) -> AsyncEvents {
        self.shared.events.clone()
    }

    /// How every limit stands: its value, what is used of it, and how often it was met.
    pub fn usage(&self) -> ContextUsage {
        let quotas = &self.shared.quotas;
        let memory = self.shared.memory.usage();
        let [half_open, backlog] = self.shared.incoming();
        ContextUsage {
            half_open,
            backlog,
            pd: quotas.pd.usage(),
            mr: Usage {
                name: "max_mr",
                limit: memory.limit,
                used: memory.registered,
                refused: memory.refused,
            },
            mw: Usage {
                name: "max_mw",
                limit: memory.max_mw,
                used: memory.windows,
                refused: memory.windows_refused,
            },
            qp: quotas.qp.usage(),
            cq: quotas.cq.usage(),
            cqe: quotas.cqe.usage(),
            srq: quotas.srq.usage(),
            read_slots: quotas.read_slots.usage(),
            async_events: self.shared.events.usage(),
        }
    }

    /// A completion channel (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// [`VerbsError::System`] when no descriptor is left.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        Ok(CompletionChannel::new()?)
    }

    /// A channel for connection events (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// [`VerbsError::System`] when no descriptor is left, [`VerbsError::Limit`] where `max_cm_events` is 0.
    pub fn create_event_channel(&self) -> Result<EventChannel, VerbsError> {
        EventChannel::new(self.shared.limits.max_cm_events)
    }

    /// An identifier for one connection or listener (`rdma_create_id`).
    pub fn create_id(&self, channel: &EventChannel) -> CmId {
        CmId::new(Arc::clone(&self.shared), channel)
    }
}

/// 32 octets nobody can guess.
pub(crate) fn entropy() -> Result<[u8; 32], VerbsError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| std::io::Error::other(format!("no entropy from the system: {error}")))?;
    Ok(seed)
}
