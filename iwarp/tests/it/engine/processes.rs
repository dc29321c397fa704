//! Two processes have engines on a local wire, each in its own thread. In one test a process is killed; in
//! the other test an engine sleeps.
//!
//! The second process is this test program, which is started with the name of the ignored test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dp::local::{self, LocalConfig};
use iwarp::engine::{Engine, EngineConfig, EngineThread, ThreadOptions};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, ConnectionError, Context,
    ContextConfig, EventChannel, ProtectionDomain, QpInit, QpState, QueuePair, RecvRequest, SendOp,
    SendRequest, WcOpcode, WcStatus, WorkCompletion,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tcp_lite::{AddressProbing, CloseReason};
use testkit::folder::Folder;
use testkit::idle::are_idle;

const FOLDER: &str = "IWARP_TEST_FOLDER";
const PORT: u16 = 7174;
/// Maximum time for each step, even while other programs use the processors.
const PATIENCE: Duration = Duration::from_secs(20);

/// A wire for one test.
struct Wire(Folder);

impl Wire {
    fn new() -> Self {
        Self(Folder::absent("iwarp-processes"))
    }

    /// Starts the process of station 2, which listens.
    fn start_server(&self) -> Server {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "engine::processes::process_that_serves", "--nocapture"])
            .env(FOLDER, &*self.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server(child);
        let end = Instant::now() + PATIENCE;
        while !self.0.join("ready").exists() {
            assert!(Instant::now() < end, "no server");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }
}

struct Server(Child);

impl Server {
    /// Kills the process with SIGKILL, so that it runs no clean-up.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The engine of a process, in its own thread, and the objects of the process.
struct Host {
    context: Context,
    _engine: EngineThread,
    events: EventChannel,
    pd: ProtectionDomain,
    channel: CompletionChannel,
    cq: CompletionQueue,
}

impl Host {
    fn new(folder: &Path, station: u16) -> Self {
        let config =
            LocalConfig { station: Some(station), mbufs: 1024, ..LocalConfig::new(folder.to_owned()) };
        let port = Box::new(local::open(&config).unwrap());
        let context = Context::new(ContextConfig::default()).unwrap();
        let mut config = EngineConfig::new(&*port, &[&format!("100.64.0.{station}/10")]).unwrap();
        config.stack.derived_neighbors = Some([2, 0]);
        config.stack.address_probing = AddressProbing::Off;
        // An idle engine has no deadline, so only a frame can end its sleep. A dead peer is not detected.
        config.stack.tcp.keepalive_idle = None;
        let engine = Engine::new(&context, port, config).unwrap();
        let channel = context.create_comp_channel().unwrap();
        Self {
            _engine: engine.spawn(ThreadOptions::default()).unwrap(),
            events: context.create_event_channel().unwrap(),
            pd: context.alloc_pd().unwrap(),
            cq: context.create_cq(64, Some(&channel)).unwrap(),
            channel,
            context,
        }
    }

    fn qp(&self) -> QueuePair {
        self.pd.create_qp(&QpInit::new(&self.cq)).unwrap()
    }

    fn event(&self) -> CmEvent {
        self.events.wait(PATIENCE).unwrap().expect("an event in time")
    }

    /// Returns the next completion, and sleeps until there is one.
    fn completion(&self) -> WorkCompletion {
        loop {
            self.cq.req_notify(false).unwrap();
            if let Some(wc) = self.cq.poll_one() {
                return wc;
            }
            assert!(self.channel.wait(Some(PATIENCE)).unwrap() > 0, "no completion in time");
        }
    }

    /// Sleeps until there is an event or a completion. The time limit is longer than a test waits.
    fn sleep(&self) {
        let mut fds = [PollFd::new(&self.events, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::try_from(3 * PATIENCE).unwrap())).unwrap();
        self.channel.wait(Some(Duration::ZERO)).unwrap();
    }

