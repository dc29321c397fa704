//! RDMA for async programs: connections on tokio, over iWARP in user space ([`iwarp`]). No RDMA hardware and
//! no kernel module is needed.
//!
//! An [`Endpoint`] opens a wire by its name and runs its engine in a thread. A [`Connection`] reads and
//! writes memory of the peer, changes its words atomically, sends messages, or becomes a stream of bytes.
//! Memory that the peer lets us use is a value, a [`RemoteRegion`], which travels in private data or in a
//! message.
//!
//! ```
//! use iwarp::memory::Access;
//! use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, Listener, RemoteRegion};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> iwarp_tokio::Result<()> {
//! // Shared memory between processes of one user; `packet:eth0,addr=10.0.0.2/24` is an interface.
//! let (server, client) = (Endpoint::open("local:docs").await?, Endpoint::open("local:docs").await?);
//!
//! let listener = Listener::bind(&server, 7471)?;
//! let memory = server.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
//! let address = server.addresses()[0];
//! tokio::spawn(async move {
//!     let answer = ConnectionOptions::default().private_data(&memory.remote().to_bytes())?;
//!     let connection = listener.request().await?.accept(&answer).await?;
//!     let message = connection.recv().await?;
//!     assert_eq!(message.data, b"written");
//!     connection.send(&memory.slice(..5)?.to_vec()?).await?;
//!     Err::<(), _>(connection.closed().await)
//! });
//!
//! let connection = Connection::connect(&client, (address, 7471)).await?;
//! let remote = RemoteRegion::try_from(connection.private_data())?;
//! connection.write_bytes(&remote.slice(..5)?, b"hello").await?;     // the server's program does nothing
//! connection.send(b"written").await?;
//! assert_eq!(connection.recv().await?.data, b"hello");
//! connection.close().await
//! # }
//! ```
//!
//! # What to know
//!
//! * **Futures may be dropped.** A request that was posted goes on, and its memory stays registered until it
//!   completes ([`Connection`]).
//! * **Requests wait instead of failing** when more than
//!   [`send_depth`](ConnectionOptions::send_depth) are under way.
//! * **An accept waits for nobody.** The first request of an accepted connection waits for its peer instead,
//!   so a loop that accepts is not held up by a silent one ([`Request::accept`]).
//! * **A Send waits for a buffer of the peer** between two ends of this crate. Toward another implementation
//!   it ends the connection if the peer has none ([`Connection::ib_semantics`]).
//! * **An end has its cause**: every call that waits returns the [`Error::Connection`] that ended the
//!   connection, and [`Connection::closed`] waits for it. [`Error`] converts to [`std::io::Error`].
//! * **Nothing spins while nothing moves.** A task that waits polls the engine for 50 us, and then sleeps.
//!   The engine's thread polls while no task does, for some tens of microseconds, and then sleeps too
//!   ([`SharedEngine`](iwarp::engine::SharedEngine)). A program without tokio waits by the recipe of
//!   [`CompletionChannel`](iwarp::verbs::CompletionChannel#arm-poll-wait).
//! * **A task that computes lets its peers wait.** If it has polled the engine a moment ago, the thread takes
//!   over within 100 us, or within 500 us after long polling. Then acknowledgements and answers to Reads
//!   leave.
//! * **A stream** ([`Connection::into_stream`]) is `AsyncRead` and `AsyncWrite`, so hyper and
//!   `tokio::io::copy` run over RDMA.
//! * **Counters** are in [`Endpoint::status`], and for Prometheus in [`Endpoint::serve_metrics`].
//!   `uwarp status` shows the endpoints of all processes of the user: the feature `status`, on by default,
//!   has a socket for each, which this user alone may use.
//! * An endpoint is made within a runtime of tokio whose I/O is enabled.
//!
//! # Events
//!
//! With the feature `tracing`, connections, MPA startup, Terminates, timeouts and links make events. The
//! program says where they go, before it opens an endpoint:
//!
//! ```
//! tracing_subscriber::fmt::init(); // its feature `env-filter` takes RUST_LOG=iwarp=debug,tcp_lite=warn
//! ```
//!
//! The engine's thread runs the subscriber, and waits as long as that takes.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod connection;
mod endpoint;
mod error;
mod events;
#[cfg(test)]
#[path = "../tests/common/limited.rs"]
mod limited;
mod listener;
mod metrics;
mod options;
mod receives;
mod region;
mod router;
#[cfg(all(feature = "status", target_os = "linux"))]
mod shown;
mod spin;
mod stream;
#[cfg(test)]
mod tests;
mod wr_id;

pub use connection::{Connection, Message};
pub use endpoint::{Endpoint, EndpointOptions};
pub use error::{Error, Result};
pub use listener::{Listener, Request};
pub use options::ConnectionOptions;
pub use region::{Region, RemoteRegion, Slice};
pub use stream::Stream;
