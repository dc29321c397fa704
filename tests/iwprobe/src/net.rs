//! The network under the probe, and its clock: sockets of the operating system
//! ([`socket`](crate::socket)), or a network in memory with its own clock.

use std::fmt::Debug;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

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

/// The result of a wait for bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// Some bytes.
    Bytes(Vec<u8>),
    /// The end of the connection.
    End(End),
    /// No bytes until the deadline.
    Nothing,
}

/// The source of connections with the endpoint.
pub trait Net: Debug {
    /// Whether the probe connects, and so is the MPA initiator.
    fn is_initiator(&self) -> bool;

    /// The next TCP connection with the endpoint. Its writes fail after `timeout`.
    ///
    /// # Errors
    /// A description, if there is no connection by `deadline`.
    fn open(&self, deadline: Instant, timeout: Duration) -> Result<Box<dyn Stream>, String>;

    /// The time.
    fn now(&self) -> Instant;

    /// Lets time pass.
    fn sleep(&self, time: Duration);
}

/// A TCP connection. Dropping it closes it, by RST if bytes are unread.
pub trait Stream: Debug {
    /// Sends bytes, at once and in a separate segment if TCP can.
    ///
    /// # Errors
    /// When the connection accepts no more bytes.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// The next bytes or the end of the connection, until `deadline`.
    fn receive(&mut self, deadline: Instant) -> ReadResult;

    /// Sends FIN. Returns whether the connection was still there.
    fn finish(&mut self) -> bool;

    /// The socket of the operating system, if there is one.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}
