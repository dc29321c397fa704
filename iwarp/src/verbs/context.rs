//! The context, which owns all state that its protection domains, regions and queue pairs share.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::{Duration, Instant};

use crate::memory::{MemoryTable, TableConfig, UserMemory};
use crate::queues::Resources;

use super::engine_handle::EngineHandle;
use super::{
    AsyncEvents, CmCommand, CmId, CmShared, CompletionChannel, CompletionQueue, ContextLimits, ContextStatus,
    ContextUsage, CqOptions, DatagramOptions, EventChannel, ListenerShared, ProtectionDomain, QueuePair,
    Usage, VerbsError,
};

/// Options of a new context.
#[derive(Clone, Debug, Default)]
pub struct ContextConfig {
    /// Limits on the number of objects and on their sizes. Default: those of [`ContextLimits`].
    pub limits: ContextLimits,
    /// How memory of the caller is accessed. By default a guard protects against memory that is unmapped too
    /// early. Default: [`UserMemory::Guarded`].
    pub user_memory: UserMemory,
    /// Refuses to register memory that peers of one protection domain may write to while peers of another
    /// domain may write to it (RFC 5042 section 6.3.6). If the field is `false`,
    /// [`MemoryRegion::other_writers`](super::MemoryRegion::other_writers) reports such peers for one region.
    /// Default: `false`.
    pub strict_overlap: bool,
    /// Accepts a request with invalid local memory. When its turn comes, the request fails with
    /// [`LocalProtectionError`](crate::verbs::WcStatus::LocalProtectionError) and ends its stream, as on most
    /// devices. An atomic whose buffer has a wrong length fails in the same way, with
    /// [`LocalLengthError`](crate::verbs::WcStatus::LocalLengthError). If the field is `false`, the post of
    /// such a request is refused. Default: `false`.
    pub late_memory_checks: bool,
    /// The first 8 of the 24 bits of the numbers of queue pairs. `None`: the numbers use all 24 bits.
    /// Processes with different prefixes have no number in common. Default: `None`.
    pub qp_num_prefix: Option<u8>,
    /// The seed of the STags. `None`: the seed is entropy from the system. A fixed seed makes the STags
    /// predictable, so it is only for tests. Default: `None`.
    pub seed: Option<[u8; 32]>,
}

/// The root of all objects. Cheap to clone: all clones refer to the same context.
#[derive(Clone)]
pub struct Context {
    pub(crate) shared: Arc<ContextShared>,
}

/// The state that engines and identifiers ([`CmId`]) share.
pub(crate) struct ContextShared {
    pub(crate) resources: Arc<Resources>,
    engines: RwLock<Vec<Arc<EngineHandle>>>,
    /// Locked before the commands of any engine.
    listeners: Mutex<Vec<Listening>>,
}

/// A TCP port with a listener.
struct Listening {
    id: Weak<CmShared>,
    listener: Arc<ListenerShared>,
}

impl ContextShared {
    /// Adds an engine, whose index is its position in the list. The engine listens on every port that has a
    /// listener.
    pub(crate) fn add_engine(&self, make: impl FnOnce(usize) -> EngineHandle) -> Arc<EngineHandle> {
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

    /// Returns the running engine with this index, or without an index the running engine with the fewest
    /// connections.
    pub(crate) fn engine(&self, index: Option<usize>) -> Result<Arc<EngineHandle>, VerbsError> {
        let engines = self.engines.read().expect("no holder of this lock panics");
        let mut alive = engines.iter().filter(|engine| !engine.is_stopped());
        match index {
            Some(index) => alive.find(|engine| engine.index() == index),
            None => alive.min_by_key(|engine| engine.connections()),
        }
        .cloned()
        .ok_or(VerbsError::NoEngine)
    }

    /// Returns all engines that still run.
    pub(crate) fn engines(&self) -> Vec<Arc<EngineHandle>> {
        let engines = self.engines.read().expect("no holder of this lock panics");
        engines.iter().filter(|engine| !engine.is_stopped()).cloned().collect()
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listening>> {
        self.listeners.lock().expect("no holder of this lock panics")
    }

    /// Returns the use of two limits, added up over all listeners: the limit on half-open connections, and
    /// the limit on connections that are neither accepted nor rejected.
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

    /// Makes every engine listen, including engines that are added later.
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
            return Err(VerbsError::PortInUse(port));
        }
        listeners.push(Listening { id: Arc::downgrade(id), listener: Arc::clone(listener) });
        for engine in engines {
            engine.command(CmCommand::Listen { id: Arc::clone(id), listener: Arc::clone(listener) });
        }
        Ok(())
    }

