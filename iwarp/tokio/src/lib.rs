//! RDMA for async programs: connections on tokio, over iWARP in user space ([`iwarp`]). Neither RDMA
//! hardware nor a kernel module is needed.
//!
//! An [`Endpoint`] opens a wire by its name and runs its engine in a thread. A [`Connection`] reads and
//! writes memory of the peer, changes words of this memory atomically, sends messages, or becomes a stream of
//! bytes. A [`RemoteRegion`] describes memory of the peer; the peer sends the description in private data or
//! in a message.
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
//! connection.write_bytes(&remote.slice(..5)?, b"hello").await?;     // the server's program makes no call
//! connection.send(b"written").await?;
//! assert_eq!(connection.recv().await?.data, b"hello");
//! connection.close().await
//! # }
//! ```
//!
//! # What to know
//!
//! * **Futures may be dropped.** A posted request continues, and its memory stays registered until the
//!   request completes ([`Connection`]).
//! * **Requests wait instead of failing** while [`send_depth`](ConnectionOptions::send_depth) requests are
//!   in flight.
//! * **An accept does not wait for the peer.** The first request of the accepted connection waits for the
//!   peer, so a silent peer does not delay an accept loop ([`Request::accept`]).
//! * **A Send waits for a buffer of the peer** if both peers offer InfiniBand's semantics, as this crate does
//!   by default. Otherwise a Send that finds no buffer at the peer ends the connection
//!   ([`Connection::ib_semantics`]).
//! * **The end of a connection has a cause.** A call that waits returns the cause, in most cases as
//!   [`Error::Connection`], and [`Connection::closed`] waits for the cause. [`Error`] converts to
//!   [`std::io::Error`].
//! * **An idle endpoint does not spin.** A task that waits for a request or a message polls the engine for 50
//!   us, if its last wait was short, and then sleeps. Then tokio's reactor waits for the engine's frames
//!   ([`SharedEngine`](iwarp::engine::SharedEngine)). A program without tokio can wait as
//!   [`CompletionChannel`](iwarp::verbs::CompletionChannel#arm-poll-wait) describes.
//! * **While a task computes, its peers wait.** If no worker of the endpoint's runtime serves the engine for
//!   one to three milliseconds, a thread of the endpoint serves. Until then no acknowledgements and no Read
//!   Responses are sent. When the runtime ends, the thread serves within a
//!   millisecond.
//! * **A stream** ([`Connection::into_stream`]) implements `AsyncRead` and `AsyncWrite`, so hyper and
//!   `tokio::io::copy` run over RDMA.
//! * **Counters** are in [`Endpoint::status`], and for Prometheus in [`Endpoint::serve_metrics`]. On Linux,
//!   `uwarp status` shows the endpoints of all processes of the user. For this, the feature `status`, which
//!   is on by default, makes a socket for each endpoint.
//! * An endpoint has to be created within a tokio runtime whose I/O is enabled.
//!
//! # Events
//!
//! With the feature `tracing`, connections, MPA startup, Terminates, timeouts and links emit events. The
//! program installs a subscriber before it opens an endpoint:
//!
//! ```
//! tracing_subscriber::fmt::init(); // its feature `env-filter` takes RUST_LOG=iwarp=debug,tcp_lite=warn
//! ```
//!
//! Most events are emitted on the thread that polls the engine, so a slow subscriber delays the engine.
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
mod served;
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
