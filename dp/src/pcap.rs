//! A capture of the frames of a port in both directions, in pcapng format for Wireshark.
//!
//! [`Tap`] wraps any port and is a port itself. A sender may leave the checksum of a frame to the device, and
//! a virtual peer may not fill in the checksum. In these cases, the tap fills in the checksum only in the
//! captured copy. An error of the file ends the capture but not the traffic. [`CaptureStatus`] reports the
//! error.

mod block;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use arrayvec::ArrayVec;

use crate::{
    BURST, Below, Burst, Checksum, Link, LinkState, Mbuf, Port, PortBase, PortInfo, PortLayer, Sleep,
    Statistics, checksum,
};
use block::Direction;

/// Number of bytes that the tap collects before it writes them to the file.
const BUFFER_BYTES: usize = 1 << 18;

/// Maximum time until the tap writes a frame to the file, if the port is polled. The time is so short that a
/// user can watch a running capture.
const FLUSH_AFTER_US: u64 = 200_000;

/// A port whose frames are captured.
pub struct Tap {
    port: Box<dyn Port>,
    capture: Capture,
}

impl Tap {
    /// Captures `port` to a new file at `path`, with wall clock times.
    ///
    /// # Errors
    /// If the file cannot be created, or its header cannot be written.
    pub fn create(port: Box<dyn Port>, path: &Path) -> io::Result<Self> {
        Self::new(port, Box::new(File::create(path)?), None)
    }

    /// Captures `port` to `writer`. The time of a frame is `epoch_us` plus the `now_us` of the call that
    /// sends or receives the frame. Without `epoch_us`, the first frame has the time of the wall clock.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn new(
        port: Box<dyn Port>,
        writer: Box<dyn Write + Send>,
        epoch_us: Option<u64>,
    ) -> io::Result<Self> {
        let capture = Capture::new(writer, port.info(), epoch_us)?;
        Ok(Self { port, capture })
    }

    /// Returns the status of the capture. The status can also be used after the tap was passed on as a
    /// `Box<dyn Port>`.
    pub fn status(&self) -> CaptureStatus {
        self.capture.status.clone()
    }

    /// Ends the capture. Returns the port, and the outcome of the capture.
    ///
    /// # Errors
    /// The error that has ended the capture, unless [`CaptureStatus::take_error`] has already returned it.
    /// This error may be an error of the last write.
    pub fn close(self) -> (Box<dyn Port>, io::Result<()>) {
        let Self { port, mut capture } = self;
        capture.flush();
        let result = match capture.status.take_error() {
            Some(error) => Err(error),
            None => Ok(()),
        };
        (port, result)
    }
}

impl PortLayer for Tap {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl Port for Tap {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        let received = self.port.rx_burst(now_us, frames);
        for frame in &frames[before..] {
            self.capture.encode(now_us, Direction::Inbound, frame);
        }
        self.capture.write(now_us, received);
        received
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        // The port removes the frames that it accepts, and the caller later passes the other frames again. So
        // all frames are encoded first. Then only the frames that the port has accepted are written.
        if self.port.link_state() == LinkState::Up {
            for frame in frames.iter() {
                self.capture.encode(now_us, Direction::Outbound, frame);
            }
        }
        let sent = self.port.tx_burst(now_us, frames);
        self.capture.write(now_us, sent);
        sent
    }
}

impl Link for Tap {}
impl Sleep for Tap {}
impl Statistics for Tap {}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap")
            .field("port", &self.port.info().name)
            .field("status", &self.capture.status)
            .finish()
    }
}

/// The status of a capture, which any thread may read. Cloning is cheap.
#[derive(Clone, Default)]
pub struct CaptureStatus {
    inner: Arc<StatusInner>,
}

#[derive(Default)]
struct StatusInner {
    written: AtomicU64,
    missed: AtomicU64,
    error: Mutex<Option<io::Error>>,
}

impl CaptureStatus {
    /// Number of frames that were written to the file or to its buffer.
    pub fn frames_written(&self) -> u64 {
        self.inner.written.load(Ordering::Relaxed)
    }

