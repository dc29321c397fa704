//! The host under attack: an engine with a server that accepts every client. `cpu_ns` is the processor time
//! that the engine and the server use on their thread.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub use hosts::PORT;
use hosts::{Host, context};
use iwarp::engine::EngineConfig;
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, ConnParam, Context, ListenOptions, ListenerStats, MemoryRegion,
    ProtectionDomain, QpInit, QueuePair,
};
use rustix::time::{ClockId, clock_gettime};
use tcp_lite::Instant;

use super::counted::NextTo;
use super::far_end::{FarEnd, port_with_far_end};
use super::honest::Served;

/// The victim's address.
pub const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The honest client's address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
/// The address of the router, behind which the attacker is.
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
/// Length in bytes of the region lent to strangers.
pub const LENT: usize = 64 << 10;
/// Maximum number of Reads that a stranger may have outstanding.
pub const STRANGERS_IRD: u16 = 8;
/// Value of every byte of the lent region.
pub const LENT_BYTE: u8 = 0x5a;

/// The host under attack.
pub struct Victim {
    /// The victim's engine, and the protection domain and the completion queue of strangers.
    pub host: Host,
    /// Delivers frames to the victim's port, and receives the frames that the victim sends.
    pub far_end: FarEnd,
    listener: CmId,
    honest_domain: ProtectionDomain,
    /// The region lent to strangers.
    pub lent: MemoryRegion,
    strangers: HashMap<usize, Stranger>,
    next_stranger: usize,
    /// The honest connections that the victim has accepted.
    pub served: Vec<Served>,
    clock: Clock,
    /// Processor time so far by the victim's clock, in nanoseconds.
    pub cpu_ns: u64,
    /// If set, the polls of the victim run in the function whose instructions callgrind counts.
    pub counted: Option<NextTo>,
    /// Number of connections of strangers that ended by each kind of Terminate. The key: whether the peer
    /// sent the Terminate, layer, type and code.
    pub ends: HashMap<(bool, u8, u8, u8), u64>,
}

/// The clock by which a poll is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The processor time of the thread.
    Processor,
    /// A fixed time for each poll and for each frame, which is the same in every run.
    Nominal,
}

/// Time of a poll in nanoseconds, by [`Clock::Nominal`].
const NOMINAL_TURN_NS: u64 = 300;
/// Time of a received or sent frame in nanoseconds, by [`Clock::Nominal`].
const NOMINAL_FRAME_NS: u64 = 500;

/// A connection of a stranger.
struct Stranger {
    id: CmId,
    _qp: QueuePair,
}

impl Victim {
    /// Creates the host, which listens. `configure` changes the default configuration of the engine and of
    /// the listener.
    pub fn new(configure: &dyn Fn(&mut EngineConfig, &mut ListenOptions), clock: Clock) -> Self {
        let (port, far_end) = port_with_far_end("victim", [2, 0, 0, 0, 0, 1]);
        let mut options = ListenOptions::new(PORT);
        let host = Host::new(context([1; 32]), port, &[&format!("{VICTIM}/24")], 1 << 16, |config| {
            config.stack.gateways.push(IpAddr::V4(ROUTER).into());
            config.stack.seed = [1; 32];
            configure(config, &mut options);
        });
        let listener = host.context.create_id(&host.channel);
        listener.listen_with(&options).expect("a free port");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let lent = host.pd.reg_mr(LENT, rights).expect("a region");
        lent.write_at(0, &[LENT_BYTE; LENT]).expect("within the region");
        Self {
            honest_domain: host.context.alloc_pd().expect("a domain"),
            host,
            far_end,
            listener,
            lent,
            strangers: HashMap::new(),
            next_stranger: 0,
            served: Vec::new(),
            clock,
            cpu_ns: 0,
            counted: None,
            ends: HashMap::new(),
        }
    }

    /// Polls the engine, and lets the server handle the events. Returns whether there was anything to do.
    pub fn poll(&mut self, now: Instant) -> bool {
        let start = self.elapsed_ns();
        let (mut busy, counted) = (false, self.counted);
        let mut poll = || {
            busy = self.host.engine.poll_at(now);
            while let Some(event) = self.host.channel.poll() {
                self.on_event(event);
            }
        };
        match counted {
            None => poll(),
            Some(beside) => beside.count(&mut poll),
        }
        self.cpu_ns += self.elapsed_ns() - start;
        if self.clock == Clock::Nominal {
            self.cpu_ns += NOMINAL_TURN_NS;
        }
        busy
    }

    /// Returns the time of the clock, in nanoseconds.
    fn elapsed_ns(&self) -> u64 {
        match self.clock {
            Clock::Processor => thread_ns(),
            Clock::Nominal => self.far_end.frames() * NOMINAL_FRAME_NS,
        }
    }

    fn on_event(&mut self, event: CmEvent) {
        match event.kind {
            CmEventKind::ConnectRequest { remote, .. } if remote.ip() == IpAddr::V4(CLIENT) => {
                let cq = self.host.context.create_cq(512, None).expect("a queue");
                self.served.push(Served::accept(&self.honest_domain, cq, event.id));
            }
            CmEventKind::ConnectRequest { .. } => self.take_stranger(event.id),
            CmEventKind::Disconnected { .. } | CmEventKind::ConnectError { .. } => {
                self.drop_stranger(&event.id)
            }
            _ => {}
        }
    }

    fn take_stranger(&mut self, id: CmId) {
        let init = QpInit { max_send_wr: 8, max_recv_wr: 8, ..QpInit::new(&self.host.cq) };
        let qp = self.host.pd.create_qp(&init).expect("within the limits of the context");
        let param = ConnParam { responder_resources: STRANGERS_IRD, ..ConnParam::default() };
        if id.accept(&qp, &param).is_ok() {
            self.strangers.insert(qp.qp_num() as usize, Stranger { id, _qp: qp });
            self.next_stranger += 1;
        }
    }

    fn drop_stranger(&mut self, id: &CmId) {
        let Some(qp) = id.qp() else { return };
        if let Some(error) = qp.error() {
            *self.ends.entry((error.from_peer, error.layer, error.etype, error.code)).or_default() += 1;
        }
        self.strangers.remove(&(qp.qp_num() as usize));
    }

    /// Returns the number of strangers' connections that the server holds, and the number of strangers'
    /// connections that it has accepted so far.
    pub fn strangers(&self) -> (usize, usize) {
        (self.strangers.len(), self.next_stranger)
    }

    /// Returns the identifiers of the strangers' connections.
    pub fn stranger_ids(&self) -> impl Iterator<Item = &CmId> {
        self.strangers.values().map(|stranger| &stranger.id)
    }

    /// Returns the listener's counters.
    pub fn listener_stats(&self) -> ListenerStats {
        self.listener.listener_stats().expect("it listens")
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        &self.host.context
    }

    /// Returns the number of packet buffers.
    pub fn buffers(&self) -> usize {
        self.host.pool.capacity()
    }

    /// Whether the region lent to strangers is unchanged.
    pub fn lent_is_whole(&self) -> bool {
        let mut bytes = vec![0; LENT];
        self.lent.read_at(0, &mut bytes).is_ok() && bytes.iter().all(|byte| *byte == LENT_BYTE)
    }
}

/// The default time limit for the Request of a connection to the listener.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the processor time of this thread, in nanoseconds.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither `tv_sec` nor `tv_nsec` is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
