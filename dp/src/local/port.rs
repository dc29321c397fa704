//! A [`Port`] that is a station of a local wire.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::claim::Claim;
use super::config::DEFAULT_MTU;
use super::fork;
use super::group::{self, Stations};
use super::lending::MIN_LENT_BYTES;
use super::peer::{Peer, PeerState, Sent, memory_bytes};
use super::peers::Peers;
use super::pool::PoolMemory;
use super::ring::{self, Broken, Consumer, Record};
use super::wake;
use super::{LocalConfig, LocalCounters, LocalError};
use crate::mbuf::HEADROOM;
use crate::mempool::slab::{Backing, backing_bytes};
use crate::{
    Below, Burst, Checksum, Link, LinkState, Mbuf, Mempool, Offloads, Port, PortBase, PortCounters, PortInfo,
    PortLayer, Sleep, Statistics,
};

/// The first bytes of the Ethernet addresses of a wire. In an address, the number of the station follows.
const MAC_PREFIX: [u8; 4] = [0x02, 0, 0x64, 0x40];

/// Minimum number of bytes of a buffer for bulk sending.
const BULK_BYTES: usize = 32 << 10;

/// Number of bytes of a buffer for a received superframe. The buffer has room for the longest superframe.
const SUPERFRAME_BYTES: usize = ring::MAX_FRAME_BYTES.next_multiple_of(64);

/// Minimum number of bytes of a buffer in the pool. Devices usually have the same minimum.
const DATA_BYTES_MIN: usize = 2048;

/// Maximum number of bytes of a buffer in the pool of the port. Longer frames are in larger buffers, or in
/// chains of buffers.
const DATA_BYTES_MAX: usize = 9216;

/// Number of bytes of an Ethernet header with a VLAN tag: a frame is at most this much longer than its IP
/// packet.
const FRAME_OVERHEAD_BYTES: usize = 18;

/// Maximum number of bytes of one received burst. The last frame of a burst may exceed this limit. With the
/// limit, the bytes are usually still in the core's cache when they are placed.
const RX_BYTES: usize = 256 << 10;

/// Time between two reads of the sockets while the port is polled. Reading the sockets is a system call.
const LOOK_US: u64 = 100;

/// Time between the poll that has received the frames that have ended a sleep, and the read of the wake-up
/// message. Reading the sockets takes two system calls, which would delay the answer to these frames.
const ANSWER_US: u64 = 10;

/// Time between two attempts to send frames that wait for space in a ring.
const SPACE_US: u64 = 50;

/// Number of polls without a frame between two reads of the sockets, if the caller's clock does not advance.
const LOOK_POLLS: u32 = 256;

/// A port on a local wire, which has claimed a station: see [`local`](super).
pub struct LocalPort {
    base: PortBase,
    superframes: Mempool,
    peers: Peers,
    /// The other stations, for frames to multicast groups.
    stations: Stations,
    /// The index of the peer to which the latest frame was sent.
    latest: usize,
    /// The index of the peer that is read first.
    turn: usize,
    /// The time of the caller's clock at which the sockets are read next. The sockets are also read after
    /// `LOOK_POLLS` polls without a frame.
    look_at_us: u64,
    /// Whether the port has slept since the last poll.
    has_slept: bool,
    /// Whether a frame has ended a sleep since the sockets were read: a socket has a wake-up message.
    has_wake: bool,
    /// Number of frames that are borrowed from all peers and not returned.
    borrowed: usize,
    idle_polls: u32,
    now_us: u64,
    /// The fork generation of the process that opened the port.
    generation: u32,
}

