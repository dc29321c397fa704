//! The context: what protection domains, regions and queue pairs of a process share.

use std::sync::Arc;

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
pub(crate) struct ContextShared {}

impl Context {
    /// A context with its own STag table. It moves no data until an [`Engine`](crate::engine::Engine) is made for it.
    ///
    /// # Errors
    /// [`VerbsError::System`] when the system has no entropy.
    pub fn new(config: ContextConfig) -> Result<Self, VerbsError> {
        let _ = config;
        todo!()
    }

    /// A protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        todo!()
    }

    /// A completion queue of `cqe` entries (`ibv_create_cq`), whose events go to `channel`, if any.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`] for 0 entries.
    pub fn create_cq(&self, cqe: usize, channel: Option<&CompletionChannel>) -> Result<CompletionQueue, VerbsError> {
        let _ = (cqe, channel);
        todo!()
    }

    /// A completion channel (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// [`VerbsError::System`] when no descriptor is left.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        todo!()
    }

    /// A channel for connection events (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// [`VerbsError::System`] when no descriptor is left.
    pub fn create_event_channel(&self) -> Result<EventChannel, VerbsError> {
        todo!()
    }

    /// An identifier for one connection or listener (`rdma_create_id`).
    pub fn create_id(&self, channel: &EventChannel) -> CmId {
        let _ = channel;
        todo!()
    }
}
