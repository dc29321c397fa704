//! Another station: the state of the connection to the station, and the pair of rings.

use std::collections::VecDeque;
use std::iter;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::fork::OwnFd;
use super::hello;
use super::lending::{Borrower, Lender, Lent};
use super::memory::{self, SharedMemory};
use super::pool::{PeerPool, PoolMemory};
use super::ring::{self, Broken, CONTROL_BYTES, Consumer, Place, Producer};
use crate::{Mbuf, Mempool};

/// Time for which a ring may be full without progress of the reader. After this time, frames for the ring are
/// dropped: a stopped station must not block the frames for other stations for ever. The time is longer than
/// a process usually waits for a processor on a busy machine.
const STUCK_US: u64 = 100_000;

/// Maximum number of frames for one station that wait in the port, until there is a pair of rings or space in
/// the ring. So a slow station does not block the frames for other stations. The caller keeps further frames
/// for at most [`STUCK_US`].
const MAX_WAITING: usize = 64;

/// Time until the second attempt to connect to a station whose queue of connections is full, or that has too
/// many unfinished handshakes. The pause doubles with each attempt, to at most `MAX_REDIAL_US`.
const REDIAL_US: u64 = 1000;
const MAX_REDIAL_US: u64 = 64_000;

/// Records are published after this number of bytes, so that the reader can read while the writer writes.
const PUBLISH_BYTES: u64 = 32 << 10;

/// Number of bytes of the page with the control words, which is in front of the data of the rings.
const WORDS_BYTES: usize = 4096;

const _: () = assert!(2 * CONTROL_BYTES <= WORDS_BYTES);

/// All rings of a port may together grow by this number of rings of the maximum size. With many peers, the
/// port sends few bytes at a time to each peer, for which a small ring is enough.
const GROWN_RINGS: usize = 8;

/// Number of bytes by which all rings of a port together may grow.
pub(super) fn allowance(ring_bytes: usize) -> usize {
    GROWN_RINGS * ring_bytes
}

/// Number of bytes of the memory for a pair of rings. `None` if `ring_bytes` is not allowed.
pub(super) fn memory_bytes(ring_bytes: u64) -> Option<usize> {
    let bytes = usize::try_from(ring_bytes).ok()?;
    let fits = bytes.is_power_of_two() && (ring::MIN_RING_BYTES..=ring::MAX_RING_BYTES).contains(&bytes);
    fits.then(|| WORDS_BYTES + 2 * bytes)
}

/// Another station, to which this port is connected or connects.
pub(super) struct Peer {
    pub(super) state: PeerState,
    /// Frames for the station that wait until there is a pair of rings, or space in the ring.
    pub(super) waiting: VecDeque<Mbuf>,
    /// The time of the first frame for the station, or of the station's hello.
    pub(super) since_us: u64,
    /// The pause after the next failed attempt to connect to the station.
    pause_us: u64,
}

pub(super) enum PeerState {
    /// This port connects again at `again_us`. Either the last attempt has failed for a reason that may pass,
    /// or the station has answered `Crossed` or `Again`.
    Dialing { again_us: u64 },
    /// This port has sent its hello with the memory of the rings.
    Greeted { socket: OwnFd, memory: Arc<SharedMemory> },
    /// The pair of rings is in use.
    Paired(Pair),
}

#[derive(Debug)]
pub(super) enum Sent {
    /// The frame is in the ring.
    Written,
    /// The frame waits in `waiting`.
    Kept,
    /// The frame was not accepted, since too many frames wait.
    Refused(Mbuf),
    /// The frame was dropped, since the station has ended, or has not answered or not read for long.
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

    /// Returns the time of the next attempt to connect to the station, and doubles the pause up to its
    /// maximum.
    pub(super) fn next_attempt_us(&mut self, now_us: u64) -> u64 {
        let again_us = now_us + self.pause_us;
        self.pause_us = (2 * self.pause_us).min(MAX_REDIAL_US);
        again_us
    }