impl LocalPort {
    pub(super) fn open(config: &LocalConfig) -> Result<Self, LocalError> {
        check(config)?;
        let claim = Claim::new(&config.folder, config.station)?;
        let [high, low] = claim.station.to_be_bytes();
        let [a, b, c, d] = MAC_PREFIX;
        let name = format!("local{}", claim.station);
        let frame_bytes = (usize::from(config.mtu) + FRAME_OVERHEAD_BYTES).next_multiple_of(64);
        let data_bytes = frame_bytes.clamp(DATA_BYTES_MIN, DATA_BYTES_MAX);
        let offloads = Offloads::TX_TCP_CHECKSUM
            | Offloads::RX_TCP_CHECKSUM
            | Offloads::TX_MULTI_SEGMENT
            | Offloads::TX_TSO
            | Offloads::RX_LRO
            | Offloads::RX_SCATTER;
        let pool = Mempool::heap(&name, config.mbufs, data_bytes);
        let (bulk, pages) = bulk_pool(&name, config.bulk_mbufs, BULK_BYTES.max(frame_bytes));
        let superframes = Mempool::heap(&name, config.bulk_mbufs, SUPERFRAME_BYTES);
        let info = PortInfo {
            tells_departures: true,
            lent_from: pages.is_some().then_some(MIN_LENT_BYTES),
            ..PortInfo::new(name, [a, b, c, d, high, low], config.mtu, offloads)
        };
        Ok(Self {
            base: PortBase { bulk_mempool: Some(bulk), ..PortBase::new(info, pool) },
            superframes,
            peers: Peers::new(claim, config.ring_bytes, pages)?,
            stations: Stations::default(),
            latest: 0,
            turn: 0,
            look_at_us: 0,
            has_slept: false,
            has_wake: false,
            borrowed: 0,
            idle_polls: 0,
            now_us: 0,
            generation: fork::generation(),
        })
    }

    /// The number of this station.
    pub fn station(&self) -> u16 {
        self.peers.claim.station
    }

    /// The counters of connections to other stations.
    pub fn local_counters(&self) -> LocalCounters {
        self.peers.counters
    }

