//! Tests of ports as layers: if a wrapper does not define a function, the wrapped port receives the calls of
//! this function.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::*;
use crate::impaired::{Impaired, Impairment};
use crate::loopback::Loopback;
use crate::pcap::Tap;

/// Calls a function of a port, and describes the answer.
type Question = fn(&mut dyn Port) -> String;

/// Each function of a port, with a closure that calls the function. [`Unusual`] and [`PortBase`] give
/// different answers to each call.
const FUNCTIONS: [(&str, Question); 17] = [
    ("info", |port| format!("{:?}", port.info())),
    ("mempool", |port| format!("{:?}", port.mempool())),
    ("bulk_mempool", |port| format!("{:?}", port.bulk_mempool())),
    ("rx_burst", |port| {
        let mut frames = Burst::new();
        format!("{} {}", port.rx_burst(5, &mut frames), frames.len())
    }),
    ("tx_burst", |port| {
        let frame = || Mempool::heap("sender", 1, 64).alloc().unwrap();
        let mut frames: Burst = [frame(), frame()].into_iter().collect();
        format!("{} {}", port.tx_burst(5, &mut frames), frames.len())
    }),
    ("set_groups", |port| format!("{:?}", port.set_groups(&[]).map_err(|error| error.kind()))),
    ("link_state", |port| format!("{:?}", port.link_state())),
    ("passes_large_frames", |port| format!("{}", port.passes_large_frames())),
    ("has_unsent", |port| format!("{}", port.has_unsent())),
    ("next_departed", |port| format!("{:?}", port.next_departed())),
    ("poll_fd", |port| format!("{:?}", port.poll_fd().map(|fd| fd.as_raw_fd()))),
    ("arm_wakeup", |port| format!("{}", port.arm_wakeup())),
    ("disarm_wakeup", |port| {
        let before = port.next_due_us();
        port.disarm_wakeup();
        format!("{}", before == port.next_due_us())
    }),
    ("next_due_us", |port| format!("{:?}", port.next_due_us())),
    ("counters", |port| format!("{:?}", port.counters())),
    ("device_stats", |port| format!("{:?}", port.device_stats())),
    ("shared_memory_bytes", |port| format!("{}", port.shared_memory_bytes())),
];

/// A port whose answers all differ from the answers of a [`PortBase`].
struct Unusual {
    info: PortInfo,
    pools: [Mempool; 2],
    file: Arc<OwnedFd>,
    due_us: u64,
}

impl Unusual {
    /// Makes a port with this descriptor. Several ports with the same descriptor give the same answers.
    fn new(file: &Arc<OwnedFd>) -> Self {
        let info = PortInfo {
            tells_departures: true,
            point_to_point: true,
            ..PortInfo::new("unusual", [9; 6], 9000, Offloads::TX_TSO | Offloads::RX_LRO)
        };
        let pools = [3, 2].map(|count| Mempool::heap("unusual", count, 128));
        Self { info, pools, file: Arc::clone(file), due_us: 7 }
    }
}

impl PortLayer for Unusual {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        unreachable!("all functions are defined")
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        unreachable!("all functions are defined")
    }
}

#[deny(clippy::missing_trait_methods)]
impl Port for Unusual {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn mempool(&self) -> &Mempool {
        &self.pools[0]
    }