    /// Sends a frame. If the frame cannot be sent now, the function keeps, returns or drops the frame: see
    /// [`Sent`].
    ///
    /// # Errors
    /// [`Broken`] if the other side has written an impossible position.
    #[inline]
    pub(super) fn send(&mut self, now_us: u64, mut frame: Mbuf) -> Result<Sent, Broken> {
        if let PeerState::Paired(pair) = &mut self.state
            && self.waiting.is_empty()
            && pair.socket.is_some()
        {
            match pair.send(frame)? {
                None => return Ok(Sent::Written),
                Some(refused) => frame = refused,
            }
        }
        Ok(self.keep(now_us, frame))
    }

    /// Sends a copy of a frame, which is lost if the station cannot take it now and no buffer of `pool` is
    /// free, or if too many frames wait.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(super) fn send_copy(&mut self, now_us: u64, frame: &Mbuf, pool: &Mempool) -> Result<Sent, Broken> {
        if let PeerState::Paired(pair) = &mut self.state
            && self.waiting.is_empty()
            && pair.socket.is_some()
            && pair.write(frame)?
        {
            pair.publish();
            return Ok(Sent::Written);
        }
        match frame.deep_copy(pool).map(|copy| self.keep(now_us, copy)) {
            Some(Sent::Kept) => Ok(Sent::Kept),
            _ => Ok(Sent::Lost),
        }
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
            // Some frames are kept for a station that does not run: if they were dropped, their
            // retransmission could take seconds. Further frames for the station are dropped, so that they do
            // not block frames for other stations.
            _ => now_us.saturating_sub(self.since_us) >= STUCK_US,
        };
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(frame);
            return Sent::Kept;
        }
        if is_late { Sent::Lost } else { Sent::Refused(frame) }
    }

    /// Sends waiting frames until the ring is full. Returns the number of frames that were dropped because
    /// the station has ended or does not read. `allowance` is the number of bytes by which the ring may grow.
    ///
    /// # Errors
    /// [`Broken`] if the other side has written an impossible position.
    #[cold]
    pub(super) fn flush(&mut self, now_us: u64, allowance: &mut usize) -> Result<usize, Broken> {
        let PeerState::Paired(pair) = &mut self.state else { return Ok(0) };
        if pair.socket.is_none() {
            let lost = self.waiting.len();
            self.waiting.clear();
            return Ok(lost);
        }
        while let Some(frame) = self.waiting.pop_front() {
            let mut refused = pair.send(frame)?;
            if let Some(frame) = refused.take() {
                refused = if pair.tx.grow(allowance) { pair.send(frame)? } else { Some(frame) };
            }
            if let Some(frame) = refused {
                self.waiting.push_front(frame);
                // The peer has to know of the frames in the ring, since otherwise the peer would never read
                // them.
                pair.publish();
                if !pair.is_stuck(now_us) {
                    return Ok(0);
                }
                let lost = self.waiting.len();
                self.waiting.clear();
                return Ok(lost);
            }
        }
        pair.full = None;
        pair.publish();
        Ok(0)
    }
}

/// The role of a station. The role decides to which of the two rings in the memory the station writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The station has made the memory, and writes to the first ring.
    Maker,
    /// The station has received the memory, and writes to the second ring.
    Taker,
}

/// The pages of both ports, for lending frames.
#[derive(Default)]
pub(super) struct Pools {
    /// `None` if this port lends no frames.
    pub(super) ours: Option<Arc<PoolMemory>>,
    /// `None` if the other port lends no frames.
    pub(super) theirs: Option<PeerPool>,
}

pub(super) struct Pair {
    /// The socket to the other process. `None` if the other process has ended. Even then, the last frames of
    /// the other process may not be read yet.
    pub(super) socket: Option<OwnFd>,
    pub(super) tx: Producer,
    pub(super) rx: Consumer,
    /// The frames that this port has lent. `None` if the port lends no frames.
    lender: Option<Lender>,
    /// Number of bytes that were lent since the last call of [`reclaim`](Self::reclaim).
    lent_bytes: u64,
    /// The frames that this port has borrowed. `None` if the other port lends no frames.
    pub(super) borrower: Option<Borrower>,
    /// The instance number of the other process.
    pub(super) instance: u64,
    /// The serial number of the other process's latest hello when the pair was made.
    pub(super) serial: u64,
    /// While the ring is full: the time since which the reader has made no progress, and the reader's
    /// position.
    full: Option<(u64, u64)>,
}

