//! A port as smoltcp sees it. Frames are read where they arrived, and built where they leave from.

use std::collections::VecDeque;

use dp::{BURST, Burst, Mbuf, Port};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Octets of an Ethernet header.
const ETHERNET_OCTETS: usize = 14;

pub(super) struct Wire {
    port: Box<dyn Port>,
    now_us: u64,
    received: Burst,
    rx: VecDeque<Mbuf>,
    tx: Burst,
}

impl Wire {
    pub(super) fn new(port: Box<dyn Port>) -> Self {
        Self { port, now_us: 0, received: Burst::new(), rx: VecDeque::with_capacity(BURST), tx: Burst::new() }
    }

    pub(super) fn set_now_us(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// Sends what waits, as far as the wire takes it.
    pub(super) fn flush(&mut self) {
        if !self.tx.is_empty() {
            self.port.tx_burst(self.now_us, &mut self.tx);
        }
    }

    /// Whether one more frame may be built.
    fn has_room(&mut self) -> bool {
        if self.tx.is_full() {
            self.flush();
        }
        !self.tx.is_full()
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Rx, Tx<'_>)> {
        if !self.has_room() {
            return None;
        }
        if self.rx.is_empty() {
            self.port.rx_burst(self.now_us, &mut self.received);
            self.rx.extend(self.received.drain(..));
        }
        let frame = self.rx.pop_front()?;
        Some((Rx(frame), Tx(self)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Tx<'_>> {
        self.has_room().then_some(Tx(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = usize::from(self.port.info().mtu) + ETHERNET_OCTETS;
        capabilities
    }
}

pub(super) struct Rx(Mbuf);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        // Its peer builds frames in one piece.
        take(self.0.head())
    }
}

pub(super) struct Tx<'a>(&'a mut Wire);

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, octets: usize, build: F) -> R {
        if let Some(mut frame) = self.0.port.mempool().alloc()
            && let Some(room) = frame.append(octets)
        {
            let result = build(room);
            self.0.tx.push(frame);
            return result;
        }
        // No buffer: lost, as on a wire.
        build(&mut vec![0; octets])
    }
}