    /// Whether this process is a forked child of the process that opened the port. In a forked child the port
    /// does nothing.
    #[inline]
    fn is_forked(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Sends one frame, or drops it if it cannot be sent at all. Returns the frame if it cannot be sent now.
    /// In this case the caller sends the frame again later.
    #[inline]
    fn send(&mut self, now_us: u64, mut frame: Mbuf) -> Option<Mbuf> {
        let bytes = frame.len();
        let is_external = frame.has_external();
        let Some(station) = self.destination(&frame, is_external) else {
            match group::is_datagram(&frame) {
                true => self.send_to_group(now_us, &frame),
                false => self.base.counters.tx_dropped += 1,
            }
            return None;
        };
        if self.peers.station(self.latest) != Some(station) {
            self.publish_latest();
            let found = self.peers.find(station).or_else(|| self.peers.begin(now_us, station));
            let Some(at) = found else {
                self.base.counters.tx_link_down += 1;
                return None;
            };
            self.latest = at;
        }
        if is_external {
            let Some(copy) = frame.deep_copy(&self.base.mempool) else {
                // No buffer is free now. Buffers are freed when frames are acknowledged.
                return Some(frame);
            };
            frame = copy;
        }
        match self.peers.list[self.latest].send(now_us, frame) {
            Ok(Sent::Written) => {}
            Ok(Sent::Kept) => self.peers.backlogged = true,
            Ok(Sent::Refused(frame)) => return Some(frame),
            Ok(Sent::Lost) => {
                self.base.counters.tx_link_down += 1;
                return None;
            }
            Err(Broken) => {
                self.base.counters.tx_link_down += 1;
                self.end_broken(self.latest);
                return None;
            }
        }
        self.base.counters.tx_frames += 1;
        self.base.counters.tx_bytes += bytes as u64;
        None
    }

    /// Sends a copy of a datagram to each other station. As with a switch, a station may miss the datagram
    /// although it counts as sent.
    #[cold]
    fn send_to_group(&mut self, now_us: u64, frame: &Mbuf) {
        if frame.len() > usize::from(self.base.info.mtu) + FRAME_OVERHEAD_BYTES {
            self.base.counters.tx_dropped += 1;
            return;
        }
        self.publish_latest();
        self.stations.refresh(self.peers.claim.folder.path(), self.peers.claim.station);
        let mut at = 0;
        while let Some(station) = self.stations.get(at) {
            let found = self.peers.find(station).or_else(|| self.peers.begin(now_us, station));
            let Some(peer) = found else {
                self.stations.remove(at);
                continue;
            };
            match self.peers.list[peer].send_copy(now_us, frame, &self.base.mempool) {
                Ok(Sent::Written) => {}
                Ok(Sent::Kept) => self.peers.backlogged = true,
                Ok(Sent::Refused(_) | Sent::Lost) => self.peers.counters.lost += 1,
                Err(Broken) => self.end_broken(peer),
            }
            at += 1;
        }
        self.base.counters.tx_frames += 1;
        self.base.counters.tx_bytes += frame.len() as u64;
    }

    /// The station to which a frame is addressed. `None` if the address does not belong to another station,
    /// or if the length of the frame is not allowed.
    #[inline]
    fn destination(&self, frame: &Mbuf, is_external: bool) -> Option<u16> {
        let bytes = frame.len();
        let longest = usize::from(self.base.info.mtu) + FRAME_OVERHEAD_BYTES;
        let passes = frame.tx_offload().tso_segment_bytes > 0 && bytes <= ring::MAX_FRAME_BYTES;
        if bytes < ring::MIN_FRAME_BYTES || bytes > longest && !passes {
            return None;
        }
        let mac: [u8; 6] = match is_external {
            false if frame.head().len() >= 6 => *frame.head().first_chunk()?,
            _ => {
                let mut mac = [0; 6];
                frame.copy_to(0, &mut mac);
                mac
            }
        };
        let station = u16::from_be_bytes([mac[4], mac[5]]);
        (mac[..4] == MAC_PREFIX && station != 0 && station != self.station()).then_some(station)
    }

    /// Makes the records that were written for the latest peer visible to that peer.
    #[inline]
    fn publish_latest(&mut self) {
        if let Some(peer) = self.peers.list.get_mut(self.latest)
            && let PeerState::Paired(pair) = &mut peer.state
        {
            pair.publish();
        }
    }

    /// Sends the frames that wait for space in a ring.
    #[cold]
    fn flush(&mut self, now_us: u64) {
        let mut waits = false;
        for at in (0..self.peers.list.len()).rev() {
            match self.peers.list[at].flush(now_us, &mut self.peers.allowance) {
                Ok(lost) => self.peers.counters.lost += lost as u64,
                Err(Broken) => self.end_broken(at),
            }
            waits |= self.peers.list.get(at).is_some_and(Peer::is_backlogged);
        }
        self.peers.backlogged = waits;
    }

    /// Removes a station that has written something invalid, which ends the pair of rings.
    #[cold]
    fn end_broken(&mut self, at: usize) {
        self.peers.counters.broken += 1;
        self.base.counters.rx_dropped += 1;
        self.peers.remove(at);
    }

    /// Receives from the peer at this index until no record is left, no buffer is free, the burst is full, or
    /// `left` bytes were received. The last frame may exceed `left`.
    #[inline]
    fn receive(&mut self, at: usize, left: &mut usize, frames: &mut Burst) -> Received {
        let Self { base: PortBase { mempool, counters, .. }, superframes, peers, borrowed, .. } = self;
        let Some(Peer { state: PeerState::Paired(pair), .. }) = peers.list.get_mut(at) else {
            return Received::Some;
        };
        let rx = &mut pair.rx;
        let received = loop {
            if frames.is_full() || *left == 0 {
                break Received::Some;
            }
            let record = match rx.peek() {
                Ok(Some(record)) => record,
                Ok(None) if pair.socket.is_none() => break Received::End,
                Ok(None) => break Received::Some,
                Err(Broken) => break Received::Broken,
            };
            let frame = match (record.references, &mut pair.borrower) {
                (0, _) => take(mempool, superframes, *borrowed, rx, record),
                (_, None) => break Received::Broken,
                (_, Some(borrower)) => match borrower.borrow(rx, record, (mempool, superframes)) {
                    Ok(Some(frame)) => {
                        let frame = match superframes.available() > *borrowed {
                            true => Some(frame),
                            false => frame.deep_copy(mempool),
                        };
                        if let Some(frame) = &frame {
                            borrower.keep();
                            *borrowed += 1;
                            if frame.has_external() {
                                counters.rx_borrowed_bytes += (frame.len() - record.bytes) as u64;
                            }
                        }
                        frame
                    }
                    Ok(None) => None,
                    Err(Broken) => break Received::Broken,
                },
            };
            let Some(frame) = frame else {
                // No buffer is free, so the record stays in the ring.
                counters.rx_no_mbuf += 1;
                break Received::Some;
            };
            rx.advance(record);
            *left = left.saturating_sub(frame.len());
            counters.rx_frames += 1;
            counters.rx_bytes += frame.len() as u64;
            frames.push(frame);
        };
        if rx.unreleased() > 0 {
            rx.release();
        }
        // The peer returns borrowed frames before it acknowledges them. So the pages of all frames whose
        // acknowledgements were just received are free now.
        match pair.reclaim() {
            Ok(lent_bytes) => {
                counters.tx_lent_bytes += lent_bytes;
                received
            }
            Err(Broken) => Received::Broken,
        }
    }

    /// Returns the borrowed frames that nobody uses any more to their peers.
    #[inline(never)]
    fn give_back(&mut self) {
        self.borrowed = 0;
        for peer in &mut self.peers.list {
            if let PeerState::Paired(pair) = &mut peer.state {
                pair.give_back();
                self.borrowed += pair.outstanding();
            }
        }
    }

    /// Reads the sockets, and sets the time of the next read.
    fn look(&mut self) {
        self.idle_polls = 0;
        self.has_wake = false;
        let more = self.peers.look(self.now_us);
        // During a handshake each poll reads the sockets, so that the first frame is not delayed.
        let at_once = more || self.peers.is_in_haste(self.now_us);
        self.look_at_us = if at_once { 0 } else { self.now_us + LOOK_US };
    }

    /// Whether frames or other work for a poll are waiting.
    fn has_news(&self) -> bool {
        let waits = |peer: &Peer| match &peer.state {
            PeerState::Paired(pair) => pair.rx.has_news() || pair.socket.is_none(),
            _ => false,
        };
        self.peers.has_departed() || self.peers.list.iter().any(waits)
    }

    /// Calls `act` for each ring from which this port reads.
    fn each_ring(&self, act: impl Fn(&Consumer)) {
        for peer in &self.peers.list {
            if let PeerState::Paired(pair) = &peer.state {
                act(&pair.rx);
            }
        }
    }
}

enum Received {
    /// Any number of frames was received, and more frames may follow.
    Some,
    /// The peer's process has ended, and all its frames were received.
    End,
    /// The ring has a record that a correct peer cannot have written.
    Broken,
}

/// Copies a record to one packet buffer, or to a chain of buffers if no large buffer is free. Returns `None`
/// if there are not enough free buffers.
#[inline]
fn take(
    pool: &Mempool,
    superframes: &Mempool,
    borrowed: usize,
    rx: &Consumer,
    record: Record,
) -> Option<Mbuf> {
    let mut frame = if record.bytes <= pool.data_bytes() {
        filled(pool, rx, record, 0..record.bytes)?
    } else {
        // For each borrowed frame, a buffer remains free, into which a user of the frame may copy the frame.
        let is_free = borrowed == 0 || superframes.available() > borrowed;
        match is_free.then(|| filled(superframes, rx, record, 0..record.bytes)).flatten() {
            Some(frame) => frame,
            None => take_chain(pool, rx, record)?,
        }
    };
    // The peer is another process on this machine, so nothing on the path can damage the bytes. So a partial
    // checksum is enough.
    let partial = record.marks & ring::PARTIAL_CHECKSUM != 0;
    frame.set_rx_checksum(if partial { Checksum::Partial } else { Checksum::Unknown });
    Some(frame)
}

/// Copies these bytes of the oldest record to a new buffer from `pool`. Returns `None` if `pool` is empty.
#[inline]
fn filled(pool: &Mempool, rx: &Consumer, record: Record, bytes: Range<usize>) -> Option<Mbuf> {
    let mut frame = pool.alloc_filled(0, bytes.len())?;
    // A new buffer has no other view, so `head_mut` succeeds.
    rx.copy(record, bytes.start, frame.head_mut()?);
    Some(frame)
}

/// Copies a record to a chain of buffers. Returns `None` if there are not enough free buffers.
#[cold]
fn take_chain(pool: &Mempool, rx: &Consumer, record: Record) -> Option<Mbuf> {
    let part = |start: usize| filled(pool, rx, record, start..record.bytes.min(start + pool.data_bytes()));
    let mut chain = part(0)?;
    while chain.len() < record.bytes {
        let next = part(chain.len())?;
        // Buffers have at least 2 KiB, so a chain has enough segments for any frame.
        chain.chain(next).ok()?;
    }
    Some(chain)
}

impl PortLayer for LocalPort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for LocalPort {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        if self.is_forked() {
            return 0;
        }
        if self.borrowed > 0 {
            self.give_back();
        }
        self.now_us = now_us;
        let before = frames.len();
        let mut left = RX_BYTES;
        let count = self.peers.list.len();
        let mut ended = None;
        for step in 0..count {
            let at = (self.turn + step) % count;
            match self.receive(at, &mut left, frames) {
                Received::Some => {}
                other => ended = Some((at, other)),
            }
        }
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
        match ended {
            None => {}
            Some((at, Received::Broken)) => self.end_broken(at),
            Some((at, _)) => self.peers.remove(at),
        }
        if self.peers.backlogged {
            self.flush(now_us);
        }
        let taken = frames.len() - before;
        self.idle_polls = if taken == 0 { self.idle_polls + 1 } else { 0 };
        if std::mem::take(&mut self.has_slept) {
            // If frames have ended the sleep, the caller answers them before the port reads the sockets.
            self.has_wake = taken > 0;
            self.look_at_us = if taken > 0 { now_us + ANSWER_US } else { 0 };
        }
        if now_us >= self.look_at_us || self.idle_polls >= LOOK_POLLS {
            self.look();
        }
        taken
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        let count = frames.len();
        if self.is_forked() {
            self.base.counters.tx_link_down += count as u64;
            frames.clear();
            return count;
        }
        if self.borrowed > 0 {
            self.give_back();
        }
        if self.peers.backlogged {
            self.flush(now_us);
        }
        // Usually `left` is empty, and nothing is moved.
        let mut left = Burst::new();
        for frame in frames.drain(..) {
            if !left.is_empty() {
                left.push(frame);
            } else if let Some(refused) = self.send(now_us, frame) {
                left.push(refused);
            }
        }
        self.publish_latest();
        let refused = left.len();
        if refused > 0 {
            self.base.counters.tx_ring_full += refused as u64;
            *frames = left;
        }
        count - refused
    }
}

