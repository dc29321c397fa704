//! A port as a smoltcp device. smoltcp builds each frame in the buffer in which it is sent. It reads a frame
//! in the buffer in which it arrived, but a frame in several buffers is copied first.

use std::borrow::Cow;
use std::collections::VecDeque;

use dp::{Burst, Mbuf, Port};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Length in bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;

/// A port, with received frames and frames to be sent.
pub struct PortDevice {
    port: Box<dyn Port>,
    rx: VecDeque<Mbuf>,
    tx: Burst,
}

impl PortDevice {
    /// Returns a device without frames.
    pub fn new(port: Box<dyn Port>) -> Self {
        Self { port, rx: VecDeque::new(), tx: Burst::new() }
    }

    /// Receives frames, and sends as many waiting frames as the port accepts. Returns whether any frame was
    /// received or sent.
    pub fn poll_at(&mut self, now_us: u64) -> bool {
        let mut burst = Burst::new();
        let mut moved = false;
        while self.port.rx_burst(now_us, &mut burst) > 0 {
            moved = true;
            self.rx.extend(burst.drain(..));
        }
        moved | self.flush(now_us)
    }

    /// Sends as many waiting frames as the port accepts. Returns whether any frame was sent.
    pub fn flush(&mut self, now_us: u64) -> bool {
        !self.tx.is_empty() && self.port.tx_burst(now_us, &mut self.tx) > 0
    }

    /// Whether a waiting frame has to be sent before another frame can be built.
    pub fn is_full(&self) -> bool {
        self.tx.is_full()
    }

    /// Returns the frames that wait to be sent, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.tx.iter().map(bytes)
    }

    /// Returns the received frames that smoltcp has not processed, oldest first.
    pub fn arrived(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.rx.iter().map(bytes)
    }

    /// Calls `keep` with each received frame, oldest first, and drops the frames for which `keep` returns
    /// `false`.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8]) -> bool) {
        self.rx.retain(|frame| keep(&bytes(frame)));
    }

    /// Sends a frame that smoltcp did not build. The frame is lost if no buffer is free, as it could be lost
    /// on a wire.
    pub fn send(&mut self, frame: &[u8]) {
        Tx(self).consume(frame.len(), |room| room.copy_from_slice(frame));
    }
}

/// Returns the bytes of a frame, contiguous.
fn bytes(frame: &Mbuf) -> Cow<'_, [u8]> {
    match frame.head() {
        head if head.len() == frame.len() => Cow::Borrowed(head),
        _ => Cow::Owned(frame.segments().flatten().copied().collect()),
    }
}

impl Device for PortDevice {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Rx, Tx<'_>)> {
        if self.is_full() {
            return None;
        }
        let frame = self.rx.pop_front()?;
        Some((Rx(frame), Tx(self)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Tx<'_>> {
        (!self.is_full()).then_some(Tx(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = usize::from(self.port.info().mtu) + ETHERNET_BYTES;
        capabilities
    }
}

/// A received frame that smoltcp can read.
pub struct Rx(Mbuf);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&bytes(&self.0))
    }
}

/// A device in which smoltcp can build a frame.
pub struct Tx<'a>(&'a mut PortDevice);

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, build: F) -> R {
        if let Some(mut frame) = self.0.port.mempool().alloc()
            && let Some(room) = frame.append(len)
        {
            let result = build(room);
            self.0.tx.push(frame);
            return result;
        }
        // No buffer is free, so the frame is lost, as it could be lost on a wire.
        build(&mut vec![0; len])
    }
}
