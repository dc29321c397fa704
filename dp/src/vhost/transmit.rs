//! Frames to the driver, which are copied once: from packet buffers to the driver's buffers.

use arrayvec::ArrayVec;

use super::chain::{self, MAX_PIECES, Writer};
use super::control::notify;
use super::device::{Device, TO_DRIVER};
use super::memory::{Cursor, GuestMemory};
use super::receive::{MAX_FRAME_BYTES, Scratch};
use super::ring::{Broken, Ring};
use super::{features, header};
use crate::{Burst, Mbuf, Mempool, PortCounters, tso};

/// Maximum number of descriptor chains that a frame may fill.
const MAX_CHAINS: usize = MAX_PIECES;

/// Sends frames from the front of `frames`, until the ring is full. Frames that need a copy before they are
/// sent are copied to `pool`.
///
/// # Errors
/// [`Broken`] if the ring is broken.
pub(super) fn transmit(
    device: &mut Device,
    (mtu, pool): (u16, &Mempool),
    counters: &mut PortCounters,
    scratch: &mut Scratch,
    frames: &mut Burst,
) -> Result<(), Broken> {
    let features = device.features();
    let (memory, queue) = device.parts(TO_DRIVER);
    let Some(ring) = &mut queue.ring else { return Ok(()) };
    let mut driver = Driver { memory, ring, features, mtu, pool, counters, scratch };
    let mut sent = 0;
    let mut outcome = Ok(());
    while let Some(frame) = frames.get(sent) {
        match driver.send(frame) {
            Ok(true) => sent += 1,
            Ok(false) => break,
            Err(Broken) => {
                outcome = Err(Broken);
                break;
            }
        }
    }
    frames.drain(..sent);
    if ring.publish()
        && let Some(call) = &queue.call
    {
        notify(call);
    }
    outcome
}

/// The driver and what is needed to send to it.
struct Driver<'a> {
    memory: &'a GuestMemory,
    ring: &'a mut Ring,
    features: u64,
    mtu: u16,
    pool: &'a Mempool,
    counters: &'a mut PortCounters,
    scratch: &'a mut Scratch,
}

/// What has become of a frame.
enum Sent {
    Written,
    /// The ring has too few buffers.
    Full,
    /// The frame never fits the driver's buffers.
    Unsendable,
}

impl Driver<'_> {
    /// Sends a frame, or drops and counts a frame that cannot be sent. Returns `false` if the ring is full.
    #[inline]
    fn send(&mut self, frame: &Mbuf) -> Result<bool, Broken> {
        let offload = frame.tx_offload();
        let is_cut = offload.tso_segment_bytes > 0;
        let longest = if is_cut { MAX_FRAME_BYTES } else { usize::from(self.mtu) + 18 };
        if frame.len() > longest {
            self.counters.tx_dropped += 1;
            return Ok(true);
        }
        let lacks_checksum = offload.tcp_checksum && self.features & features::GUEST_CSUM == 0;
        if lacks_checksum || is_cut && !features::passes_large_frames(self.features) {
            return self.send_pieces(frame);
        }
        let sent = if frame.has_external() {
            // The bytes of external memory are not available as slices.
            match frame.deep_copy(self.pool) {
                Some(copy) => self.write(&copy)?,
                None => Sent::Unsendable,
            }
        } else {
            self.write(frame)?
        };
        Ok(self.count(&sent, frame.len()))
    }

    /// Counts a frame. Returns `false` if the ring is full.
    #[inline]
    fn count(&mut self, sent: &Sent, bytes: usize) -> bool {
        match sent {
            Sent::Written => {
                self.counters.tx_frames += 1;
                self.counters.tx_bytes += bytes as u64;
            }
            Sent::Full => return false,
            Sent::Unsendable => self.counters.tx_dropped += 1,
        }
        true
    }

    /// Sends a frame to a driver that does not accept its offloads: the pieces of the frame with all
    /// checksums. A piece for which there is no buffer is dropped.
    #[cold]
    fn send_pieces(&mut self, frame: &Mbuf) -> Result<bool, Broken> {
        if tso::pieces(frame) > usize::from(self.ring.waiting()?) {
            return Ok(false);
        }
        let mut outcome = Ok(());
        let pool = self.pool;
        tso::cut(frame, pool, |piece| {
            let Some(mut piece) = piece else {
                self.counters.tx_dropped += 1;
                return;
            };
            piece.set_tx_offload(crate::TxOffload::default());
            match self.write(&piece) {
                Ok(Sent::Full) => self.counters.tx_dropped += 1,
                Ok(sent) => {
                    self.count(&sent, piece.len());
                }
                Err(Broken) => outcome = Err(Broken),
            }
        });
        outcome.map(|()| true)
    }

    /// Copies a frame to the driver's buffers.
    #[inline]
    fn write(&mut self, frame: &Mbuf) -> Result<Sent, Broken> {
        let Self { memory, ring, features, scratch: Scratch { pieces, hint }, .. } = self;
        let header_bytes = header::bytes(*features);
        let total = header_bytes + frame.len();
        let waiting = ring.waiting()?;
        let mut chains = ArrayVec::<(u16, usize), MAX_CHAINS>::new();
        let mut room = 0;
        pieces.clear();
        while room < total {
            let nr = chains.len() as u16;
            if nr > 0 && *features & features::MRG_RXBUF == 0 || chains.is_full() {
                return Ok(Sent::Unsendable);
            }
            if nr == waiting {
                return Ok(Sent::Full);
            }
            let head = ring.head(nr)?;
            // A driver whose receive buffers are invalid cannot receive anything, so its ring counts as
            // broken.
            let bytes = chain::walk(ring, memory, (head, Writer::Device), hint, pieces)
                .map_err(|chain::Malformed| Broken)?;
            chains.push((head, bytes));
            room += bytes;
        }
        let mut cursor = Cursor::default();
        cursor.copy_in(memory, pieces, &header::make(frame, chains.len() as u16)[..header_bytes]);
        for segment in frame.segments() {
            cursor.copy_in(memory, pieces, segment);
        }
        let mut left = total;
        for (head, bytes) in chains {
            let written = bytes.min(left);
            ring.finish(head, written as u32);
            left -= written;
        }
        Ok(Sent::Written)
    }
}
