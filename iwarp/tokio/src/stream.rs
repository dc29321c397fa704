//! A stream of bytes over a connection: `AsyncRead` and `AsyncWrite`.
//!
//! Each peer has a ring of registered memory into which the other peer writes. The writer sends contiguous
//! bytes by an RDMA Write with Immediate Data, which contains their length. The reader returns credits for
//! bytes of the ring and for messages, so that neither the ring nor the receive queue overflows. Without
//! credit, written bytes accumulate, and are sent later in longer Writes.

mod flow;
mod incoming;
mod linger;
mod outgoing;
mod protocol;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use iwarp::memory::Access;
use iwarp::verbs::VerbsError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::receives::Receives;
use crate::router::Direction;
use crate::spin::Spin;
use flow::Flow;
use incoming::Incoming;
use linger::Linger;
use outgoing::Outgoing;
use protocol::{HELLO_BYTES, LONGEST_RING, RESERVE};

/// A stream of bytes over a connection ([`Connection::into_stream`]).
///
/// Written bytes are sent at once if the peer has given credit for them. Without credit the bytes accumulate,
/// and a later call on this stream sends them. `flush` waits until all written bytes are sent. `shutdown`
/// also waits, and notifies the peer that no more bytes follow; the peer may continue to send. Dropping the
/// stream does the same as `shutdown` in the background, and then closes the connection. The connection is
/// reset if the stream is dropped outside of a tokio runtime, if the peer accepts no bytes for a minute, or
/// if the peer has not accepted all bytes within ten minutes.
pub struct Stream {
    /// `None` only during the drop.
    inner: Option<Box<Inner>>,
}

struct Inner {
    connection: Connection,
    flow: Flow,
    /// The waits of both directions.
    reading: Spin,
    writing: Spin,
    /// The time limits for the peer after the stream was dropped.
    linger: Linger,
}

impl Connection {
    /// Turns the connection into a stream of bytes. The peer has to call this function as well. Before the
    /// call, all messages must have been received, and no other clone of the connection may be used.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the options of this side do not suffice. [`Error::Protocol`] if the peer does not
    /// begin a stream, or the peer's options do not suffice. [`Error::Connection`] if the connection has
    /// ended.
    pub async fn into_stream(self) -> Result<Stream> {
        let &Receives { depth: receives, message_bytes, .. } = self.receives();
        let bytes = self.stream_bytes();
        if !(1..=LONGEST_RING).contains(&(bytes as u64)) {
            return Err(invalid("its `stream_bytes` have to be between 1 and 64 MiB"));
        }
        if receives as u64 <= RESERVE || message_bytes < HELLO_BYTES {
            return Err(invalid("it needs a `recv_depth` of 13 and `message_bytes` of 25, or more"));
        }
        let ring = self.register(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let hello = protocol::hello(&ring.remote(), receives);
        let answer = async {
            let answer = self.recv().await?;
            protocol::parse_hello(&answer.data)
        };
        let ((), (peer_ring, window)) = tokio::try_join!(self.send(&hello), answer)?;
        // The peer may still wait for an acknowledgement of its hello.
        self.engine().hand_over();
        let incoming = Incoming::new(ring, receives as u64 - RESERVE);
        let outgoing = Outgoing::new(&self, peer_ring, window)?;
        let flow = Flow { incoming, outgoing, failed: None };
        let inner = Inner {
            connection: self,
            flow,
            reading: Spin::default(),
            writing: Spin::default(),
            linger: Linger::default(),
        };
        Ok(Stream { inner: Some(Box::new(inner)) })
    }
}

impl Stream {
    /// Returns the connection that carries the stream. The messages of this connection belong to the stream.
    pub fn connection(&self) -> &Connection {
        &self.inner.as_ref().expect("taken by the drop alone").connection
    }

