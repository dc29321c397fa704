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
    spin: Spin,
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
        let inner = Inner { connection: self, flow, spin: Spin::default(), linger: Linger::default() };
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
    /// Calls [`Flow::receive`] for a call that writes.
    fn receive(&mut self, cx: &Context<'_>) -> io::Result<()> {
        self.flow.receive(&self.connection, Direction::Write, cx)
    }

    /// Calls [`Flow::send`] at the end of a call, after which the task may do other work. Requests that
    /// follow earlier requests are sent only in a poll of the engine, so the engine's thread has to poll
    /// then.
    fn send_and_leave(&mut self, cx: &Context<'_>) -> io::Result<()> {
        let is_behind_others = self.connection.queue_pair().has_open_sends();
        self.flow.send(&self.connection, Direction::Write, cx)?;
        if is_behind_others {
            self.connection.engine().hand_over();
        }
        Ok(())
    }

    /// Returns `Pending`. The task sleeps, so the engine's thread has to poll.
    fn pending<T>(&self) -> Poll<T> {
        self.connection.engine().hand_over();
        Poll::Pending
    }

    fn poll_read(&mut self, cx: &Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { connection, flow, spin, .. } = self;
        // A `try_read` that finds nothing registers the task to be woken.
        let read = spin.poll(connection.engine(), cx, || flow.try_read(connection, cx, out), || {});
        if read.is_ready() {
            *spin = Spin::default();
        }
        read
    }

    fn poll_write(&mut self, cx: &Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.flow.outgoing.is_ended() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.receive(cx).map_err(closed_to_writes)?;
        let count = self.flow.outgoing.gather(parts)?;
        self.send_and_leave(cx).map_err(closed_to_writes)?;
        if count == 0 && parts.iter().any(|part| !part.is_empty()) {
            return self.pending();
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match self.receive(cx).and_then(|()| self.send_and_leave(cx)) {
            Err(error) => Poll::Ready(self.unless_complete(error)),
            Ok(()) if self.flow.outgoing.is_sent() => Poll::Ready(Ok(())),
            Ok(()) => self.pending(),
        }
    }

    fn poll_shutdown(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.flow.outgoing.end();
        let state = self.receive(cx).and_then(|()| self.send_and_leave(cx));
        if self.flow.outgoing.is_end_sent() {
            return Poll::Ready(Ok(()));
        }
        match state {
            Err(error) => Poll::Ready(self.unless_complete(error)),
            Ok(()) => self.pending(),
        }
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

    /// Returns `Ok` if the peer has closed after all bytes were sent: then it is no error that the end
    /// message was not sent. Otherwise returns `error`, converted for writers.
    fn unless_complete(&self, error: io::Error) -> io::Result<()> {
        let is_complete = error.kind() == io::ErrorKind::UnexpectedEof && self.flow.outgoing.is_sent();
        if is_complete { Ok(()) } else { Err(closed_to_writes(error)) }
    }
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
