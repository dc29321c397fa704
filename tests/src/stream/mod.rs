//! A plain TCP stream with known contents, sent or received by our stack or by Linux's: the ends of the tests
//! that run one TCP against another.

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
    /// The peer, to our port.
    Passive(u16),
    /// We, to this address.
    Active(SocketAddr),
}

/// The side that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// We do; the peer receives.
    Send,
    /// The peer sends.
    Receive,
}

/// The parameters of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The side that opens.
    pub opener: Opener,
    /// The side that sends.
    pub direction: Direction,
    /// Length of the stream, bytes.
    pub bytes: u64,
    /// Seed of its pattern.
    pub seed: u64,
    /// Time limit of the whole.
    pub limit: Duration,
    /// Further behaviour of this end.
    pub options: EndOptions,
}

/// A successful stream: complete, every byte correct, closed by both sides. Its text is the same on both
/// sides.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Bytes sent or received.
    pub bytes: u64,
    /// Their CRC32C.
    pub crc: u32,
    /// From opening the connection to the last acknowledgement of its FIN.
    pub elapsed: Duration,
    /// The counters of our stack; `None` for the system's.
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
    /// Bytes prepared at a time.
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

    /// The bytes to send next; empty when all have been sent.
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

    /// Whether half of the stream is sent.
    pub(crate) fn is_half(&self) -> bool {
        self.offset >= self.bytes / 2
    }

    pub(crate) fn report(&self, elapsed: Duration) -> Report {
        Report { bytes: self.offset, crc: self.crc, elapsed, counters: None }
    }
}

/// The contents of a received stream, in any order, each byte once.
pub(crate) struct Sink {
    pattern: Pattern,
    bytes: Vec<u8>,
    received: u64,
}

impl Sink {
    pub(crate) fn new(task: &Task) -> Self {
        Self { pattern: Pattern::new(task.seed), bytes: vec![0; task.bytes as usize], received: 0 }
    }

    /// Adds a part and checks it.
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

    /// Whether half of the stream was received.
    pub(crate) fn is_half(&self) -> bool {
        self.received >= self.bytes.len() as u64 / 2
    }

    /// The stream has ended, and has to be complete.
    pub(crate) fn report(&self, elapsed: Duration) -> Result<Report> {
        let expected = self.bytes.len() as u64;
        ensure!(self.received == expected, "the stream ended after {} of {expected} bytes", self.received);
        let crc = crc32c::crc32c(&self.bytes);
        Ok(Report { bytes: self.received, crc, elapsed, counters: None })
    }
}
