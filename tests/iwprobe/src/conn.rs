//! A TCP connection with the log of its messages. Every wait has a time limit.

use std::net::TcpStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::log::{Direction, Log};
use crate::net::{Net, Stream};

pub use crate::net::{End, ReadResult};

/// A TCP connection with the endpoint.
#[derive(Debug)]
pub struct Conn {
    stream: Box<dyn Stream>,
    net: Rc<dyn Net>,
    log: Log,
    end: Option<End>,
}

impl Conn {
    /// Wraps a connection that `net` has opened.
    pub fn new(stream: Box<dyn Stream>, net: Rc<dyn Net>, log: Log) -> Self {
        Self { stream, net, log, end: None }
    }

    /// Returns the socket, for operations on TCP itself; `None` for a connection in memory.
    pub fn socket(&self) -> Option<&TcpStream> {
        self.stream.socket()
    }

    /// Returns the log of this connection.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the instant that is `time` from now.
    pub fn after(&self, time: Duration) -> Instant {
        self.net.now() + time
    }

    /// Waits, so that TCP usually puts the bytes that are sent before and after the pause into different
    /// segments.
    pub fn pause(&self, time: Duration) {
        self.net.sleep(time);
    }

    /// Sends bytes. If the endpoint has ended the connection, the probe can still receive the bytes that the
    /// endpoint sent before.
    pub fn send(&mut self, bytes: &[u8], text: impl Into<String>) {
        let text = text.into();
        match self.stream.send(bytes) {
            Ok(()) => self.log.note(Direction::Sent, bytes, text),
            Err(error) => self.log.note(Direction::Sent, &[], format!("{text}: could not be sent: {error}")),
        }
    }

    /// Waits for the next bytes or the end of the connection. Returns `Nothing` if neither arrives before
    /// `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> ReadResult {
        if let Some(end) = self.end {
            return ReadResult::End(end);
        }
        let came = self.stream.receive(deadline);
        if let ReadResult::End(end) = came {
            self.end = Some(end);
            self.log.note(Direction::Received, &[], end.to_string());
        }
        came
    }

    /// Waits at most `time` for the next bytes or the end of the connection.
    pub fn receive_within(&mut self, time: Duration) -> ReadResult {
        self.receive(self.after(time))
    }

    /// Sends FIN.
    pub fn finish(&mut self) {
        // A connection that has ended needs no FIN.
        if self.stream.finish() {
            self.log.note(Direction::Sent, &[], "FIN");
        }
    }
}
