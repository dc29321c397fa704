//! The functions of libibverbs.
//!
//! | file | contents |
//! |---|---|
//! | `device.rs` | the list of devices, contexts, queries |
//! | `open_device.rs` | opening the device, with the functions that programs reach through its struct |
//! | `pd.rs`, `mr.rs`, `mw.rs` | protection domains, memory regions and windows |
//! | `on_demand.rs` | regions for on-demand paging, and prefetching them |
//! | `comp_channel.rs`, `cq.rs`, `cq_ex.rs`, `cq_events.rs` | completion channels, completion queues and their events |
//! | `clock.rs` | the device's clock, for completion timestamps |
//! | `srq.rs` | shared receive queues |
//! | `qp.rs`, `qp_state.rs`, `engine_qps.rs` | queue pairs, their states, and the engine's queue pairs behind each of them |
//! | `ah.rs`, `mcast.rs` | address handles, multicast groups |
//! | `oob_connect.rs` | connections that programs set up out of band |
//! | `post.rs`, `work_request.rs`, `long_inline.rs` | posting work requests, and memory for long inline data |
//! | `qp_ex.rs`, `wr_batch.rs`, `critical_section.rs` | posting work requests call by call (`ibv_wr_start`) |
//! | `async_events.rs` | reading and acknowledging asynchronous events |
//! | `strings.rs`, `unsupported.rs` | names of constants, and calls that have no counterpart here |

pub(crate) mod ah;
pub(crate) mod async_events;
pub(crate) mod clock;
pub(crate) mod comp_channel;
pub(crate) mod cq;
pub(crate) mod cq_events;
pub(crate) mod cq_ex;
pub(crate) mod critical_section;
pub(crate) mod device;
pub(crate) mod engine_qps;
pub(crate) mod long_inline;
pub(crate) mod mcast;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod on_demand;
pub(crate) mod oob_connect;
pub(crate) mod open_device;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_ex;
pub(crate) mod qp_state;
pub(crate) mod srq;
pub(crate) mod strings;
pub(crate) mod unsupported;
pub(crate) mod work_request;
pub(crate) mod wr_batch;