    /// Number of frames that were not captured because an error had ended the capture.
    pub fn frames_missed(&self) -> u64 {
        self.inner.missed.load(Ordering::Relaxed)
    }

    /// Removes and returns the error that has ended the capture. Returns `None` if there was no error, or if
    /// the error was already removed.
    pub fn take_error(&self) -> Option<io::Error> {
        self.inner.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn fail(&self, error: io::Error) {
        self.inner.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

impl fmt::Debug for CaptureStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureStatus")
            .field("frames_written", &self.frames_written())
            .field("frames_missed", &self.frames_missed())
            .finish_non_exhaustive()
    }
}

/// The file, and the frames of the current burst.
struct Capture {
    writer: BufWriter<Box<dyn Write + Send>>,
    /// The blocks of the current burst.
    blocks: Vec<u8>,
    /// The end of each block in `blocks`.
    ends: ArrayVec<usize, BURST>,
    epoch_us: Option<u64>,
    /// The time of the oldest frame that may not be in the file yet.
    unflushed_since_us: Option<u64>,
    failed: bool,
    status: CaptureStatus,
}

impl Capture {
    fn new(writer: Box<dyn Write + Send>, port: &PortInfo, epoch_us: Option<u64>) -> io::Result<Self> {
        let mut writer = BufWriter::with_capacity(BUFFER_BYTES, writer);
        let mut header = Vec::new();
        block::section_header(&mut header);
        block::interface_description(&mut header, port);
        writer.write_all(&header)?;
        writer.flush()?;
        Ok(Self {
            writer,
            blocks: Vec::with_capacity(BUFFER_BYTES),
            ends: ArrayVec::new(),
            epoch_us,
            unflushed_since_us: None,
            failed: false,
            status: CaptureStatus::default(),
        })
    }

    /// Adds one frame to the current burst.
    fn encode(&mut self, now_us: u64, direction: Direction, frame: &Mbuf) {
        if self.failed {
            return;
        }
        let epoch_us = *self.epoch_us.get_or_insert_with(|| wall_clock_us().saturating_sub(now_us));
        let offload = frame.tx_offload();
        let (partial, ipv4_header) = match direction {
            Direction::Inbound => (frame.rx_checksum() == Checksum::Partial, false),
            Direction::Outbound => (offload.tcp_checksum, offload.ipv4_checksum),
        };
        let time_us = epoch_us.saturating_add(now_us);
        block::enhanced_packet(&mut self.blocks, time_us, direction, frame, |bytes| {
            if ipv4_header {
                checksum::complete_ipv4_header(bytes);
            }
            if partial {
                checksum::complete(bytes);
            }
        });
        self.ends.push(self.blocks.len());
    }

    /// Writes the first `frames` frames of the current burst and discards the other frames. Flushes the file
    /// if the oldest frame has waited long enough.
    fn write(&mut self, now_us: u64, frames: usize) {
        if self.failed {
            self.status.inner.missed.fetch_add(frames as u64, Ordering::Relaxed);
            return;
        }
        let encoded = frames.min(self.ends.len());
        if let Some(&end) = encoded.checked_sub(1).and_then(|last| self.ends.get(last)) {
            match self.writer.write_all(&self.blocks[..end]) {
                Ok(()) => self.status.inner.written.fetch_add(encoded as u64, Ordering::Relaxed),
                Err(error) => return self.fail(error, encoded as u64),
            };
            self.unflushed_since_us.get_or_insert(now_us);
        }
        self.blocks.clear();
        self.ends.clear();
        if self.unflushed_since_us.is_some_and(|since_us| now_us.saturating_sub(since_us) >= FLUSH_AFTER_US) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.failed
            && self.unflushed_since_us.take().is_some()
            && let Err(error) = self.writer.flush()
        {
            self.fail(error, 0);
        }
    }

    fn fail(&mut self, error: io::Error, missed: u64) {
        self.failed = true;
        self.status.inner.missed.fetch_add(missed, Ordering::Relaxed);
        self.status.fail(error);
        self.blocks.clear();
        self.ends.clear();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}

fn wall_clock_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