impl Link for LocalPort {
    /// Stations can end, but the wire cannot go down, so the link is up. In a forked child the link is down.
    fn link_state(&mut self) -> LinkState {
        if self.is_forked() { LinkState::Down } else { LinkState::Up }
    }

    fn passes_large_frames(&self) -> bool {
        true
    }

    fn has_unsent(&self) -> bool {
        !self.is_forked() && self.peers.list.iter().any(|peer| !peer.waiting.is_empty())
    }

    fn next_departed(&mut self) -> Option<[u8; 6]> {
        let [high, low] = self.peers.next_departed()?.to_be_bytes();
        let [a, b, c, d] = MAC_PREFIX;
        Some([a, b, c, d, high, low])
    }
}

impl Sleep for LocalPort {
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_forked()).then(|| self.peers.epoll())
    }

    fn arm_wakeup(&mut self) -> bool {
        if self.is_forked() {
            return true;
        }
        // A message that has arrived since the last read of the sockets ends the sleep at once.
        if self.now_us >= self.look_at_us || self.has_wake {
            self.look();
        }
        self.each_ring(Consumer::mark_sleeping);
        wake::settle();
        let sleeps = !self.has_news();
        if !sleeps {
            self.each_ring(Consumer::mark_awake);
        }
        sleeps
    }

    fn disarm_wakeup(&mut self) {
        if self.is_forked() {
            return;
        }
        self.each_ring(Consumer::mark_awake);
        self.has_slept = true;
    }

    fn next_due_us(&self) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let departed = self.peers.has_departed().then_some(self.now_us);
        let space = self.peers.backlogged.then_some(self.now_us + SPACE_US);
        [self.peers.next_due_us(), departed, space].into_iter().flatten().min()
    }
}

