//! A port as smoltcp sees it: frames are read where they arrived, and built where they leave from.

use std::borrow::Cow;
use std::collections::VecDeque;

use dp::{Burst, Mbuf, Port};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;

/// A port, what has arrived at it, and what waits to leave.
pub struct PortDevice {
    port: Box<dyn Port>,
    rx: VecDeque<Mbuf>,
    tx: Burst,
}

impl PortDevice {
    /// Nothing has arrived yet.
    pub fn new(port: Box<dyn Port>) -> Self {
        Self { port, rx: VecDeque::new(), tx: Burst::new() }
    }

    /// Takes in what has arrived by now, and sends what waits as far as the port takes it. Returns whether
    /// any frame moved.
    pub fn poll_at(&mut self, now_us: u64) -> bool {
        let mut burst = Burst::new();
        let mut moved = false;
        while self.port.rx_burst(now_us, &mut burst) > 0 {
            moved = true;
            self.rx.extend(burst.drain(..));
        }
        moved | self.flush(now_us)
    }

    /// Sends what waits, as far as the port takes it. Returns whether any frame moved.
    pub fn flush(&mut self, now_us: u64) -> bool {
        !self.tx.is_empty() && self.port.tx_burst(now_us, &mut self.tx) > 0
    }

    /// Whether no more frames may be made before some leave.
    pub fn is_full(&self) -> bool {
        self.tx.is_full()
    }

    /// What waits to leave, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.tx.iter().map(bytes)
    }

    /// What has arrived and smoltcp has not taken yet, oldest first.
    pub fn arrived(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.rx.iter().map(bytes)
    }

    /// Drops those that have arrived for which `keep` is false, oldest first.
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8]) -> bool) {
        self.rx.retain(|frame| keep(&bytes(frame)));
    }

    /// Sends a frame that smoltcp has not made. It is lost where no buffer is free, as on a wire.
    pub fn send(&mut self, frame: &[u8]) {
        Tx(self).consume(frame.len(), |room| room.copy_from_slice(frame));
    }
}

/// A frame in one piece.
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

/// A frame that has arrived.
pub struct Rx(Mbuf);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&bytes(&self.0))
    }
}

/// A place for a frame to send.
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
        // No buffer: lost, as on a wire.
        build(&mut vec![0; len])
    }
}
