//! The connection manager (librdmacm), implemented by identifiers of the engine's context.
//!
//! | file | contents |
//! |---|---|
//! | `dispatch.rs` | translates events of the engine into events for the program |
//! | `event_channel.rs` | event channels: making them, reading and acknowledging events |
//! | `id.rs` | identifiers: making, migrating, destroying |
//! | `address.rs` | binding and resolving |
//! | `addrinfo.rs` | `rdma_getaddrinfo` |
//! | `connect.rs` | listening, connecting, accepting, disconnecting |
//! | `datagram.rs` | the same for identifiers of datagram services |
//! | `service.rs` | the state of an identifier of a datagram service |
//! | `multicast.rs` | multicast groups of identifiers of datagram services |
//! | `qp.rs` | queue pairs and shared receive queues of identifiers |
//! | `endpoint.rs` | synchronous endpoints: `rdma_create_ep`, `rdma_get_request` |
//! | `device.rs` | the list of devices, and the context that identifiers share |
//! | `options.rs` | options, and calls that have no counterpart in iWARP |
//! | `rsocket.rs` | rsockets, which run the code of rdma-core's library |

mod address;
mod addrinfo;
mod connect;
mod datagram;
mod device;
mod dispatch;
mod endpoint;
mod event_channel;
mod id;
mod multicast;
mod options;
mod qp;
mod rsocket;
mod service;