    /// Begins a connection to the server.
    fn connect(&self) -> (QueuePair, CmId) {
        let (qp, id) = (self.qp(), self.context.create_id(&self.events));
        id.connect(&qp, format!("100.64.0.2:{PORT}").parse().unwrap(), &ConnParam::default()).unwrap();
        (qp, id)
    }
}

/// Accepts connections, and answers each Send with a Send of the same bytes on the last connection.
#[test]
#[ignore = "the second process"]
fn process_that_serves() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let host = Host::new(&folder, 2);
    let listener = host.context.create_id(&host.events);
    listener.listen(PORT, 8, PATIENCE).unwrap();
    let buffer = host.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    std::fs::write(folder.join("ready"), "").unwrap();
    let first = std::os::unix::process::parent_id();
    let mut connections = Vec::new();
    while std::os::unix::process::parent_id() == first {
        while let Some(event) = host.events.poll() {
            if let CmEventKind::ConnectRequest { .. } = event.kind {
                let qp = host.qp();
                qp.post_recv(&RecvRequest::new(0, buffer.sge(0, 64))).unwrap();
                event.id.accept(&qp, &ConnParam::default()).unwrap();
                connections.push((qp, event.id));
            }
        }
        host.cq.req_notify(false).unwrap();
        match host.cq.poll_one() {
            None => host.sleep(),
            Some(wc) if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv => {
                let (qp, _) = connections.last().unwrap();
                qp.post_recv(&RecvRequest::new(0, buffer.sge(0, 64))).unwrap();
                qp.post_send(&SendRequest::new(0, SendOp::Send, buffer.sge(0, wc.byte_len as usize)))
                    .unwrap();
            }
            Some(_) => {}
        }
    }
}

#[test]
fn a_killed_peer_ends_its_connections_at_once() {
    let wire = Wire::new();
    let mut server = wire.start_server();
    let host = Host::new(&wire.0, 1);
    let (qp, id) = host.connect();
    assert!(matches!(host.event().kind, CmEventKind::Established { .. }));
    let mr = host.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    qp.post_recv(&RecvRequest::new(1, mr.sge(0, 64))).unwrap();
    // The connection is idle, so only the wire's report can tell its end.
    std::thread::sleep(Duration::from_millis(50));
    server.kill();
    let event = host.event();
    let gone = Some(ConnectionError::Tcp(CloseReason::LinkDown));
    assert!(event.id == id && matches!(event.kind, CmEventKind::Disconnected { error, .. } if error == gone));
    let wc = host.completion();
    assert_eq!((wc.wr_id, wc.status, qp.state()), (1, WcStatus::WrFlushError, QpState::Error));

    // The station has no process any more. The wire reports this as well: a connection attempt that waits for
    // an answer ends with another error.
    let (_qp, _id) = host.connect();
    let unreachable = ConnectionError::Tcp(CloseReason::Unreachable);
    let event = host.event();
    assert!(
        matches!(event.kind, CmEventKind::ConnectError { error, .. } if error == unreachable),
        "{event:?}"
    );

    // A new process at the same station is a new peer.
    std::fs::remove_file(wire.0.join("ready")).unwrap();
    let _server = wire.start_server();
    let (_qp, _id) = host.connect();
    assert!(matches!(host.event().kind, CmEventKind::Established { .. }));
}

#[test]
fn an_idle_engine_uses_no_processor_and_a_message_wakes_it() {
    let wire = Wire::new();
    let server = wire.start_server();
    let host = Host::new(&wire.0, 1);
    let (qp, _id) = host.connect();
    assert!(matches!(host.event().kind, CmEventKind::Established { .. }));
    let mr = host.pd.reg_mr(128, Access::LOCAL_WRITE).unwrap();
    // The last frames get some time to arrive. After that nothing is under way.
    let rest = || std::thread::sleep(Duration::from_millis(500));
    rest();
    are_idle(Duration::from_secs(3), &[("the server", server.0.id())]).unwrap();
    // A sleeping engine has no deadline here, so it answers only if the message ends its sleep. Before the
    // first message the server certainly sleeps; on a busy machine it may stay awake before the others.
    for trip in 0..6 {
        mr.write_at(0, &[trip; 16]).unwrap();
        qp.post_recv(&RecvRequest::new(1, mr.sge(64, 64))).unwrap();
        qp.post_send(&SendRequest::new(2, SendOp::Send, mr.sge(0, 16))).unwrap();
        let got = [host.completion(), host.completion()].map(|wc| (wc.wr_id, wc.status));
        assert!(got.contains(&(1, WcStatus::Success)) && got.contains(&(2, WcStatus::Success)), "{got:?}");
        assert_eq!(mr.load_u8(64).unwrap(), trip);
        rest();
    }
}
