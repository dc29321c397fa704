//! Another station: the state of the connection with it, and the pair of rings.

use std::collections::VecDeque;
use std::iter;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::fork::OwnFd;
use super::hello;
use super::memory::{self, SharedMemory};
use super::ring::{self, Broken, CONTROL_BYTES, Consumer, Place, Producer};
use crate::Mbuf;

/// How long a ring may stay full, without the reader taking anything, before frames for it are dropped. A
/// stopped station must not block the frames for other stations for ever. The time is longer than a busy
/// machine keeps a process from running.
const STUCK_US: u64 = 100_000;

/// Maximum frames that wait here for one station, until the pair is made or the ring has space. So a slow
/// station does not block the frames for other stations. Further frames stay with the caller, for at most
/// [`STUCK_US`].
const MAX_WAITING: usize = 64;

/// Time until the second attempt to connect to a station whose queue of connections is full, or that has no
/// place for us. The pause doubles with each attempt, up to `MAX_REDIAL_US`.
const REDIAL_US: u64 = 1000;
const MAX_REDIAL_US: u64 = 64_000;

/// Records are published after this many bytes, so that the reader reads while we write.
const PUBLISH_BYTES: u64 = 32 << 10;

/// Bytes in front of the data of the rings: the control words, in their own page.
const WORDS_BYTES: usize = 4096;

const _: () = assert!(2 * CONTROL_BYTES <= WORDS_BYTES);

/// How much the rings of a port may grow together, in rings of the maximum size. With many peers, each peer
/// gets few bytes at a time, for which a small ring is enough.
const GROWN_RINGS: usize = 8;

/// Bytes by which the rings of a port may grow together.
pub(super) fn allowance(ring_bytes: usize) -> usize {
    GROWN_RINGS * ring_bytes
}

/// Bytes of the memory of a pair of rings; `None` if `ring_bytes` is not allowed.
pub(super) fn memory_bytes(ring_bytes: u64) -> Option<usize> {
    let bytes = usize::try_from(ring_bytes).ok()?;
    let fits = bytes.is_power_of_two() && (ring::MIN_RING_BYTES..=ring::MAX_RING_BYTES).contains(&bytes);
    fits.then(|| WORDS_BYTES + 2 * bytes)
}

/// Another station.
pub(super) struct Peer {
    pub(super) state: PeerState,
    /// Frames for it that wait until there is a pair, or space in the ring.
    pub(super) waiting: VecDeque<Mbuf>,
    /// When the first frame for the station, or its hello, came.
    pub(super) since_us: u64,
    /// Time between the last attempt to connect to it and the next one.
    pause_us: u64,
}

/// The state of the connection with a station.
pub(super) enum PeerState {
    /// We have to connect again: the station's queue of connections is full, or the station has answered
    /// that its own hello is in flight and that its rings are to be used.
    Dialing { again_us: u64 },
    /// The station has our hello, with the memory of the rings.
    Greeted { socket: OwnFd, memory: Arc<SharedMemory> },
    /// The pair of rings is in use.
    Paired(Pair),
}

/// The fate of a frame.
#[derive(Debug)]
pub(super) enum Sent {
    /// The frame is in the ring.
    Written,
    /// The frame waits here.
    Kept,
    /// Too many frames wait here.
    Refused(Mbuf),
    /// The frame was dropped: the station is gone, or has not read for long.
    Lost,
}

impl Peer {
    pub(super) fn new(now_us: u64) -> Self {
        let state = PeerState::Dialing { again_us: now_us };
        Self { state, waiting: VecDeque::new(), since_us: now_us, pause_us: REDIAL_US }
    }

    /// Whether frames wait for space in the ring.
    pub(super) fn is_backlogged(&self) -> bool {
        matches!(self.state, PeerState::Paired(_)) && !self.waiting.is_empty()
    }

    /// When to connect to it again.
    pub(super) fn next_attempt_us(&mut self, now_us: u64) -> u64 {
        let again_us = now_us + self.pause_us;
        self.pause_us = (2 * self.pause_us).min(MAX_REDIAL_US);
        again_us
    }