impl Pair {
    pub(super) fn new(
        socket: OwnFd,
        memory: &Arc<SharedMemory>,
        side: Side,
        (instance, serial): (u64, u64),
        Pools { ours: our_pool, theirs: their_pool }: Pools,
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
            lender: our_pool.map(Lender::new),
            lent_bytes: 0,
            borrower: their_pool.map(Borrower::new),
            instance,
            serial,
            full: None,
        }
    }

    /// Present size in bytes of the shared memory: the page of control words, and the data areas of both
    /// rings.
    pub(super) fn memory_bytes(&self) -> usize {
        WORDS_BYTES + self.tx.bytes() + self.rx.bytes()
    }

    /// Lends a frame or copies it to the ring, and publishes it if many bytes are not published. Returns the
    /// frame if the ring has no space.
    ///
    /// # Errors
    /// [`Broken`] if the other side has written an impossible position.
    #[inline]
    fn send(&mut self, mut frame: Mbuf) -> Result<Option<Mbuf>, Broken> {
        if let Some(lender) = &mut self.lender
            && lender.takes(&frame)
        {
            match lender.lend(&mut self.tx, frame)? {
                Lent::Written(bytes) => {
                    self.lent_bytes += bytes as u64;
                    // A lent frame has few bytes in the ring, and many bytes for the reader.
                    self.publish();
                    return Ok(None);
                }
                Lent::RingFull(frame) => return Ok(Some(frame)),
                Lent::Elsewhere(other) => frame = other,
            }
        }
        if !self.write(&frame)? {
            return Ok(Some(frame));
        }
        if self.tx.unpublished() >= PUBLISH_BYTES {
            self.publish();
        }
        Ok(None)
    }

    /// Frees the frames that the other side has returned. Returns the number of bytes that were lent since
    /// the last call.
    ///
    /// # Errors
    /// [`Broken`] if the other side has returned frames that were not lent.
    #[inline]
    pub(super) fn reclaim(&mut self) -> Result<u64, Broken> {
        if let Some(lender) = &mut self.lender {
            lender.reclaim(&self.tx)?;
        }
        Ok(std::mem::take(&mut self.lent_bytes))
    }

    /// Returns the borrowed frames that nobody uses any more. Returns their number.
    #[inline]
    pub(super) fn give_back(&mut self) -> usize {
        self.borrower.as_mut().map_or(0, |borrower| borrower.give_back(&self.rx))
    }

    /// Number of frames that are borrowed and not returned.
    pub(super) fn outstanding(&self) -> usize {
        self.borrower.as_ref().map_or(0, Borrower::outstanding)
    }

    /// Writes a frame to the ring and returns `true`. Returns `false` if the ring has no space.
    ///
    /// # Errors
    /// [`Broken`] if the other side has written an impossible position.
    #[inline]
    fn write(&mut self, frame: &Mbuf) -> Result<bool, Broken> {
        let marks = if frame.tx_offload().tcp_checksum { ring::PARTIAL_CHECKSUM } else { 0 };
        self.tx.write(frame.len(), marks, frame.segments())
    }

    /// Returns whether the ring has been full for [`STUCK_US`] without progress of the reader. The caller
    /// calls this function while the ring is full.
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

    /// Makes the written records visible to the reader. Wakes the reader if it sleeps.
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

/// Makes memory for a pair of rings. Returns the mapping of the memory, and the descriptor to send.
pub(super) fn make_memory(ring_bytes: usize) -> Result<(Arc<SharedMemory>, OwnedFd), Errno> {
    let bytes = memory_bytes(ring_bytes as u64).ok_or(Errno::INVAL)?;
    let first = ring::first_bytes(ring_bytes);
    let used = [0, ring_bytes].map(|ring| WORDS_BYTES + ring..WORDS_BYTES + ring + first);
    let memfd = memory::create(bytes, iter::once(0..WORDS_BYTES).chain(used))?;
    let memory = SharedMemory::map(&memfd, bytes)?;
    Ok((Arc::new(memory), memfd))
}
