//! RDMA for async programs, on tokio and on iWARP in user space ([`iwarp`]): no RDMA hardware, no kernel
//! module.
#![deny(unsafe_code)]

mod connection;
mod endpoint;
mod error;
mod events;
mod listener;
mod options;
mod region;
mod router;
mod stream;

pub use connection::{Connection, Message};
pub use endpoint::{Endpoint, EndpointOptions};
pub use error::{Error, Result};
pub use listener::{Listener, Request};
pub use options::ConnectionOptions;
pub use region::{Region, RemoteRegion, Slice};
pub use stream::Stream;