    /// Sends a frame, or keeps it until it can be sent.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub(super) fn send(&mut self, now_us: u64, frame: Mbuf) -> Result<Sent, Broken> {
        if let PeerState::Paired(pair) = &mut self.state
            && self.waiting.is_empty()
            && pair.socket.is_some()
            && pair.write(&frame)?
        {
            if pair.tx.unpublished() >= PUBLISH_BYTES {
                pair.publish();
            }
            return Ok(Sent::Written);
        }
        Ok(self.keep(now_us, frame))
    }

    #[cold]
    fn keep(&mut self, now_us: u64, frame: Mbuf) -> Sent {
        let is_late = match &mut self.state {
            PeerState::Paired(pair) => {
                if pair.socket.is_none() || pair.is_stuck(now_us) {
                    return Sent::Lost;
                }
                false
            }
            // Some frames wait for a station that does not run, since a retransmission may take seconds.
            // Further frames for it are dropped, so that they do not block frames for other stations.
            _ => now_us.saturating_sub(self.since_us) >= STUCK_US,
        };
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(frame);
            return Sent::Kept;
        }
        if is_late { Sent::Lost } else { Sent::Refused(frame) }
    }

    /// Sends waiting frames, as many as the ring takes. Returns how many were dropped because the station is
    /// gone or stuck. `allowance`: bytes by which the ring may grow.
    ///
    /// # Errors
    /// [`Broken`].
    #[cold]
    pub(super) fn flush(&mut self, now_us: u64, allowance: &mut usize) -> Result<usize, Broken> {
        let PeerState::Paired(pair) = &mut self.state else { return Ok(0) };
        if pair.socket.is_none() {
            let lost = self.waiting.len();
            self.waiting.clear();
            return Ok(lost);
        }
        while let Some(frame) = self.waiting.front() {
            let is_written = pair.write(frame)? || pair.tx.grow(allowance) && pair.write(frame)?;
            if !is_written {
                // The peer has to see the frames in the ring, or it never gets empty.
                pair.publish();
                if !pair.is_stuck(now_us) {
                    return Ok(0);
                }
                let lost = self.waiting.len();
                self.waiting.clear();
                return Ok(lost);
            }
            self.waiting.pop_front();
        }
        pair.full = None;
        pair.publish();
        Ok(0)
    }
}

/// Which of the two rings in the memory a station writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// It made the memory, and writes the first ring.
    Maker,
    /// It got the memory, and writes the second ring.
    Taker,
}

/// A pair of rings with another station.
pub(super) struct Pair {
    /// `None`: the other process is gone; its last frames are still to be read.
    pub(super) socket: Option<OwnFd>,
    pub(super) tx: Producer,
    pub(super) rx: Consumer,
    /// The instance number of the other process, and the serial number of its latest hello when the pair was
    /// made.
    pub(super) instance: u64,
    pub(super) serial: u64,
    /// Since when the ring is full, and the reader's position at that time.
    full: Option<(u64, u64)>,
}

impl Pair {
    pub(super) fn new(
        socket: OwnFd,
        memory: &Arc<SharedMemory>,
        side: Side,
        (instance, serial): (u64, u64),
    ) -> Self {
        let limit = (memory.len() - WORDS_BYTES) / 2;
        let place = |ring: usize| Place {
            control: ring * CONTROL_BYTES,
            data: WORDS_BYTES + ring * limit,
            bytes: ring::first_bytes(limit),
            limit,
        };
        let (ours, theirs) = match side {
            Side::Maker => (0, 1),
            Side::Taker => (1, 0),
        };
        Self {
            socket: Some(socket),
            tx: Producer::new(Arc::clone(memory), place(ours)),
            rx: Consumer::new(Arc::clone(memory), place(theirs)),
            instance,
            serial,
            full: None,
        }
    }

    /// Bytes of shared memory that are in use.
    pub(super) fn memory_bytes(&self) -> usize {
        WORDS_BYTES + self.tx.bytes() + self.rx.bytes()
    }

    /// Writes a frame to the ring. `false`: there is no space.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    fn write(&mut self, frame: &Mbuf) -> Result<bool, Broken> {
        let marks = if frame.tx_offload().tcp_checksum { ring::PARTIAL_CHECKSUM } else { 0 };
        self.tx.write(frame.len(), marks, frame.segments())
    }

    /// Called while the ring is full. Returns whether the ring has been full for [`STUCK_US`] without the
    /// reader taking anything.
    fn is_stuck(&mut self, now_us: u64) -> bool {
        let taken = self.tx.taken();
        match self.full {
            Some((since_us, before)) if before == taken => now_us.saturating_sub(since_us) >= STUCK_US,
            _ => {
                self.full = Some((now_us, taken));
                false
            }
        }
    }

    /// Shows the reader the records that were written, and wakes it if it sleeps.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.tx.unpublished() > 0
            && self.tx.publish()
            && let Some(socket) = &self.socket
        {
            hello::wake(socket);
        }
    }
}

/// New memory for a pair, and the descriptor to send.
pub(super) fn make_memory(ring_bytes: usize) -> Result<(Arc<SharedMemory>, OwnedFd), Errno> {
    let bytes = memory_bytes(ring_bytes as u64).ok_or(Errno::INVAL)?;
    let first = ring::first_bytes(ring_bytes);
    let used = [0, ring_bytes].map(|ring| WORDS_BYTES + ring..WORDS_BYTES + ring + first);
    let memfd = memory::create(bytes, iter::once(0..WORDS_BYTES).chain(used))?;
    let memory = SharedMemory::map(&memfd, bytes)?;
    Ok((Arc::new(memory), memfd))
}
