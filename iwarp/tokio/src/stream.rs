//! A stream of bytes over a connection: `AsyncRead` and `AsyncWrite`.
//!
//! Each end has a ring of registered memory into which the other one writes. A run of bytes goes there by an
//! RDMA Write, whose Immediate Data is its length. The reader gives credits back, for bytes of the ring and
//! for messages, so that neither the ring nor the receive queue overflows. While there is no credit, what is
//! written gathers, and goes as one run.
//!
//! | message | bytes |
//! |---|---|
//! | hello | 1, the ring ([`RemoteRegion::to_bytes`]), the receive requests (u32) |
//! | credit | 2, all bytes of the ring that were read (u64), all Writes that were taken (u64) |
//! | end | 3 |
//! | Immediate Data | the bytes of the Write (u64) |
//!
//! Numbers are in network byte order.

mod incoming;
mod outgoing;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use iwarp::memory::Access;
use iwarp::verbs::SendOp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::{Connection, Message};
use crate::error::{Error, Result};
use crate::region::RemoteRegion;
use incoming::Incoming;
use outgoing::Outgoing;

const HELLO: u8 = 1;
const CREDIT: u8 = 2;
const END: u8 = 3;

/// Receive requests that are kept for what needs no credit: at most four credits for Writes, four for the
/// ring and one of each that was being made, the hello, the end.
const RESERVE: u64 = 12;

/// The longest ring that a peer may have: this end allocates as much.
const LONGEST_RING: u64 = 64 << 20;

/// A stream of bytes over a connection ([`Connection::into_stream`]).
///
/// What is written goes at once while the peer has given credit for it. What gathers while there is none goes
/// with the next call of this end: `flush` waits until all is on its way. `shutdown` does so too, and tells
/// the peer that no more bytes follow; it can go on to send. Dropping the stream does the same in the
/// background, and closes the connection.
pub struct Stream {
    /// Taken out by the drop alone.
    inner: Option<Box<Inner>>,
}

struct Inner {
    connection: Connection,
    incoming: Incoming,
    outgoing: Outgoing,
    failed: Option<io::Error>,
}

/// How far a stream is: bytes, and the Writes that carry them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    bytes: u64,
    writes: u64,
}

