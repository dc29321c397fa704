//! The connection manager (librdmacm) on identifiers of the engine's context.
//!
//! | file | contents |
//! |---|---|
//! | `dispatch.rs` | events of the engine become events of programs |
//! | `channel.rs` | event channels: reading and acknowledging events |
//! | `create.rs` | the calls that come first |
//! | `id.rs` | identifiers: migrating, destroying |
//! | `address.rs` | binding and resolving |
//! | `ports.rs` | which identifiers may be bound to one port |
//! | `addrinfo.rs` | `rdma_getaddrinfo` |
//! | `connect.rs` | listening, connecting, accepting, disconnecting |
//! | `qp.rs` | queue pairs and shared receive queues of identifiers |
//! | `endpoint.rs` | synchronous endpoints: `rdma_create_ep`, `rdma_get_request` |
//! | `device.rs` | the context that identifiers share |
//! | `other.rs` | devices, options, multicast |
//! | `rsocket.rs` | rsockets, which are those of rdma-core's library |

mod address;
mod addrinfo;
mod channel;
mod connect;
mod create;
mod device;
pub(crate) mod dispatch;
mod endpoint;
mod id;
mod other;
mod ports;
mod qp;
mod rsocket;

pub(crate) use ports::Ports;
