//! A TCP connection on which every wait is bounded and everything is noted.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::log::{Log, Way};

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The endpoint sent FIN.
    Fin,
    /// The endpoint sent RST, or TCP gave up.
    Reset,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fin => "FIN",
            Self::Reset => "RST",
        })
    }
}

/// What waiting for bytes brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// Some bytes.
    Bytes(Vec<u8>),
    /// The end.
    End(End),
    /// Nothing until the deadline.
    Nothing,
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    stream: TcpStream,
    log: Log,
    end: Option<End>,
}

/// Shortest time-out that the system takes for one.
const SHORTEST: Duration = Duration::from_millis(1);

impl Conn {
    /// Takes a connected stream.
    pub fn new(stream: TcpStream, log: Log, timeout: Duration) -> Self {
        // A stream without these still works, only slower: segments are what the cases are about, not
        // packets.
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(timeout));
        Self { stream, log, end: None }
    }

    /// The socket, for what is done to TCP beside what passes.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// What passed is noted here.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Sends bytes. When the endpoint has ended the connection, what it said last is still there to be
    /// received.
    pub fn send(&mut self, bytes: &[u8], text: impl Into<String>) {
        let text = text.into();
        match self.stream.write_all(bytes) {
            Ok(()) => self.log.note(Way::Sent, bytes, text),
            Err(error) => self.log.note(Way::Sent, &[], format!("{text}: could not be sent: {error}")),
        }
    }

    /// Whatever comes next, until `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> Came {
        if let Some(end) = self.end {
            return Came::End(end);
        }
        let mut buffer = [0; 65_536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST);
            let read = match self.stream.set_read_timeout(Some(left)) {
                Ok(()) => self.stream.read(&mut buffer),
                Err(error) => Err(error),
            };
            match read {
                Ok(0) => return self.ended(End::Fin),
                Ok(length) => return Came::Bytes(buffer[..length].to_vec()),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if Instant::now() >= deadline => {
                        return Came::Nothing;
                    }
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return self.ended(End::Reset),
                },
            }
        }
    }

    fn ended(&mut self, end: End) -> Came {
        self.end = Some(end);
        self.log.note(Way::Received, &[], end.to_string());
        Came::End(end)
    }

    /// Sends FIN.
    pub fn finish(&mut self) {
        // Already gone is finished too.
        if self.stream.shutdown(Shutdown::Write).is_ok() {
            self.log.note(Way::Sent, &[], "FIN");
        }
    }
}