impl Connection {
    /// Makes a stream of bytes of the connection, whose other end has to do the same. Messages that were not
    /// taken, and other clones, get in its way.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the peer does something else, or has fewer than 13 receives;
    /// [`Error::Connection`].
    pub async fn into_stream(self) -> Result<Stream> {
        let (receives, message_bytes) = self.buffers();
        if !(1..=LONGEST_RING).contains(&(self.stream_bytes() as u64)) {
            return Err(Error::Protocol("`stream_bytes` of this end is not between 1 and 64 MiB"));
        }
        let ring = self.register(self.stream_bytes(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let mut hello = vec![HELLO];
        hello.extend(ring.remote().to_bytes());
        hello.extend(u32::try_from(receives).unwrap_or(u32::MAX).to_be_bytes());
        if message_bytes < hello.len() || receives as u64 <= RESERVE {
            return Err(Error::Protocol("this end needs more than 12 receives, of 25 bytes or more"));
        }
        let answer = async {
            let answer = self.recv().await?;
            parse_hello(&answer.data)
        };
        let ((), (peer_ring, window)) = tokio::try_join!(self.send(&hello), answer)?;
        let inner = Inner {
            incoming: Incoming::new(ring, receives as u64 - RESERVE),
            outgoing: Outgoing::new(&self, peer_ring, window)?,
            connection: self,
            failed: None,
        };
        Ok(Stream { inner: Some(Box::new(inner)) })
    }
}

/// The ring of the peer, and the Writes that it takes without a credit.
fn parse_hello(data: &[u8]) -> Result<(RemoteRegion, u64)> {
    let Some((&HELLO, rest)) = data.split_first() else {
        return Err(Error::Protocol("its first message is no hello"));
    };
    let Some((ring, receives)) = rest.split_at_checked(RemoteRegion::BYTES) else {
        return Err(Error::Protocol("its hello is too short"));
    };
    let receives = receives.try_into().map_err(|_| Error::Protocol("its hello has another length"))?;
    let window = u64::from(u32::from_be_bytes(receives)).saturating_sub(RESERVE);
    let ring = RemoteRegion::try_from(ring)?;
    if window == 0 || ring.len == 0 || ring.len > LONGEST_RING {
        return Err(Error::Protocol("its ring or its receive queue is too short, or the ring too long"));
    }
    Ok((ring, window))
}

impl Stream {
    /// The connection below. Its messages belong to the stream.
    pub fn connection(&self) -> &Connection {
        &self.inner.as_ref().expect("taken by the drop alone").connection
    }

    fn inner(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("taken by the drop alone")
    }
}

impl Inner {
    /// Takes what has arrived, sends what may go, and gives credit. The task is woken when there is more to
    /// do.
    fn go_on(&mut self, cx: &Context<'_>) -> io::Result<()> {
        if self.failed.is_none() {
            self.failed = self.try_go_on(cx).map_err(io::Error::from).err();
        }
        match &self.failed {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
    }

    fn try_go_on(&mut self, cx: &Context<'_>) -> Result<()> {
        while let Poll::Ready(completion) = self.connection.router().poll_received(cx) {
            let message = self.connection.message(&completion?)?;
            self.take(&message)?;
        }
        self.outgoing.send(&self.connection, cx)?;
        self.give_credit(cx)
    }

    fn take(&mut self, message: &Message) -> Result<()> {
        if let Some(bytes) = message.immediate {
            return self.incoming.written(u64::from_be_bytes(bytes));
        }
        match message.data.split_first() {
            Some((&CREDIT, credit)) => self.outgoing.credit(credit),
            Some((&END, [])) => self.incoming.end(),
            _ => Err(Error::Protocol("of no known kind")),
        }
    }

    fn give_credit(&mut self, cx: &Context<'_>) -> Result<()> {
        let Some(credit) = self.incoming.credit_due() else { return Ok(()) };
        if self.connection.router().poll_place(cx).is_ready() {
            let Progress { bytes, writes } = credit;
            message(&self.connection, &[&[CREDIT], &bytes.to_be_bytes(), &writes.to_be_bytes()])?;
            self.incoming.credited(credit);
        }
        Ok(())
    }

    fn poll_read(&mut self, cx: &Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let state = self.go_on(cx);
        let before = out.filled().len();
        self.incoming.copy_to(out)?;
        if out.filled().len() > before || out.remaining() == 0 {
            // The bytes are there, also if the connection has ended meanwhile. The next call has its error.
            let _ = self.go_on(cx);
            return Poll::Ready(Ok(()));
        }
        if self.incoming.is_ended() {
            return Poll::Ready(Ok(()));
        }
        state?;
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.outgoing.is_ended() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.go_on(cx).map_err(closed_to_writes)?;
        let count = self.outgoing.gather(parts)?;
        if count == 0 && parts.iter().any(|part| !part.is_empty()) {
            return Poll::Pending;
        }
        self.go_on(cx).map_err(closed_to_writes)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.go_on(cx).map_err(closed_to_writes)?;
        if self.outgoing.is_sent() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_shutdown(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.end();
        let state = self.go_on(cx);
        if self.outgoing.is_end_sent() {
            return Poll::Ready(Ok(()));
        }
        match state {
            // The peer has closed: it wants no end of ours.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.outgoing.is_sent() => {
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(closed_to_writes(error))),
            Ok(()) => Poll::Pending,
        }
    }
}

/// Sends a message that nobody waits for. Its place in the send queue is taken.
fn message(connection: &Connection, parts: &[&[u8]]) -> Result<()> {
    let wr_id = connection.post_copy(SendOp::Send, parts)?;
    connection.router().forget(wr_id);
    Ok(())
}

/// The error of a write: that the peer has closed is an end of file to reads alone.
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
        let (Some(mut inner), Ok(runtime)) = (self.inner.take(), tokio::runtime::Handle::try_current())
        else {
            // Without a runtime, the connection is reset.
            return;
        };
        runtime.spawn(async move {
            // Either fails if the connection has ended.
            let _ = std::future::poll_fn(|cx| inner.poll_shutdown(cx)).await;
            inner.connection.close().await
        });
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
