//! A port that wraps another port, so that a test can change the bursts of the wrapped port and the time of
//! its next frame.

use std::sync::Arc;

use dp::{Below, Burst, Link, Port, PortBase, PortLayer, Sleep, Statistics};

/// Methods that are called in place of the wrapped port's methods of the same names. The default methods call
/// the methods of the wrapped port.
pub trait Hooks: Send + 'static {
    /// Is called by [`Port::rx_burst`].
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        port.rx_burst(now_us, frames)
    }

    /// Is called by [`Port::tx_burst`].
    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        port.tx_burst(now_us, frames)
    }

    /// Is called by [`Sleep::next_due_us`].
    fn next_due_us(&self, port: &dyn Port) -> Option<u64> {
        port.next_due_us()
    }
}

/// Hooks that a port and a test share. The methods are those of [`Hooks`].
pub trait SharedHooks: Send + Sync + 'static {
    /// Is called by [`Port::rx_burst`].
    fn rx_burst(&self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        port.rx_burst(now_us, frames)
    }

    /// Is called by [`Port::tx_burst`].
    fn tx_burst(&self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        port.tx_burst(now_us, frames)
    }
}

impl<H: SharedHooks> Hooks for Arc<H> {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        (**self).rx_burst(port, now_us, frames)
    }

    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        (**self).tx_burst(port, now_us, frames)
    }
}

/// Wraps `port`, so that calls of `rx_burst`, `tx_burst` and `next_due_us` are calls of `hooks`.
pub fn hooked(port: Box<dyn Port>, hooks: impl Hooks) -> Box<dyn Port> {
    Box::new(Hooked { port, hooks })
}

struct Hooked<H> {
    port: Box<dyn Port>,
    hooks: H,
}

impl<H: Hooks> PortLayer for Hooked<H> {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl<H: Hooks> Port for Hooked<H> {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.hooks.rx_burst(&mut *self.port, now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.hooks.tx_burst(&mut *self.port, now_us, frames)
    }
}

impl<H: Hooks> Link for Hooked<H> {}
impl<H: Hooks> Statistics for Hooked<H> {}

impl<H: Hooks> Sleep for Hooked<H> {
    fn next_due_us(&self) -> Option<u64> {
        self.hooks.next_due_us(&*self.port)
    }
}
