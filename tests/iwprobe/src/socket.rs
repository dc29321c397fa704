//! The network of the operating system.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::net::{End, Net, ReadResult, Stream};

/// Interval between two attempts to get a connection.
const TICK: Duration = Duration::from_millis(2);
/// Minimum time-out of a socket that the system accepts.
const SHORTEST: Duration = Duration::from_millis(1);

/// The probe's role in the TCP connection.
#[derive(Debug)]
pub enum Mode {
    /// The probe connects to the first reachable of these addresses, and is the MPA initiator.
    Connect(Vec<SocketAddr>),
    /// The endpoint connects, and the probe is the MPA responder.
    Listen(TcpListener),
}

impl Net for Mode {
    fn is_initiator(&self) -> bool {
        matches!(self, Self::Connect(_))
    }

    fn open(&self, deadline: Instant, timeout: Duration) -> Result<Box<dyn Stream>, String> {
        loop {
            let opened = match self {
                Self::Connect(addresses) => connected(addresses, deadline),
                Self::Listen(listener) => match listener.accept() {
                    Ok((stream, _)) => Ok(stream),
                    Err(_) => Err("nobody connected".into()),
                },
            };
            match opened {
                Ok(stream) => return Ok(Box::new(Socket::new(stream, timeout))),
                Err(reason) if Instant::now() >= deadline => return Err(reason),
                Err(_) => std::thread::sleep(TICK),
            }
        }
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Tries each address once, until a connection is established.
fn connected(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, String> {
    let mut reason = "cannot connect: no address".to_owned();
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - index) as u32;
        match TcpStream::connect_timeout(address, left.max(TICK)) {
            Ok(stream) => return Ok(stream),
            Err(error) => reason = format!("cannot connect: {address}: {error}"),
        }
    }
    Err(reason)
}

#[derive(Debug)]
struct Socket(TcpStream);

impl Socket {
    fn new(stream: TcpStream, timeout: Duration) -> Self {
        // Errors are ignored. Without these settings, TCP may join pieces that are sent separately, and a
        // write may block without limit.
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(timeout));
        Self(stream)
    }
}

impl Stream for Socket {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn receive(&mut self, deadline: Instant) -> ReadResult {
        let mut buffer = [0; 65_536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST);
            let read = match self.0.set_read_timeout(Some(left)) {
                Ok(()) => self.0.read(&mut buffer),
                Err(error) => Err(error),
            };
            match read {
                Ok(0) => return ReadResult::End(End::Fin),
                Ok(length) => return ReadResult::Bytes(buffer[..length].to_vec()),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if Instant::now() >= deadline => {
                        return ReadResult::Nothing;
                    }
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return ReadResult::End(End::Reset),
                },
            }
        }
    }

    fn finish(&mut self) -> bool {
        self.0.shutdown(Shutdown::Write).is_ok()
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(&self.0)
    }
}
