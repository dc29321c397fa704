//! The network under the probe, and its clock: sockets of the operating system
//! ([`socket`](crate::socket)), or a network in memory with a time of its own.

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
    /// The end.
    End(End),
    /// Nothing until the deadline.
    Nothing,
}

/// Where connections with the endpoint come from.
pub trait Net: Debug {
    /// Whether the probe connects, and so is the MPA initiator.
    fn is_initiator(&self) -> bool;

    /// The next TCP connection with the endpoint. Its writes give up after `timeout`.
    ///
    /// # Errors
    /// In words, when there is none by `deadline`.
    fn open(&self, deadline: Instant, timeout: Duration) -> Result<Box<dyn Stream>, String>;

    /// The time.
    fn now(&self) -> Instant;

    /// Lets time pass.
    fn sleep(&self, time: Duration);
}

/// A TCP connection. Dropping it closes it, by RST where bytes are unread.
pub trait Stream: Debug {
    /// Sends bytes, at once and in a segment of their own where TCP can.
    ///
    /// # Errors
    /// When the connection takes no more.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// What comes next, until `deadline`.
    fn receive(&mut self, deadline: Instant) -> ReadResult;

    /// Sends FIN. Returns whether the connection was still there.
    fn finish(&mut self) -> bool;

    /// The socket, where it is one of the operating system.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}