    /// Stops listening, and frees the port.
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
    /// Creates a context with its own STag table. The context moves no data without an
    /// [`Engine`](crate::engine::Engine).
    ///
    /// # Errors
    /// [`VerbsError::System`] if the system has no entropy, or no descriptor is available.
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
                resources: Resources::new(
                    limits,
                    MemoryTable::with(&table, seed),
                    config.late_memory_checks,
                    config.qp_num_prefix,
                )?,
                engines: RwLock::new(Vec::new()),
                listeners: Mutex::new(Vec::new()),
            }),
        })
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on protection domains is reached.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(&self.shared.resources)
    }

    /// Creates a completion queue of `cqe` entries (`ibv_create_cq`) whose events go to `channel`.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if a limit on completion queues or their entries is reached.
    /// [`VerbsError::Invalid`] if `cqe` is 0.
    pub fn create_cq(
        &self,
        cqe: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        self.create_cq_with(&CqOptions { channel, ..CqOptions::new(cqe) })
    }

    /// As [`create_cq`](Self::create_cq), with all options.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if a limit on completion queues or their entries is reached.
    /// [`VerbsError::Invalid`] if the number of entries is 0.
    pub fn create_cq_with(&self, options: &CqOptions<'_>) -> Result<CompletionQueue, VerbsError> {
        CompletionQueue::new(Arc::clone(&self.shared.resources), options)
    }

    /// Returns the queue of the context's asynchronous events, which report changes of queues and ports other
    /// than completions.
    pub fn async_events(&self) -> AsyncEvents {
        self.shared.resources.events.clone()
    }

    /// Checks the invariants of the memory table; for tests.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        self.shared.resources.memory.check_invariants()
    }

    /// Returns the value and the use of each limit on the number of objects and of incoming connections, and
    /// how often the limit refused a request.
    pub fn usage(&self) -> ContextUsage {
        let quotas = &self.shared.resources.quotas;
        let memory = self.shared.resources.memory.usage();
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
            async_events: self.shared.resources.events.usage(),
        }
    }

    /// Returns the objects of the context, and the connections of its engines. Each engine answers in its
    /// next poll. Engines that are not polled within `patience` are listed in [`ContextStatus::silent`].
    ///
    /// The engines cannot answer while the thread that polls them waits in this call. So call this function
    /// from another thread.
    pub fn status(&self, patience: Duration) -> ContextStatus {
        self.status_with(patience, &|| {})
    }

    /// As [`status`](Self::status), but calls `poll` after the requests to the engines. `poll` may poll the
    /// engines.
    pub(crate) fn status_with(&self, patience: Duration, poll: &dyn Fn()) -> ContextStatus {
        let deadline = Instant::now() + patience;
        let before = self.shared.resources.qps();
        let asked: Vec<_> = self.shared.engines().into_iter().map(|engine| (ask(&engine), engine)).collect();
        poll();
        let (mut engines, mut silent) = (Vec::new(), Vec::new());
        for (answers, engine) in asked {
            match engine.status().await_answer(answers, deadline) {
                Some(status) => engines.push(status),
                None if engine.is_stopped() => {}
                None => silent.push(engine.index()),
            }
        }
        let registered_bytes = self.shared.resources.memory.registered_bytes();
        let mut queue_pairs = self.shared.resources.qps();
        // A queue pair of a listed connection may have been destroyed since the engine answered: the earlier
        // list has such a queue pair.
        let connections = engines.iter().flat_map(|engine| &engine.connections);
        let mut missing: HashSet<u32> = connections.filter_map(|conn| Some(conn.qp?.0)).collect();
        for qp in &queue_pairs {
            missing.remove(&qp.qp_num);
        }
        queue_pairs.extend(before.into_iter().filter(|qp| missing.contains(&qp.qp_num)));
        queue_pairs.sort_by_key(|qp| qp.qp_num);
        ContextStatus { usage: self.usage(), registered_bytes, queue_pairs, engines, silent }
    }

    /// Creates a completion channel (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// [`VerbsError::System`] if no descriptor is left.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        Ok(CompletionChannel::new()?)
    }

    /// Creates a channel for connection events (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// [`VerbsError::System`] if no descriptor is left, [`VerbsError::Limit`] if `max_cm_events` is 0.
    pub fn create_event_channel(&self) -> Result<EventChannel, VerbsError> {
        EventChannel::new(self.shared.resources.limits.max_cm_events)
    }

    /// Opens a queue pair of type UD, so that it sends and receives datagrams (the states RTR and RTS of
    /// `ibv_modify_qp`). The queue pair stays in one engine until its end. Datagrams reach a queue pair at
    /// the addresses of its engine. An engine that cannot open the queue pair, for example because its number
    /// is in use, moves the queue pair to [`QpState::Error`](super::QpState::Error).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the queue pair is not of type UD, or the number is out of range.
    /// [`VerbsError::InvalidState`] if the queue pair was opened before. [`VerbsError::NoEngine`] without an
    /// engine.
    pub fn open_datagrams(&self, qp: &QueuePair, options: &DatagramOptions) -> Result<(), VerbsError> {
        let number = options.number.unwrap_or(qp.qp_num());
        let engine = self.shared.engine(Some(options.engine))?;
        qp.shared.reserve_for_datagrams(&self.shared.resources, engine.doorbells(), number)?;
        qp.shared.attributes.set_qkey(options.qkey);
        engine.command(CmCommand::OpenDatagrams { qp: Arc::clone(&qp.shared), number });
        Ok(())
    }

    /// Attaches an open queue pair of type UD to a multicast group (`ibv_attach_mcast`): from the engine's
    /// next poll on, the queue pair receives the datagrams to this group that have its Q_Key. An engine can
    /// join a limited number of groups ([`tcp_lite::MAX_GROUPS`]), and ignores further groups.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the address is not a multicast address. [`VerbsError::NoEngine`] if the
    /// queue pair is not open in an engine that still runs.
    pub fn attach_group(&self, qp: &QueuePair, group: IpAddr) -> Result<(), VerbsError> {
        self.set_group(qp, group, true)
    }

    /// Detaches a queue pair from a multicast group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// The errors of [`attach_group`](Self::attach_group).
    pub fn detach_group(&self, qp: &QueuePair, group: IpAddr) -> Result<(), VerbsError> {
        self.set_group(qp, group, false)
    }

    fn set_group(&self, qp: &QueuePair, group: IpAddr, attach: bool) -> Result<(), VerbsError> {
        if !group.is_multicast() {
            return Err(VerbsError::Invalid(format!("{group} is not a multicast address")));
        }
        let number = qp.shared.datagram_number().ok_or(VerbsError::NoEngine)?;
        let engines = self.shared.engines();
        let engine = engines.iter().find(|engine| qp.shared.engine.is_of(engine.doorbells()));
        engine.ok_or(VerbsError::NoEngine)?.command(CmCommand::Group { group, number, attach });
        Ok(())
    }

    /// Creates an identifier for one connection or listener (`rdma_create_id`).
    pub fn create_id(&self, channel: &EventChannel) -> CmId {
        CmId::new(Arc::clone(&self.shared), channel)
    }
}

/// Requests the status of an engine. Returns the number of answers that the engine has given so far.
fn ask(engine: &Arc<EngineHandle>) -> u64 {
    let (answers, is_first) = engine.status().ask();
    if is_first {
        engine.command(CmCommand::Status { engine: Arc::clone(engine) });
    }
    answers
}

/// Returns 32 unpredictable bytes.
pub(crate) fn entropy() -> Result<[u8; 32], VerbsError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| std::io::Error::other(format!("no entropy from the system: {error}")))?;
    Ok(seed)
}
