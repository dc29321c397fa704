//! Two engines on a local wire, for tests of the callers that serve in place of an engine's thread.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use dp::local::{self, LocalConfig};
use dp::{Below, Burst, Link, Port, PortBase, PortLayer, Sleep as SleepOfPort, Statistics};
use rustix::event::{PollFd, PollFlags};
use tcp_lite::AddressProbing;
use testkit::folder::Folder;

use super::{SharedEngine, SharedOptions, Sleep, Waiting};
use crate::engine::{Engine, EngineConfig};
use crate::queues::wait_any;
use crate::verbs::{ConnParam, Context, ContextConfig, QpInit};

const LIMIT: Duration = Duration::from_secs(60);

/// The threads that have polled an engine, each as often as it has polled.
pub(super) type Polls = Arc<Mutex<Vec<ThreadId>>>;

pub(super) fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        thread::yield_now();
    }
}

/// An engine with a thread on a local wire, and another engine on this wire without a thread.
pub(super) struct Pair {
    pub(super) engine: SharedEngine,
    pub(super) polls: Polls,
    pub(super) other: SharedEngine,
    /// The time after each poll at which the first engine has to poll its port again, in microseconds.
    /// `u64::MAX`, which is the initial value, is never.
    pub(super) due_us: Arc<AtomicU64>,
    context: Context,
    _folder: Folder,
}

fn address(station: u8) -> Ipv4Addr {
    Ipv4Addr::new(100, 64, 0, station)
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(SharedOptions::default())
    }

    pub(super) fn with(options: SharedOptions) -> Self {
        let folder = Folder::absent("iwarp-waiters");
        let due_us = Arc::new(AtomicU64::new(u64::MAX));
        let port = |station| {
            let config = LocalConfig::new(folder.to_path_buf());
            let port = Box::new(local::open(&LocalConfig { station: Some(station), ..config }).unwrap());
            let due_us = if station == 1 { Arc::clone(&due_us) } else { Arc::new(AtomicU64::new(u64::MAX)) };
            Box::new(DuePort { port, due_us, polled_us: 0 })
        };
        let made = |station: u8| {
            let context = Context::new(ContextConfig::default()).unwrap();
            let port = port(u16::from(station));
            let mut config = EngineConfig::new(&*port, &[&format!("{}/10", address(station))]).unwrap();
            config.stack.derived_neighbors = Some([2, 0]);
            config.stack.address_probing = AddressProbing::Off;
            let engine = Engine::new(&context, port, config).unwrap();
            (context, engine)
        };
        let polls = Polls::default();
        let recorded = Arc::clone(&polls);
        let record = Box::new(move || recorded.lock().unwrap().push(thread::current().id()));
        let ((_, engine), (context, other)) = (made(1), made(2));
        Self {
            engine: SharedEngine::spawn(engine, options, record).unwrap(),
            polls,
            other: SharedEngine::without_thread(other, SharedOptions::default(), Box::new(|| {})).unwrap(),
            due_us,
            context,
            _folder: folder,
        }
    }

    /// Lets the other engine connect: its next polls send the SYN of a connection that the first engine
    /// refuses. Before the first SYN, the two ports exchange messages.
    pub(super) fn connect(&self) -> impl Sized + use<> {
        let pd = self.context.alloc_pd().unwrap();
        let cq = self.context.create_cq(16, None).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let channel = self.context.create_event_channel().unwrap();
        let id = self.context.create_id(&channel);
        let peer = (address(1), 4000).into();
        id.connect(&qp, peer, &ConnParam::default()).unwrap();
        (id, qp)
    }

    /// Makes the other engine send a frame, which wakes the caller that sleeps. The engine is awake
    /// afterwards.
    pub(super) fn receive(&self, wait: Waiting) {
        let _connecting = self.connect();
        until("the frame wakes nobody", || {
            self.other.turn();
            if !self.is_readable() {
                return false;
            }
            self.engine.end_sleep(wait);
            assert!(!self.is_asleep());
            let has_worked = self.engine.poll_waiting(wait);
            if !has_worked {
                self.sleep(wait);
            }
            has_worked
        });
    }

    /// Whether one of the descriptors of the first engine is readable.
    pub(super) fn is_readable(&self) -> bool {
        let inner = &self.engine.inner;
        let mut fds = [
            PollFd::new(inner.waiters.port().unwrap(), PollFlags::IN),
            PollFd::from_borrowed_fd(inner.handle.doorbells().waker(), PollFlags::IN),
        ];
        wait_any(&mut fds, Some(Duration::ZERO)).unwrap()
    }

    /// Polls until the caller may sleep.
    pub(super) fn sleep(&self, wait: Waiting) {
        until("the engine does not sleep", || {
            self.engine.poll_waiting(wait);
            matches!(self.engine.begin_sleep(wait), Sleep::OfEngine { .. })
        });
    }

    /// Serves as a task does, until the engine sleeps.
    pub(super) fn attend(&self) {
        self.engine.attend();
        until("the engine does not sleep", || {
            self.engine.turn();
            self.engine.settle()
        });
    }

    pub(super) fn polled_by_thread(&self) -> bool {
        self.polls.lock().unwrap().iter().any(|id| *id != thread::current().id())
    }

    /// Whether the thread polls again, although no caller asks for it.
    pub(super) fn thread_takes_over(&self) {
        self.polls.lock().unwrap().clear();
        until("nobody serves", || self.polled_by_thread());
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.engine.inner.asleep.load(Ordering::SeqCst)
    }
}

/// A port that has to be polled a certain time after each poll.
struct DuePort {
    port: Box<dyn Port>,
    due_us: Arc<AtomicU64>,
    polled_us: u64,
}

impl PortLayer for DuePort {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Port(&*self.port)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Port(&mut *self.port)
    }
}

impl Port for DuePort {
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.polled_us = now_us;
        self.port.rx_burst(now_us, frames)
    }

    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
        self.port.tx_burst(now_us, frames)
    }
}

impl SleepOfPort for DuePort {
    fn next_due_us(&self) -> Option<u64> {
        let due_us = self.polled_us.checked_add(self.due_us.load(Ordering::SeqCst));
        [self.port.next_due_us(), due_us].into_iter().flatten().min()
    }
}

impl Link for DuePort {}
impl Statistics for DuePort {}