impl Statistics for LocalPort {
    fn counters(&self) -> PortCounters {
        let counters = self.base.counters;
        // The port counts the bytes of a lent frame as sent when it lends the frame, and as lent later.
        let sent = counters.tx_bytes.saturating_sub(counters.tx_lent_bytes);
        let received = counters.rx_bytes.saturating_sub(counters.rx_borrowed_bytes);
        PortCounters { copied_bytes: sent + received, ..counters }
    }

    fn shared_memory_bytes(&self) -> u64 {
        self.peers.memory_bytes() as u64
    }
}

impl std::fmt::Debug for LocalPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalPort")
            .field("station", &self.station())
            .field("counters", &self.base.counters)
            .field("stations", &self.peers.counters)
            .finish_non_exhaustive()
    }
}

/// Makes the pool for bulk sending, in memory that the peers can read, so that the port lends long frames. If
/// the system cannot make such memory, the pool is on the heap, and all frames are copied.
pub(super) fn bulk_pool(name: &str, count: usize, data_bytes: usize) -> (Mempool, Option<Arc<PoolMemory>>) {
    let memory = backing_bytes(count, HEADROOM + data_bytes).map(PoolMemory::create);
    let Some(Ok(memory)) = memory else { return (Mempool::heap(name, count, data_bytes), None) };
    let memory = Arc::new(memory);
    let backing: Arc<dyn Backing> = Arc::<PoolMemory>::clone(&memory);
    (Mempool::backed(name, count, data_bytes, backing), Some(memory))
}

fn check(config: &LocalConfig) -> Result<(), LocalError> {
    let invalid = |why: String| Err(LocalError::Invalid(why));
    let LocalConfig { mtu, mbufs, bulk_mbufs, ring_bytes, .. } = *config;
    if mtu < 576 {
        return invalid(format!("an MTU of {mtu} is too small: choose at least 576"));
    }
    if mtu > DEFAULT_MTU {
        return invalid(format!("an MTU of {mtu} is too large: choose at most {DEFAULT_MTU}"));
    }
    if mbufs < 64 || bulk_mbufs < 8 {
        return invalid(format!(
            "{mbufs} buffers and {bulk_mbufs} large ones are too few: choose 64 and 8 or more"
        ));
    }
    if memory_bytes(ring_bytes as u64).is_none() {
        return invalid(format!(
            "rings of {ring_bytes} bytes cannot be made: choose a power of two from {} to {}",
            ring::MIN_RING_BYTES,
            ring::MAX_RING_BYTES
        ));
    }
    Ok(())
}
