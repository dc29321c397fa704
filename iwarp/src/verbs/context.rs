//! The context: what protection domains, regions and queue pairs of a process share.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use crate::engine::EngineShared;
use crate::memory::{MemoryTable, TableConfig};

use super::{CmId, CompletionChannel, CompletionQueue, EventChannel, ProtectionDomain, VerbsError};

/// How a context is made.
#[derive(Clone, Debug, Default)]
pub struct ContextConfig {
    /// Bounds on objects.
    pub limits: ContextLimits,
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
    /// Requests of one send or receive queue.
    pub max_qp_wr: usize,
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
            max_qp_wr: 32_768,
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
    pub(crate) counts: Counts,
    pub(crate) memory: MemoryTable,
    engines: RwLock<Vec<Arc<EngineShared>>>,
    listeners: Mutex<Vec<u16>>,
    qp_num: AtomicU32,
    pd_num: AtomicU32,
}

/// Objects that exist now, against their limits.
pub(crate) struct Counts {
    pub(crate) pd: Count,
    pub(crate) qp: Count,
    pub(crate) cq: Count,
}

/// One kind of object: how many there are, and may be.
pub(crate) struct Count {
    name: &'static str,
    limit: usize,
    used: AtomicUsize,
}

impl Count {
    const fn new(name: &'static str, limit: usize) -> Self {
        Self { name, limit, used: AtomicUsize::new(0) }
    }

    /// Counts one more object.
    pub(crate) fn take(&self) -> Result<(), VerbsError> {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| (used < self.limit).then_some(used + 1))
            .map(drop)
            .map_err(|_| VerbsError::Limit { name: self.name, limit: self.limit })
    }

    /// Counts one object less.
    pub(crate) fn release(&self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ContextShared {
    pub(crate) fn next_qp_num(&self) -> u32 {
        self.qp_num.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_pd_num(&self) -> u32 {
        self.pd_num.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an engine; its index is its place in the list.
    pub(crate) fn add_engine(&self, make: impl FnOnce(usize) -> EngineShared) -> Arc<EngineShared> {
        let mut engines = self.engines.write().expect("no holder of this lock panics");
        let engine = Arc::new(make(engines.len()));
        engines.push(Arc::clone(&engine));
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

    /// Reserves a port for one listener of the context.
    pub(crate) fn claim_port(&self, port: u16) -> Result<(), VerbsError> {
        let mut listeners = self.listeners.lock().expect("no holder of this lock panics");
        if listeners.contains(&port) {
            return Err(VerbsError::Invalid(format!("port {port} is being listened on: choose another one")));
        }
        listeners.push(port);
        Ok(())
    }

    /// Gives a port back.
    pub(crate) fn release_port(&self, port: u16) {
        self.listeners.lock().expect("no holder of this lock panics").retain(|&claimed| claimed != port);
    }
}

impl Context {
    /// A context with its own STag table. It moves no data until an [`Engine`](crate::engine::Engine) is made for it.
    ///
    /// # Errors
    /// [`VerbsError::System`] when the system has no entropy.
    pub fn new(config: ContextConfig) -> Result<Self, VerbsError> {
        let seed = match config.seed {
            Some(seed) => seed,
            None => entropy()?,
        };
        let limits = config.limits;
        let table = TableConfig { max_mr: limits.max_mr, max_mw: limits.max_mw };
        Ok(Self {
            shared: Arc::new(ContextShared {
                limits,
                counts: Counts {
                    pd: Count::new("max_pd", limits.max_pd),
                    qp: Count::new("max_qp", limits.max_qp),
                    cq: Count::new("max_cq", limits.max_cq),
                },
                memory: MemoryTable::with(&table, seed),
                engines: RwLock::new(Vec::new()),
                listeners: Mutex::new(Vec::new()),
                qp_num: AtomicU32::new(1),
                pd_num: AtomicU32::new(1),
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
        if cqe == 0 {
            return Err(VerbsError::Invalid("a completion queue needs at least one entry".into()));
        }
        if cqe > self.shared.limits.max_cqe {
            return Err(VerbsError::Limit { name: "max_cqe", limit: self.shared.limits.max_cqe });
        }
        self.shared.counts.cq.take()?;
        Ok(CompletionQueue::new(Arc::clone(&self.shared), cqe, channel))
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
    /// [`VerbsError::System`] when no descriptor is left.
    pub fn create_event_channel(&self) -> Result<EventChannel, VerbsError> {
        Ok(EventChannel::new()?)
    }

    /// An identifier for one connection or listener (`rdma_create_id`).
    pub fn create_id(&self, channel: &EventChannel) -> CmId {
        CmId::new(Arc::clone(&self.shared), channel.clone())
    }
}

/// 32 octets nobody can guess.
pub(crate) fn entropy() -> Result<[u8; 32], VerbsError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| std::io::Error::other(format!("no entropy from the system: {error}")))?;
    Ok(seed)
}
