//! A plain TCP stream of a known pattern, sent or received by our stack or by Linux's: the two ends of the
//! tests that let one TCP judge the other.

pub mod kernel;
pub mod lite;
mod manners;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tcp_lite::StackCounters;

use crate::ensure;
use crate::lab::Result;
use crate::pattern::Pattern;

pub use manners::Manners;

/// Who opens the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// We wait for the peer on this port.
    Passive(u16),
    /// We connect.
    Active(SocketAddr),
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// We do; the peer receives.
    Send,
    /// The peer does.
    Receive,
}

/// One stream.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Who opens.
    pub opener: Opener,
    /// Who sends.
    pub way: Way,
    /// Length of the stream, bytes.
    pub bytes: u64,
    /// Seed of its pattern.
    pub seed: u64,
    /// How long all of it may take.
    pub limit: Duration,
    /// What this end does besides.
    pub manners: Manners,
}

/// A stream that went as it should: complete, every byte in its place, closed by both sides. Written out, it
/// is what both sides agree on.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Bytes sent or received.
    pub bytes: u64,
    /// Their CRC32C.
    pub crc: u32,
    /// From opening the connection to the last acknowledgement of its end.
    pub elapsed: Duration,
    /// What our stack has counted; nothing of the system's.
    pub counters: Option<StackCounters>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} crc32c {:08x}", self.bytes, self.crc)
    }
}

/// The bytes of a stream on its way out: what comes next, and the checksum so far.
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

    /// The bytes to send next; empty when all have been taken.
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

    /// Says that the first `bytes` of [`Source::next`] are on their way.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// Whether half of the stream is on its way.
    pub(crate) fn is_half(&self) -> bool {
        self.offset >= self.bytes / 2
    }

    pub(crate) fn report(&self, elapsed: Duration) -> Report {
        Report { bytes: self.offset, crc: self.crc, elapsed, counters: None }
    }
}

/// The bytes of a stream as they come in, in any order, each once.
pub(crate) struct Sink {
    pattern: Pattern,
    bytes: Vec<u8>,
    received: u64,
}

impl Sink {
    pub(crate) fn new(task: &Task) -> Self {
        Self { pattern: Pattern::new(task.seed), bytes: vec![0; task.bytes as usize], received: 0 }
    }

    /// Takes a piece and checks it.
    pub(crate) fn put(&mut self, offset: u64, piece: &[u8]) -> Result<()> {
        let end = offset + piece.len() as u64;
        ensure!(end <= self.bytes.len() as u64, "bytes up to {end} of a stream of {}", self.bytes.len());
        if let Some(at) = self.pattern.first_wrong(offset, piece) {
            return Err(crate::lab_error!("byte {at} of the stream is wrong"));
        }
        self.bytes[offset as usize..end as usize].copy_from_slice(piece);
        self.received += piece.len() as u64;
        Ok(())
    }

    /// Whether half of the stream is here.
    pub(crate) fn is_half(&self) -> bool {
        self.received >= self.bytes.len() as u64 / 2
    }

    /// The stream is over: it has to be complete.
    pub(crate) fn report(&self, elapsed: Duration) -> Result<Report> {
        let expected = self.bytes.len() as u64;
        ensure!(self.received == expected, "the stream ended after {} of {expected} bytes", self.received);
        let crc = crc32c::crc32c(&self.bytes);
        Ok(Report { bytes: self.received, crc, elapsed, counters: None })
    }
}
