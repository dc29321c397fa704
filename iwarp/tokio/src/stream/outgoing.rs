//! The bytes that the program has written, until they are sent to the ring of the peer.

use std::io::IoSlice;
use std::task::Context;

use iwarp::memory::Access;
use iwarp::verbs::SendOp;

use super::protocol::{self, END, Progress};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::region::{Region, RemoteRegion};
use crate::router::Direction;

/// Maximum number of bytes of one Write, so that the peer can begin to read early.
const LONG: u64 = 128 << 10;

pub(super) struct Outgoing {
    /// The written bytes, each at the same position as in the peer's ring.
    ring: Region,
    peer_ring: RemoteRegion,
    /// Maximum number of Writes in flight without a credit.
    window: u64,
    /// Bytes that the program has written.
    written: u64,
    sent: Progress,
    credited: Progress,
    end: End,
}

/// The state of the outgoing direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// The end message is still to be sent.
    Asked,
    Sent,
}

impl Outgoing {
    pub(super) fn new(connection: &Connection, peer_ring: RemoteRegion, window: u64) -> Result<Self> {
        let bytes = usize::try_from(peer_ring.len).map_err(|_| Error::Protocol("its ring is too long"))?;
        let nothing = Progress::default();
        Ok(Self {
            ring: connection.register(bytes, Access::empty())?,
            peer_ring,
            window,
            written: 0,
            sent: nothing,
            credited: nothing,
            end: End::Open,
        })
    }

    /// Handles a credit message of the peer.
    pub(super) fn credit(&mut self, message: &[u8]) -> Result<()> {
        let (numbers, rest) = message.as_chunks();
        let [bytes, writes] = *numbers else { return Err(Error::Protocol("its credit is too short")) };
        let credited = Progress { bytes: u64::from_be_bytes(bytes), writes: u64::from_be_bytes(writes) };
        if !rest.is_empty() || credited.bytes > self.sent.bytes || credited.writes > self.sent.writes {
            return Err(Error::Protocol("it gives credit for more than was sent"));
        }
        if credited.bytes < self.credited.bytes || credited.writes < self.credited.writes {
            return Err(Error::Protocol("it takes back credit that it gave"));
        }
        self.credited = credited;
        Ok(())
    }

    /// Returns the bytes and the Writes for which the peer has given credit.
    pub(super) fn credited(&self) -> Progress {
        self.credited
    }

    /// Accepts as many bytes of the program as fit the peer's ring, and returns their number.
    pub(super) fn gather(&mut self, parts: &[IoSlice<'_>]) -> Result<usize> {
        let before = self.written;
        for part in parts {
            let mut rest = &part[..];
            while let room @ 1.. = self.room().min(rest.len()) {
                let at = (self.written % self.peer_ring.len) as usize;
                self.ring.write_at(at, &rest[..room])?;
                self.written += room as u64;
                rest = &rest[room..];
            }
        }
        Ok((self.written - before) as usize)
    }

    /// Returns the number of contiguous free bytes of the ring, at the position of the next byte.
    fn room(&self) -> usize {
        let size = self.peer_ring.len;
        let free = size - (self.written - self.credited.bytes);
        free.min(size - self.written % size) as usize
    }

    /// Sends the bytes for which the peer has given credit, and then the end message.
    pub(super) fn send(
        &mut self,
        connection: &Connection,
        direction: Direction,
        cx: &Context<'_>,
    ) -> Result<()> {
        let router = connection.router();
        while self.sent.bytes < self.written
            && self.sent.writes - self.credited.writes < self.window
            && router.poll_place(direction, cx).is_ready()
        {
            self.write(connection)?;
        }
        if self.end == End::Asked && self.is_sent() && router.poll_place(direction, cx).is_ready() {
            protocol::send(connection, &[&[END]])?;
            self.end = End::Sent;
        }
        Ok(())
    }

    /// Writes the next contiguous bytes to the peer's ring. The caller has reserved a place in the send
    /// queue.
    fn write(&mut self, connection: &Connection) -> Result<()> {
        let size = self.peer_ring.len;
        let at = self.sent.bytes % size;
        let run = (self.written - self.sent.bytes).min(size - at).min(LONG);
        let remote = self.peer_ring.slice(at..at + run)?.address();
        let op = SendOp::WriteImmediate { remote, data: run.to_be_bytes() };
        let local = self.ring.slice(at as usize..(at + run) as usize)?;
        let wr_id = connection.post_slice(op, local)?;
        connection.router().forget(wr_id);
        self.sent.bytes += run;
        self.sent.writes += 1;
        Ok(())
    }

    /// Whether all written bytes were sent.
    pub(super) fn is_sent(&self) -> bool {
        self.sent.bytes == self.written
    }

    /// Called when the program ends its direction.
    pub(super) fn end(&mut self) {
        if self.end == End::Open {
            self.end = End::Asked;
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.end != End::Open
    }

    pub(super) fn is_end_sent(&self) -> bool {
        self.end == End::Sent
    }
}
