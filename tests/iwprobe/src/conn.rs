//! A TCP connection on which every wait is bounded and every message is logged.

use std::net::TcpStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::log::{Direction, Log};
use crate::net::{Net, Stream};

pub use crate::net::{End, ReadResult};

/// A connection.
#[derive(Debug)]
pub struct Conn {
    stream: Box<dyn Stream>,
    net: Rc<dyn Net>,
    log: Log,
    end: Option<End>,
}

impl Conn {
    /// Takes a connection of `net`.
    pub fn new(stream: Box<dyn Stream>, net: Rc<dyn Net>, log: Log) -> Self {
        Self { stream, net, log, end: None }
    }

    /// The socket, for operations on TCP itself; `None` in memory.
    pub fn socket(&self) -> Option<&TcpStream> {
        self.stream.socket()
    }

    /// The log of this connection.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The instant `time` from now.
    pub fn after(&self, time: Duration) -> Instant {
        self.net.now() + time
    }

    /// Waits, so that TCP does not put bytes sent before and after into one segment.
    pub fn pause(&self, time: Duration) {
        self.net.sleep(time);
    }

    /// Sends bytes. If the endpoint has ended the connection, its last bytes can still be received.
    pub fn send(&mut self, bytes: &[u8], text: impl Into<String>) {
        let text = text.into();
        match self.stream.send(bytes) {
            Ok(()) => self.log.note(Direction::Sent, bytes, text),
            Err(error) => self.log.note(Direction::Sent, &[], format!("{text}: could not be sent: {error}")),
        }
    }

    /// Waits until `deadline` for the next bytes or the end of the connection; then returns `Nothing`.
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

    /// The next bytes or the end of the connection, within `time`.
    pub fn receive_within(&mut self, time: Duration) -> ReadResult {
        self.receive(self.after(time))
    }

    /// Sends FIN.
    pub fn finish(&mut self) {
        // A connection that is gone needs no FIN.
        if self.stream.finish() {
            self.log.note(Direction::Sent, &[], "FIN");
        }
    }
}
