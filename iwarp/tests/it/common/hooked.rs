//! A port in front of another one, whose bursts a test can change.

use std::os::fd::BorrowedFd;

use dp::{Burst, LinkState, Mempool, Port, PortCounters, PortInfo};

/// Called in place of the port's methods. The default is to call the port.
pub(crate) trait Hooks: Send + 'static {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        port.rx_burst(now_us, frames)
    }

    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        port.tx_burst(now_us, frames)
    }

    fn next_due_us(&self, port: &dyn Port) -> Option<u64> {
        port.next_due_us()
    }
}

/// `port` with these hooks.
pub(crate) fn hooked(port: Box<dyn Port>, hooks: impl Hooks) -> Box<dyn Port> {
    Box::new(Hooked { port, hooks })
}

struct Hooked<H> {
    port: Box<dyn Port>,
    hooks: H,
}

impl<H: Hooks> Port for Hooked<H> {
    fn info(&self) -> &PortInfo {
        self.port.info()
    }

    fn mempool(&self) -> &Mempool {
        self.port.mempool()
    }

    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.hooks.rx_burst(&mut *self.port, now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.hooks.tx_burst(&mut *self.port, now_us, frames)
    }

    fn link_state(&mut self) -> LinkState {
        self.port.link_state()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn device_stats(&self) -> Option<dp::DeviceStats> {
        self.port.device_stats()
    }

    fn shared_memory_bytes(&self) -> u64 {
        self.port.shared_memory_bytes()
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.poll_fd()
    }

    fn arm_wakeup(&mut self) -> bool {
        self.port.arm_wakeup()
    }

    fn disarm_wakeup(&mut self) {
        self.port.disarm_wakeup();
    }

    fn tells_departures(&self) -> bool {
        self.port.tells_departures()
    }

    fn next_departed(&mut self) -> Option<[u8; 6]> {
        self.port.next_departed()
    }

    fn next_due_us(&self) -> Option<u64> {
        self.hooks.next_due_us(&*self.port)
    }
}
