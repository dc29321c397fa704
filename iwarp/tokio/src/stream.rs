//! A stream of bytes over a connection: `AsyncRead` and `AsyncWrite`.
//!
//! Each end has a ring of registered memory into which the other one writes. A long run of bytes goes there
//! by an RDMA Write, whose Immediate Data is its length. A short one goes in a message. The reader gives
//! credits back, for bytes of the ring and for messages, so that neither the ring nor the receive queue
//! overflows.
//!
//! | message | bytes |
//! |---|---|
//! | hello | 1, the ring ([`RemoteRegion::to_bytes`]), the receive requests (u32) |
//! | data | 2, the bytes |
//! | credit | 4, all bytes of the ring that were read (u64), all messages that were read (u64) |
//! | end | 5 |
//! | Immediate Data | the bytes written to the ring (u64) |
//!
//! Numbers are in network byte order.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use iwarp::memory::Access;
use iwarp::verbs::{ConnectionError, SendOp};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::{Connection, Message};
use crate::error::{Error, Result};
use crate::region::{Region, RemoteRegion};

const HELLO: u8 = 1;
const DATA: u8 = 2;
const CREDIT: u8 = 4;
const END: u8 = 5;

/// Receive requests that are kept for what needs no credit: at most four credits for messages, four for the
/// ring and one of each that was being made, the hello, the end.
const RESERVE: u64 = 12;

/// The longest run of bytes that goes in a message: beyond it, a second copy costs more than the Write.
const SHORT: usize = 1024;

/// The most bytes of one Write, so that the peer can begin to read.
const LONG: usize = 128 << 10;

/// Bytes of the ring by default: what a connection of 10 Gb/s has under way in 200 us.
const RING: usize = 256 << 10;

/// Bytes that have arrived.
enum Segment {
    /// In the ring, from this position on.
    Ring(Range<u64>),
    /// In a message, of which so many are read.
    Message { data: Vec<u8>, read: usize },
}

/// A stream of bytes over a connection ([`Connection::into_stream`]).
///
/// `shutdown` tells the peer that no more bytes follow; it can go on to send. Dropping the stream does the
/// same, sends what was written, and closes the connection in the background. `flush` does nothing: written
/// bytes are on their way.
pub struct Stream {
    connection: Connection,
    /// The peer writes here.
    ring: Region,
    /// Where the bytes of our Writes are, each at the position that it has in the ring of the peer.
    out: Region,
    peer_ring: RemoteRegion,
    /// Messages that may be under way without a credit.
    window: u64,
    sent: Progress,
    credited: Progress,
    end_sent: bool,
    segments: VecDeque<Segment>,
    /// Bytes that have arrived in the ring.
    arrived: u64,
    read: Progress,
    reported: Progress,
    end_received: bool,
    failed: Option<io::ErrorKind>,
}

/// Bytes of a ring, and messages, from the start of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    ring: u64,
    messages: u64,
}

impl Connection {
    /// Makes a stream of bytes of the connection, whose other end has to do the same. Messages that were not
    /// taken, and other clones, get in its way.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the peer does something else, or has fewer than 16 receives;
    /// [`Error::Connection`].
    pub async fn into_stream(self) -> Result<Stream> {
        let (receives, message_bytes) = self.buffers();
        let ring = self.register(RING, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
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
        let bytes = usize::try_from(peer_ring.len).map_err(|_| Error::Protocol("its ring is too long"))?;
        Ok(Stream {
            out: self.register(bytes, Access::empty())?,
            connection: self,
            ring,
            peer_ring,
            window,
            sent: Progress::default(),
            credited: Progress::default(),
            end_sent: false,
            segments: VecDeque::new(),
            arrived: 0,
            read: Progress::default(),
            reported: Progress::default(),
            end_received: false,
            failed: None,
        })
    }
}

/// The ring of the peer, and the messages that it takes without a credit.
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
    // A ring much longer than ours would make us allocate as much.
    if window == 0 || ring.len == 0 || ring.len > 64 << 20 {
        return Err(Error::Protocol("its ring or its receive queue is too short, or the ring too long"));
    }
    Ok((ring, window))
}