    fn bulk_mempool(&self) -> Option<&Mempool> {
        Some(&self.pools[1])
    }

    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        assert_eq!(now_us, 5);
        frames.extend(self.pools[0].alloc());
        frames.len()
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        assert_eq!(now_us, 5);
        drop(frames.remove(0));
        1
    }

    fn set_groups(&mut self, _groups: &[IpAddr]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[deny(clippy::missing_trait_methods)]
impl Link for Unusual {
    fn link_state(&mut self) -> LinkState {
        LinkState::Gone
    }

    fn passes_large_frames(&self) -> bool {
        true
    }

    fn has_unsent(&self) -> bool {
        true
    }

    fn next_departed(&mut self) -> Option<[u8; 6]> {
        Some([8; 6])
    }
}

#[deny(clippy::missing_trait_methods)]
impl Sleep for Unusual {
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn arm_wakeup(&mut self) -> bool {
        false
    }

    fn disarm_wakeup(&mut self) {
        self.due_us += 1;
    }

    fn next_due_us(&self) -> Option<u64> {
        Some(self.due_us)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Statistics for Unusual {
    fn counters(&self) -> PortCounters {
        PortCounters { rx_dropped: 3, tx_frames: 4, ..PortCounters::default() }
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        Some(DeviceStats::new(|| vec![DeviceStat { name: "unusual".into(), value: 6 }]))
    }

    fn shared_memory_bytes(&self) -> u64 {
        10
    }
}

/// A wrapper that defines only the required functions.
struct Plain(Box<dyn Port>);

impl PortLayer for Plain {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.0)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.0)
    }
}

impl Port for Plain {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.0.rx_burst(now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.0.tx_burst(now_us, frames)
    }
}

impl Link for Plain {}
impl Sleep for Plain {}
impl Statistics for Plain {}

/// Makes each wrapper of this crate, and wrappers that define no optional function. Each wrapper wraps a port
/// from `make`.
fn wrappers(make: &dyn Fn() -> Box<dyn Port>) -> [(&'static str, Box<dyn Port>); 5] {
    let tap = Tap::new(make(), Box::new(io::sink()), Some(0)).unwrap();
    [
        ("Plain", Box::new(Plain(make()))),
        ("Plain in Plain", Box::new(Plain(Box::new(Plain(make()))))),
        ("Tap", Box::new(tap)),
        ("Loopback", Box::new(Loopback::new(make()))),
        ("Impaired", Box::new(Impaired::new(make(), Impairment::default()))),
    ]
}

#[test]
fn a_wrapper_gives_every_answer_through() {
    let file = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
    let unusual = || Box::new(Unusual::new(&file)) as Box<dyn Port>;
    for (function, question) in FUNCTIONS {
        let (answer, usual) = (question(&mut *unusual()), question(&mut base()));
        assert_ne!(answer, usual, "{function}: the answer tells which port has given it");
        for (wrapper, mut port) in wrappers(&unusual) {
            assert_eq!(question(&mut *port), answer, "{function} of {wrapper}");
        }
        // Repeats the check with wrappers around a base.
        for (wrapper, mut port) in wrappers(&|| Box::new(base())) {
            assert_eq!(question(&mut *port), usual, "{function} of {wrapper}");
        }
    }
}

fn base() -> PortBase {
    PortBase::new(PortInfo::new("base", [2; 6], 1500, Offloads::empty()), Mempool::heap("base", 5, 64))
}

/// Checks that [`FUNCTIONS`] has all functions, so that nobody forgets to add a new function.
#[test]
fn every_function_of_a_port_is_asked() {
    let mut functions = Vec::new();
    let mut is_in_part = false;
    for line in include_str!("../port.rs").lines() {
        if line.starts_with("pub trait ") {
            is_in_part = !line.contains("PortLayer: ");
        } else if line == "}" {
            is_in_part = false;
        }
        let function = line.strip_prefix("    fn ").and_then(|rest| rest.split_once('('));
        functions.extend(function.filter(|_| is_in_part).map(|(name, _)| name));
    }
    assert_eq!(functions, FUNCTIONS.map(|(function, _)| function));
}

#[test]
fn a_base_drops_and_counts() {
    let mut port = base();
    let mut frames: Burst = (0..3).map(|_| port.mempool.alloc().unwrap()).collect();
    assert_eq!((port.tx_burst(0, &mut frames), frames.len()), (3, 0));
    assert_eq!(port.counters(), PortCounters { tx_link_down: 3, ..PortCounters::default() });
    assert_eq!((port.mempool.available(), port.rx_burst(0, &mut frames)), (5, 0));
    assert_eq!((port.link_state(), port.passes_large_frames()), (LinkState::Down, false));
    assert!(port.arm_wakeup() && port.next_due_us().is_none(), "a thread may sleep");
    assert!(!port.info().point_to_point && !port.info().tells_departures);
}
