//! The network that the probe uses, and its clock: sockets of the operating system
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
    /// These bytes arrived.
    Bytes(Vec<u8>),
    /// The connection ended.
    End(End),
    /// No bytes arrived before the deadline.
    Nothing,
}

/// The source of connections with the endpoint.
pub trait Net: Debug {
    /// Whether the probe opens the connections, and therefore is the MPA initiator.
    fn is_initiator(&self) -> bool;

    /// Opens or accepts the next TCP connection with the endpoint. A write that the connection does not
    /// accept within `timeout` fails.
    ///
    /// # Errors
    /// A description if there is no connection by `deadline`.
    fn open(&self, deadline: Instant, timeout: Duration) -> Result<Box<dyn Stream>, String>;

    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Waits for `time`.
    fn sleep(&self, time: Duration);
}

/// A TCP connection. When the value is dropped, the connection is closed, by RST if bytes are unread.
pub trait Stream: Debug {
    /// Sends bytes at once, and in a separate segment if TCP can do so.
    ///
    /// # Errors
    /// If the connection accepts no more bytes.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Waits until `deadline` for the next bytes or the end of the connection.
    fn receive(&mut self, deadline: Instant) -> ReadResult;

    /// Sends FIN. Returns `false` if the connection had ended before.
    fn finish(&mut self) -> bool;

    /// Returns the socket of the operating system, if there is one.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}
