//! A plain TCP stream with known contents, sent or received by our stack or by Linux's. The program
//! `tcp-stream` runs one side of such a stream.

mod end_options;
pub mod kernel;
pub mod lite;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tcp_lite::StackCounters;

use crate::ensure;
use crate::lab::Result;
use crate::pattern::Pattern;

pub use end_options::EndOptions;

/// The side that opens the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// The peer opens the connection, to this port of ours.
    Passive(u16),
    /// We open the connection, to this address.
    Active(SocketAddr),
}

/// The side that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// We send, and the peer receives.
    Send,
    /// The peer sends, and we receive.
    Receive,
}

/// The parameters of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The side that opens the connection.
    pub opener: Opener,
    /// The side that sends.
    pub direction: Direction,
    /// Length in bytes of the stream.
    pub bytes: u64,
    /// Seed of the stream's pattern.
    pub seed: u64,
    /// Maximum duration from the opening to the end of the connection. With the kernel's TCP, the limit
    /// applies to each read and write, and accepting a connection has no limit.
    pub limit: Duration,
    /// Options of this side: pauses, and TCP features such as keepalives, ECN and the receive window.
    pub options: EndOptions,
}

/// The report on a successful stream: the stream was complete, every byte was correct, and both sides closed.
/// The text is the same on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Number of bytes sent or received.
    pub bytes: u64,
    /// CRC32C of the bytes sent or received.
    pub crc: u32,
    /// Time from the start of listening or connecting to the end of the connection, as this side sees it.
    pub elapsed: Duration,
    /// The counters of our stack; `None` for the kernel's TCP.
    pub counters: Option<StackCounters>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} crc32c {:08x}", self.bytes, self.crc)
    }
}

/// The contents of a sent stream: the next bytes, and the checksum so far.
pub(crate) struct Source {
    pattern: Pattern,
    bytes: u64,
    chunk: Vec<u8>,
    taken: usize,
    offset: u64,
    crc: u32,
}

impl Source {
    /// Number of bytes that are prepared at a time.
    const CHUNK: u64 = 1 << 16;

    pub(crate) fn new(task: &Task) -> Self {
        Self {
            pattern: Pattern::new(task.seed),
            bytes: task.bytes,
            chunk: Vec::new(),
            taken: 0,
            offset: 0,
            crc: 0,
        }
    }

    /// Returns the next bytes to send; none if all bytes have been sent.
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.taken == self.chunk.len() {
            let bytes = (self.bytes - self.offset).min(Self::CHUNK);
            self.chunk.resize(bytes as usize, 0);
            self.pattern.fill(self.offset, &mut self.chunk);
            self.crc = crc32c::crc32c_append(self.crc, &self.chunk);
            self.offset += bytes;
            self.taken = 0;
        }
        &self.chunk[self.taken..]
    }

    /// Marks the first `bytes` of [`Source::next`] as sent.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Whether half of the stream has been sent or is in the current chunk.
    pub(crate) fn is_half(&self) -> bool {
        self.offset >= self.bytes / 2
    }

    pub(crate) fn report(&self, elapsed: Duration) -> Report {
        Report { bytes: self.offset, crc: self.crc, elapsed, counters: None }
    }
}

/// The contents of a received stream. Its bytes may be added in any order, but each byte only once.
pub(crate) struct Sink {
    pattern: Pattern,
    bytes: Vec<u8>,
    received: u64,
}

impl Sink {
    pub(crate) fn new(task: &Task) -> Self {
        Self { pattern: Pattern::new(task.seed), bytes: vec![0; task.bytes as usize], received: 0 }
    }

    /// Checks a part of the stream, and adds it.
    pub(crate) fn put(&mut self, offset: u64, piece: &[u8]) -> Result<()> {
        let end = offset + piece.len() as u64;
        ensure!(
            end <= self.bytes.len() as u64,
            "bytes up to {end} exceed the stream's length of {}",
            self.bytes.len()
        );
        if let Some(at) = self.pattern.first_wrong(offset, piece) {
            return Err(crate::lab_error!("byte {at} of the stream is wrong"));
        }
        self.bytes[offset as usize..end as usize].copy_from_slice(piece);
        self.received += piece.len() as u64;
        Ok(())
    }

    /// Whether half of the stream has been received.
    pub(crate) fn is_half(&self) -> bool {
        self.received >= self.bytes.len() as u64 / 2
    }

    /// Returns the report on the stream, which has ended and has to be complete.
    pub(crate) fn report(&self, elapsed: Duration) -> Result<Report> {
        let expected = self.bytes.len() as u64;
        ensure!(self.received == expected, "the stream ended after {} of {expected} bytes", self.received);
        let crc = crc32c::crc32c(&self.bytes);
        Ok(Report { bytes: self.received, crc, elapsed, counters: None })
    }
}
