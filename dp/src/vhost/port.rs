//! A [`Port`] on a vhost-user socket.

use std::os::fd::BorrowedFd;

use super::config::{VhostConfig, VhostError};
use super::control::{Control, Shared};
use super::device::{Device, FROM_DRIVER};
use super::receive::{self, MAX_FRAME_BYTES, Scratch};
use super::ring::{Broken, Ring};
use super::socket::Socket;
use super::{features, transmit};
use crate::local::fork;
use crate::{
    Below, Burst, Link, LinkState, Mempool, Offloads, Port, PortBase, PortInfo, PortLayer, Sleep, Statistics,
};

/// Number of bytes of an Ethernet header with a VLAN tag.
const L2_BYTES: usize = 18;

/// Minimum number of bytes of a buffer in the pool. Devices usually have the same minimum.
const MIN_MBUF_BYTES: usize = 2048;

/// Minimum number of bytes of a buffer for bulk sending.
const BULK_BYTES: usize = 32 << 10;

/// Number of bytes of a buffer for a received superframe.
const SUPERFRAME_BYTES: usize = MAX_FRAME_BYTES.next_multiple_of(64);

/// The device side of a vhost-user socket. [`open`](super::open) makes the port.
pub struct VhostPort {
    control: Control,
    base: PortBase,
    superframes: Mempool,
    scratch: Scratch,
    state: LinkState,
    /// [`Shared::changes`] when the link was last checked.
    seen_changes: u32,
    /// The fork generation of the process that opened the port. In a forked child the port does nothing.
    generation: u32,
}

impl VhostPort {
    pub(super) fn open(config: &VhostConfig) -> Result<Self, VhostError> {
        config.check()?;
        fork::watch_for_forks();
        let mac = match config.mac {
            Some(mac) => mac,
            None => random_mac()?,
        };
        let offered = features::offered(config.offloads);
        let shared = Shared::new(Device::new(offered, config.needs_seals));
        let shared = shared.map_err(VhostError::System)?;
        let socket = Socket::listen(&config.path)?;
        let control = Control::start(shared, socket).map_err(VhostError::System)?;
        let always = Offloads::TX_MULTI_SEGMENT | Offloads::RX_SCATTER | Offloads::TX_TCP_CHECKSUM;
        let offloads = always | config.offloads & (Offloads::RX_TCP_CHECKSUM | Offloads::RX_LRO);
        let name = format!("vhost:{}", config.path.display());
        let frame_bytes = (usize::from(config.mtu) + L2_BYTES).next_multiple_of(64);
        let pool = Mempool::heap(&name, config.mbufs, frame_bytes.max(MIN_MBUF_BYTES));
        let bulk = Mempool::heap(&name, config.bulk_mbufs, frame_bytes.max(BULK_BYTES));
        let superframes = Mempool::heap(&name, config.bulk_mbufs, SUPERFRAME_BYTES);
        let info = PortInfo { point_to_point: true, ..PortInfo::new(name, mac, config.mtu, offloads) };
        Ok(Self {
            control,
            base: PortBase { bulk_mempool: Some(bulk), ..PortBase::new(info, pool) },
            superframes,
            scratch: Scratch::default(),
            state: LinkState::Down,
            seen_changes: 0,
            generation: fork::generation(),
        })
    }

    fn is_forked(&self) -> bool {
        self.generation != fork::generation()
    }

    fn check_link(&mut self) -> LinkState {
        self.seen_changes = self.control.shared.changes();
        let state = if self.control.shared.is_up() { LinkState::Up } else { LinkState::Down };
        if state != self.state {
            self.state = state;
            self.base.counters.link_changes += 1;
        }
        state
    }

    /// Calls `act` for the ring from which the port receives. Returns `None` if the rings may not be used, or
    /// if the ring is broken.
    fn with_ring<T>(&mut self, act: impl FnOnce(&Ring) -> Result<T, Broken>) -> Option<T> {
        let shared = &self.control.shared;
        let mut device = shared.enter()?;
        match act(device.parts(FROM_DRIVER).1.ring.as_ref()?) {
            Ok(value) => Some(value),
            Err(Broken) => {
                self.base.counters.rx_errors += 1;
                shared.end_broken(device);
                None
            }
        }
    }
}

/// Makes a random unicast address that no manufacturer has assigned.
fn random_mac() -> Result<[u8; 6], VhostError> {
    let mut mac = [0; 6];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut mac[..], flags).map_err(|errno| VhostError::System(errno.into()))?;
    mac[0] = mac[0] & 0xfc | 0x02;
    Ok(mac)
}

impl Drop for VhostPort {
    fn drop(&mut self) {
        if self.is_forked() {
            self.control.forget();
        }
    }
}

impl PortLayer for VhostPort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(&self.base)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(&mut self.base)
    }
}

impl Port for VhostPort {
    fn rx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        if self.is_forked() {
            return 0;
        }
        let shared = &self.control.shared;
        let Some(mut device) = shared.enter() else { return 0 };
        let before = frames.len();
        let Self { base: PortBase { mempool, counters, .. }, superframes, scratch, .. } = self;
        if let Err(Broken) = receive::receive(&mut device, (mempool, superframes), counters, scratch, frames)
        {
            counters.rx_errors += 1;
            shared.end_broken(device);
        }
        frames.len() - before
    }

    fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let given = frames.len();
        if given == 0 {
            return 0;
        }
        let shared = &self.control.shared;
        if self.is_forked() || !shared.is_up() {
            self.base.counters.tx_link_down += given as u64;
            frames.clear();
            return given;
        }
        // If the thread changes the device, the frames wait for the next call.
        if let Some(mut device) = shared.enter() {
            let Self { base: PortBase { info, mempool, counters, .. }, scratch, .. } = self;
            let outcome = transmit::transmit(&mut device, (info.mtu, mempool), counters, scratch, frames);
            if let Err(Broken) = outcome {
                counters.tx_link_down += frames.len() as u64;
                frames.clear();
                shared.end_broken(device);
            }
        }
        self.base.counters.tx_ring_full += frames.len() as u64;
        given - frames.len()
    }
}

impl Link for VhostPort {
    fn link_state(&mut self) -> LinkState {
        if self.is_forked() { LinkState::Down } else { self.check_link() }
    }

    fn passes_large_frames(&self) -> bool {
        self.control.shared.passes_large_frames()
    }
}

impl Sleep for VhostPort {
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_forked()).then(|| self.control.shared.epoll())
    }

    fn arm_wakeup(&mut self) -> bool {
        if self.is_forked() {
            return true;
        }
        self.control.shared.clear_events();
        let has_changed = self.control.shared.changes() != self.seen_changes;
        if self.check_link() != LinkState::Up {
            return !has_changed;
        }
        // If the thread changes the device now, the caller polls instead of sleeping.
        self.with_ring(Ring::ask_for_notification).unwrap_or(false) && !has_changed
    }

    fn disarm_wakeup(&mut self) {
        if self.is_forked() {
            return;
        }
        self.with_ring(|ring| {
            ring.refuse_notifications();
            Ok(())
        });
        self.check_link();
    }
}

impl Statistics for VhostPort {}

impl std::fmt::Debug for VhostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostPort")
            .field("info", &self.base.info)
            .field("state", &self.state)
            .field("counters", &self.base.counters)
            .finish_non_exhaustive()
    }
}
