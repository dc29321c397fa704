//! iWARP: RDMA over TCP, in user space.

pub mod ddp;
pub mod engine;
pub mod memory;
pub mod mpa;
pub mod rdmap;
pub mod verbs;