impl Stream {
    /// The connection below. Its messages belong to the stream.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes all messages that have arrived. The task is woken by the next one.
    fn poll_messages(&mut self, cx: &Context<'_>) {
        while self.failed.is_none() {
            let taken = match self.connection.router().poll_received(cx) {
                Poll::Pending => return,
                Poll::Ready(taken) => taken.and_then(|completion| self.connection.message(&completion)),
            };
            if let Err(error) = taken.and_then(|message| self.take(message)) {
                self.failed = Some(io::Error::from(error).kind());
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<()> {
        let Message { mut data, immediate, .. } = message;
        if let Some(bytes) = immediate {
            let end = self.arrived.checked_add(u64::from_be_bytes(bytes));
            let end = end.filter(|end| end - self.read.ring <= self.ring.len() as u64);
            let end = end.ok_or(Error::Protocol("it has written more than it had credits for"))?;
            self.segments.push_back(Segment::Ring(self.arrived..end));
            self.arrived = end;
            return Ok(());
        }
        match data.first() {
            Some(&DATA) => self.segments.push_back(Segment::Message { data, read: 1 }),
            Some(&END) => self.end_received = true,
            Some(&CREDIT) if data.len() == 17 => {
                let messages = data.split_off(9);
                let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_be_bytes);
                let credited = Progress { ring: number(&data[1..]), messages: number(&messages) };
                if credited.ring > self.sent.ring || credited.messages > self.sent.messages {
                    return Err(Error::Protocol("it gives credit for more than was sent"));
                }
                self.credited = credited;
            }
            _ => return Err(Error::Protocol("of no known kind")),
        }
        Ok(())
    }

    /// Copies bytes that have arrived to `out`.
    fn copy_to(&mut self, out: &mut ReadBuf<'_>) -> Result<()> {
        while out.remaining() > 0
            && let Some(segment) = self.segments.front_mut()
        {
            let is_read = match segment {
                Segment::Message { data, read } => {
                    let count = out.remaining().min(data.len() - *read);
                    out.put_slice(&data[*read..*read + count]);
                    *read += count;
                    *read == data.len()
                }
                Segment::Ring(range) => {
                    let size = self.ring.len();
                    let at = (range.start % size as u64) as usize;
                    let left = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                    let count = out.remaining().min(left).min(size - at);
                    self.ring.read_at(at, out.initialize_unfilled_to(count))?;
                    out.advance(count);
                    range.start += count as u64;
                    self.read.ring = range.start;
                    range.is_empty()
                }
            };
            if is_read {
                self.segments.pop_front();
                self.read.messages += 1;
            }
        }
        Ok(())
    }

    /// Gives the peer credits, if enough have come together.
    fn poll_credit(&mut self, cx: &Context<'_>) -> Result<()> {
        let messages = self.read.messages - self.reported.messages;
        let ring = self.read.ring - self.reported.ring;
        let window = self.connection.buffers().0 as u64 - RESERVE;
        let is_due = messages >= window.div_ceil(4) || ring >= self.ring.len() as u64 / 4;
        if is_due && self.connection.router().poll_place(cx).is_ready() {
            let Progress { ring, messages } = self.read;
            self.message(&[&[CREDIT], &ring.to_be_bytes(), &messages.to_be_bytes()])?;
            self.reported = self.read;
        }
        Ok(())
    }

    /// Sends a message. Its place in the send queue is taken.
    fn message(&self, parts: &[&[u8]]) -> Result<()> {
        let wr_id = self.connection.post_copy(SendOp::Send, parts)?;
        self.connection.router().forget(wr_id);
        Ok(())
    }

    /// Sends bytes, as many as fit; returns their number, and 0 if there is no credit.
    fn poll_send(&mut self, cx: &Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        if self.sent.messages - self.credited.messages >= self.window {
            return Poll::Pending;
        }
        if bytes.len() <= SHORT.min(self.connection.buffers().1 - 1) {
            ready!(self.connection.router().poll_place(cx));
            self.sent.messages += 1;
            return Poll::Ready(self.message(&[&[DATA], bytes]).map(|()| bytes.len()));
        }
        let size = self.peer_ring.len;
        let room = size - (self.sent.ring - self.credited.ring);
        let at = self.sent.ring % size;
        let count = room.min(size - at).min(LONG.min(bytes.len()) as u64);
        if count == 0 {
            return Poll::Pending;
        }
        ready!(self.connection.router().poll_place(cx));
        Poll::Ready(self.write_to_ring(at, &bytes[..count as usize]))
    }

    fn write_to_ring(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
        let (start, count) = (at as usize, bytes.len() as u64);
        self.out.write_at(start, bytes)?;
        let remote = self.peer_ring.slice(at..at + count)?.address();
        let op = SendOp::WriteImmediate { remote, data: count.to_be_bytes() };
        let wr_id = self.connection.post_slice(op, self.out.slice(start..start + bytes.len())?)?;
        self.connection.router().forget(wr_id);
        self.sent.ring += count;
        self.sent.messages += 1;
        Ok(bytes.len())
    }

    fn failure(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.poll_messages(cx);
        let before = out.filled().len();
        this.copy_to(out)?;
        if out.filled().len() > before || out.remaining() == 0 {
            // The bytes are there, also if the connection has ended meanwhile.
            let _ = this.poll_credit(cx);
            return Poll::Ready(Ok(()));
        }
        if this.end_received {
            return Poll::Ready(Ok(()));
        }
        this.failure()?;
        this.poll_credit(cx)?;
        Poll::Pending
    }
}

/// The error of a write: that the peer has closed is an end of file to reads alone.
fn closed_to_writes(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof { io::ErrorKind::BrokenPipe.into() } else { error }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.end_sent {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        this.poll_messages(cx);
        this.failure().map_err(closed_to_writes)?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        this.poll_send(cx, bytes).map_err(|error| closed_to_writes(error.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.end_sent {
            ready!(this.connection.router().poll_place(cx));
            this.end_sent = true;
            match this.message(&[&[END]]) {
                // The peer has closed: it wants no end of ours.
                Err(Error::Closed | Error::Connection(ConnectionError::PeerClosed)) => {}
                sent => sent?,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Without a runtime, the connection is reset.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let connection = self.connection.clone();
        if !self.end_sent && connection.router().take_place() {
            // Fails if the connection has ended.
            let _ = self.message(&[&[END]]);
        }
        runtime.spawn(async move { connection.close().await });
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("sent", &self.sent).field("read", &self.read).finish_non_exhaustive()
    }
}
