//! The bytes of a stream in both directions, and the credits for them.

use std::io;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::protocol::{self, CREDIT, END, Progress};
use crate::connection::{Connection, Message};
use crate::error::{Error, Result};
use crate::router::Direction;

/// The state of a stream's bytes in both directions. The methods borrow the stream's connection.
pub(super) struct Flow {
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    /// The first error, with which the stream has ended.
    pub(super) failed: Option<io::Error>,
}

impl Flow {
    /// Handles all messages that have arrived. Registers the task of this direction to be woken by the next
    /// message. The first error ends the stream.
    pub(super) fn receive(
        &mut self,
        connection: &Connection,
        direction: Direction,
        cx: &Context<'_>,
    ) -> io::Result<()> {
        if self.failed.is_none() {
            self.failed = self.try_receive(connection, direction, cx).map_err(io::Error::from).err();
        }
        match &self.failed {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
    }

    fn try_receive(&mut self, connection: &Connection, direction: Direction, cx: &Context<'_>) -> Result<()> {
        while let Poll::Ready(received) = connection.router().poll_received(direction, cx) {
            let message = connection.message(&received?)?;
            self.take(&message)?;
        }
        Ok(())
    }

    /// Sends the bytes for which there is credit, and gives credit to the peer. If the send queue is full,
    /// the task is woken when the queue has room. An error concerns only this call:
    /// [`receive`](Self::receive) reports the end of the connection, after all messages that have arrived.
    pub(super) fn send(
        &mut self,
        connection: &Connection,
        direction: Direction,
        cx: &Context<'_>,
    ) -> io::Result<()> {
        self.outgoing.send(connection, direction, cx)?;
        Ok(self.give_credit(connection, direction, cx)?)
    }

    /// Copies arrived bytes to the reader. Returns `None` if no bytes have arrived and more may follow; then
    /// the task is woken when bytes arrive.
    pub(super) fn try_read(
        &mut self,
        connection: &Connection,
        cx: &Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Option<io::Result<()>> {
        let received = self.receive(connection, Direction::Read, cx);
        let before = out.filled().len();
        if let Err(error) = self.incoming.copy_to(out) {
            return Some(Err(error.into()));
        }
        if received.is_ok() {
            // The send fails if the connection is about to end.
            let _ = self.send(connection, Direction::Read, cx);
        }
        if out.filled().len() > before || out.remaining() == 0 || self.incoming.is_ended() {
            // The bytes are returned even if the connection has ended in the meantime. The next call returns
            // the error.
            return Some(Ok(()));
        }
        received.err().map(Err)
    }

    fn take(&mut self, message: &Message) -> Result<()> {
        if let Some(bytes) = message.immediate {
            return self.incoming.written(u64::from_be_bytes(bytes));
        }
        match message.data.split_first() {
            Some((&CREDIT, credit)) => self.outgoing.credit(credit),
            Some((&END, [])) => {
                self.incoming.end();
                Ok(())
            }
            _ => Err(Error::Protocol("of no known kind")),
        }
    }

    fn give_credit(&mut self, connection: &Connection, direction: Direction, cx: &Context<'_>) -> Result<()> {
        let Some(credit) = self.incoming.credit_due() else { return Ok(()) };
        if connection.router().poll_place(direction, cx).is_ready() {
            let Progress { bytes, writes } = credit;
            protocol::send(connection, &[&[CREDIT], &bytes.to_be_bytes(), &writes.to_be_bytes()])?;
            self.incoming.credited(credit);
        }
        Ok(())
    }
}
