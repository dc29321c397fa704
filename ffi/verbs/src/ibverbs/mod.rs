//! libibverbs.

pub(crate) mod async_calls;
pub(crate) mod batch;
pub(crate) mod channel;
pub(crate) mod cq;
pub(crate) mod cq_events;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod ends;
pub(crate) mod ib;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod open_device;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_ex;
pub(crate) mod qp_state;
pub(crate) mod refused;
pub(crate) mod request;
pub(crate) mod section;
pub(crate) mod srq;
pub(crate) mod strings;