    fn inner(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("taken by the drop alone")
    }
}

impl Inner {
    /// Receives and sends for a call that writes, until `is_done` returns a result. The task polls the engine
    /// for a moment before it sleeps. A call that returns may be followed by other work of the task. Requests
    /// behind earlier requests are sent only in a poll of the engine, so such a call polls or hands over.
    fn poll_sent<T>(
        &mut self,
        cx: &Context<'_>,
        mut is_done: impl FnMut(&mut Outgoing) -> io::Result<Option<T>>,
        on_error: impl Fn(&Outgoing, io::Error) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let Self { connection, flow, writing, .. } = self;
        let find = || {
            let is_behind_others = connection.queue_pair().has_open_sends();
            let done = flow.receive(connection, Direction::Write, cx).and_then(|()| {
                let done = is_done(&mut flow.outgoing)?;
                flow.send(connection, Direction::Write, cx)?;
                Ok(done)
            });
            let done = match done {
                Ok(None) => is_done(&mut flow.outgoing),
                done => done,
            };
            if is_behind_others && !matches!(done, Ok(None)) {
                connection.engine().leave_behind();
            }
            done.map_or_else(|error| Some(on_error(&flow.outgoing, error)), |done| done.map(Ok))
        };
        // A `receive` or `send` that cannot continue registers the task to be woken.
        let done = writing.poll(connection.engine(), cx, find, || {});
        if done.is_ready() {
            *writing = Spin::default();
        }
        done
    }

    fn poll_read(&mut self, cx: &Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { connection, flow, reading, .. } = self;
        // A `try_read` that finds nothing registers the task to be woken.
        let read = reading.poll(connection.engine(), cx, || flow.try_read(connection, cx, out), || {});
        if read.is_ready() {
            *reading = Spin::default();
        }
        read
    }

    fn poll_write(&mut self, cx: &Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.flow.outgoing.is_ended() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let is_empty = parts.iter().all(|part| part.is_empty());
        let gather = |outgoing: &mut Outgoing| {
            let count = outgoing.gather(parts)?;
            Ok((count > 0 || is_empty).then_some(count))
        };
        self.poll_sent(cx, gather, |_, error| Err(closed_to_writes(error)))
    }

    fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sent(cx, |outgoing| Ok(outgoing.is_sent().then_some(())), unless_complete)
    }

    fn poll_shutdown(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.flow.outgoing.end();
        let is_sent = |outgoing: &mut Outgoing| Ok(outgoing.is_end_sent().then_some(()));
        self.poll_sent(cx, is_sent, |outgoing, error| {
            if outgoing.is_end_sent() { Ok(()) } else { unless_complete(outgoing, error) }
        })
    }

    /// Sends the remaining bytes, and closes the connection; resets it if the peer exceeds the time limits.
    async fn finish(mut self) {
        let mut linger = self.linger;
        while let Some(limit) = linger.next(self.flow.outgoing.credited()) {
            let closed = async {
                // Each of these calls may fail because the connection has ended.
                let _ = std::future::poll_fn(|cx| self.poll_shutdown(cx)).await;
                let _ = self.connection.close().await;
            };
            if timeout(limit, closed).await.is_ok() {
                return;
            }
        }
        self.connection.abort();
    }
}

/// Returns `Ok` if the peer has closed after all bytes were sent: then it is no error that the end message
/// was not sent. Otherwise returns `error`, converted for writers.
fn unless_complete(outgoing: &Outgoing, error: io::Error) -> io::Result<()> {
    let is_complete = error.kind() == io::ErrorKind::UnexpectedEof && outgoing.is_sent();
    if is_complete { Ok(()) } else { Err(closed_to_writes(error)) }
}

fn invalid(reason: &str) -> Error {
    VerbsError::Invalid(format!("the connection cannot become a stream: {reason}")).into()
}

/// Converts an error for writers: a close by the peer is an end of file only for readers.
fn closed_to_writes(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return io::Error::new(io::ErrorKind::BrokenPipe, error.to_string());
    }
    error
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner().poll_read(cx, out)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (Some(inner), Ok(runtime)) = (self.inner.take(), tokio::runtime::Handle::try_current()) else {
            // Without a runtime, the connection is reset.
            return;
        };
        runtime.spawn(async move { inner.finish().await });
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.inner.as_ref();
        f.debug_struct("Stream")
            .field("connection", &inner.map(|inner| &inner.connection))
            .finish_non_exhaustive()
    }
}
