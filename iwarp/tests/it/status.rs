//! Tests the status that processes report, for example connections, queue pairs and memory. Also tests the
//! sockets of contexts and of dead processes.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig, EngineThread, ThreadOptions};
use iwarp::memory::Access;
use iwarp::status::{self, ProcessReport};
use iwarp::verbs::*;
use rustix::process::{Pid, Signal, kill_process};
use testkit::folder::Folder;

/// The folder of a test. The folder of the sockets is in it.
struct Parent(Folder);

impl Parent {
    fn new(name: &str) -> Self {
        Self(Folder::new(&format!("uwarp-status-{name}")))
    }

    fn sockets(&self) -> PathBuf {
        self.0.join(".status")
    }

    /// Returns the names of the files in the folder of the sockets.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sockets()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A host with an engine, and its objects.
struct Host {
    context: Context,
    engine: Option<Engine>,
    thread: Option<EngineThread>,
    channel: EventChannel,
    region: MemoryRegion,
    cq: CompletionQueue,
    qp: QueuePair,
}

impl Host {
    fn new(port: Box<dyn dp::Port>, address: &str) -> Self {
        let context = Context::new(ContextConfig::default()).unwrap();
        let config = EngineConfig::new(&*port, &[address]).unwrap();
        let engine = Some(Engine::new(&context, port, config).unwrap());
        let (pd, channel) = (context.alloc_pd().unwrap(), context.create_event_channel().unwrap());
        let region = pd.reg_mr(8192, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        Self { context, engine, thread: None, channel, region, cq, qp }
    }

    fn spawn(&mut self) {
        let engine = self.engine.take().unwrap();
        self.thread = Some(engine.spawn(ThreadOptions::default()).unwrap());
    }

    fn next_event(&self) -> CmEvent {
        self.channel.wait(PATIENCE).unwrap().expect("an event in time")
    }
}

/// Returns two hosts whose engines run in threads. The first host has written `bytes` bytes to the second
/// host, which listens.
fn connected(bytes: usize) -> ([Host; 2], CmId, CmId) {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let mut hosts = [Host::new(port_a, "10.0.0.1/24"), Host::new(port_b, "10.0.0.2/24")];
    hosts.iter_mut().for_each(Host::spawn);
    let [a, b] = &hosts;
    let listener = b.context.create_id(&b.channel);
    listener.listen(7471, 8, PATIENCE).unwrap();
    let id = a.context.create_id(&a.channel);
    id.connect(&a.qp, "10.0.0.2:7471".parse().unwrap(), &ConnParam::default()).unwrap();
    let request = b.next_event();
    request.id.accept(&b.qp, &ConnParam::default()).unwrap();
    assert!(matches!(a.next_event().kind, CmEventKind::Established { .. }));
    let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
    a.qp.post_send(&SendRequest::new(1, SendOp::Write { remote }, a.region.sge(0, bytes))).unwrap();
    let begun = std::time::Instant::now();
    let wc = loop {
        match a.cq.poll_one() {
            Some(wc) => break wc,
            None => assert!(begun.elapsed() < PATIENCE, "no completion"),
        }
    };
    assert_eq!(wc.status, WcStatus::Success);
    (hosts, listener, id)
}

/// Time limit for each step, which suffices even if other programs use the processors.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns all reports, as soon as every engine has answered.
fn answers(folder: &Parent) -> Vec<ProcessReport> {
    let begun = std::time::Instant::now();
    loop {
        let found = status::processes(&folder.sockets()).unwrap();
        let engines = || found.answered.iter().all(|report| report.silent_engines.is_empty());
        if found.silent.is_empty() && engines() {
            return found.answered;
        }
        assert!(begun.elapsed() < PATIENCE, "{found:?}");
    }
}

/// Returns all reports, sorted by the first address of the first engine.
fn reports(folder: &Parent) -> Vec<ProcessReport> {
    let mut reports = answers(folder);
    reports.sort_by_key(|report| report.engines[0].addresses.clone());
    reports
}

#[test]
fn a_context_shows_its_peers_bytes_and_memory() {
    let folder = Parent::new("shows");
    let (hosts, _listener, _id) = connected(5000);
    let sockets = hosts.each_ref().map(|host| status::serve(&host.context, &folder.sockets()).unwrap());
    let all = reports(&folder);
    let [a, b] = &all[..] else { panic!("{all:?}") };
    for (report, address) in [(a, "10.0.0.1/24"), (b, "10.0.0.2/24")] {
        assert_eq!(report.pid, std::process::id());
        assert_eq!((report.memory_regions, report.registered_bytes), (1, 8192));
        assert_eq!(report.engines[0].addresses[0], address);
        assert!(report.silent_engines.is_empty());
        assert!(report.engines[0].link_up && report.engines[0].mtu == 1500);
    }
    assert_eq!((&a.engines[0].listens[..], &b.engines[0].listens[..]), (&[][..], &[7471][..]));
    let [ours, theirs] = [a, b].map(|report| &report.engines[0].connections[0]);
    assert_eq!((ours.remote.to_string(), theirs.local), ("10.0.0.2:7471".into(), ours.remote));
    assert_eq!(ours.local, theirs.remote);
    let qp_nums = hosts.each_ref().map(|host| Some(host.qp.qp_num()));
    assert_eq!([ours.qp_num, theirs.qp_num], qp_nums);
    assert_eq!((ours.state.as_str(), ours.tcp_state.as_str()), ("established", "Established"));
    assert_eq!(ours.qp_state.as_deref(), Some("RTS"));
    assert!(ours.tx_bytes > 5000 && ours.tx_bytes < 6000, "{ours:?}");
    assert!(ours.cwnd > 0 && ours.rto_us > 0 && ours.mss > 1000, "{ours:?}");
    assert_eq!(a.engines[0].counters["uwarp_tx_fetched_bytes_total"], 5000);
    assert_eq!(a.engines[0].counters["uwarp_tcp_tx_retransmits_total"], ours.retransmits);
    assert!(a.engines[0].counters["uwarp_port_tx_bytes_total"] > 5000);
    for socket in &sockets {
        let metadata = fs::metadata(socket.path()).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o600);
    }
    assert_eq!(fs::metadata(folder.sockets()).unwrap().mode() & 0o7777, 0o700);
    drop(sockets);
    assert_eq!(folder.names(), [""; 0], "a socket is removed with its value");
}

#[test]
fn queue_pairs_are_listed_connected_or_not() {
    let folder = Parent::new("pairs");
    let (hosts, _listener, _id) = connected(100);
    let [host, _] = &hosts;
    let (pd, cq) = (host.context.alloc_pd().unwrap(), host.context.create_cq(16, None).unwrap());
    let idle = pd.create_qp(&QpInit { early_sends: true, ..QpInit::new(&cq) }).unwrap();
    let memory = pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..3 {
        idle.post_recv(&RecvRequest::new(wr_id, memory.sge(0, 64))).unwrap();
    }
    idle.post_send(&SendRequest::new(9, SendOp::Send, memory.sge(0, 64))).unwrap();
    let srq = pd.create_srq(&SrqInit::default()).unwrap();
    let shares = pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&cq) }).unwrap();
    let ud = QpInit { qp_type: QpType::Ud { max_message: 1024 }, ..QpInit::new(&cq) };
    let ud = pd.create_qp(&ud).unwrap();
    let uc = pd.create_qp(&QpInit { qp_type: QpType::Uc, ..QpInit::new(&cq) }).unwrap();
    let _socket = status::serve(&host.context, &folder.sockets()).unwrap();
    let listed = || {
        let report = reports(&folder).remove(0);
        let line = |qp: &status::QpReport| {
            let open = (qp.open_sends, qp.open_receives);
            (qp.qp_num, qp.qp_type.clone(), qp.qp_state.clone(), qp.protection_domain, qp.has_srq, open)
        };
        report.queue_pairs.iter().map(line).collect::<Vec<_>>()
    };
    let row = |qp: &QueuePair, state: &str, pd, has_srq, open| {
        let qp_type = match qp.qp_num() {
            number if number == ud.qp_num() => "UD",
            number if number == uc.qp_num() => "UC",
            _ => "RC",
        };
        (qp.qp_num(), qp_type.to_owned(), state.to_owned(), pd, has_srq, open)
    };
    let rows = [
        row(&host.qp, "RTS", 1, false, (0, 0)),
        row(&idle, "IDLE", 2, false, (1, 3)),
        row(&shares, "IDLE", 2, true, (0, 0)),
        row(&ud, "IDLE", 2, false, (0, 0)),
        row(&uc, "IDLE", 2, false, (0, 0)),
    ];
    assert_eq!(listed(), rows);
    drop(idle);
    assert_eq!(listed(), [&rows[..1], &rows[2..]].concat(), "one that is gone is not listed");
}

#[test]
fn an_engine_that_nobody_polls_is_named_and_asked_once() {
    let folder = Parent::new("silent");
    let mut host = Host::new(pair(&LinkConfig::default()).0, "10.0.0.1/24");
    let _socket = status::serve(&host.context, &folder.sockets()).unwrap();
    for _ in 0..3 {
        let found = status::processes(&folder.sockets()).unwrap();
        assert_eq!(found.answered[0].silent_engines, [0]);
        assert_eq!(found.answered[0].memory_regions, 1);
    }
    host.spawn();
    assert_eq!(answers(&folder)[0].engines.len(), 1);
}

#[test]
fn a_program_without_a_thread_polls_when_it_is_asked() {
    let folder = Parent::new("polls");
    let mut host = Host::new(pair(&LinkConfig::default()).0, "10.0.0.1/24");
    let engine = std::sync::Mutex::new(host.engine.take().unwrap());
    let poll = Box::new(move || {
        engine.lock().unwrap().poll();
    });
    let _socket = status::serve_while_idle(&host.context, &folder.sockets(), poll).unwrap();
    assert_eq!(reports(&folder)[0].engines[0].addresses[0], "10.0.0.1/24");
}

/// The engine reports a connection. The connection's queue pair is dropped before the report is complete, and
/// the report still has both.
#[test]
fn a_connection_that_is_shown_has_its_queue_pair() {
    let folder = Parent::new("both");
    let (port_a, port_b) = pair(&LinkConfig::default());
    let [mut a, mut b] = [Host::new(port_a, "10.0.0.1/24"), Host::new(port_b, "10.0.0.2/24")];
    b.spawn();
    let listener = b.context.create_id(&b.channel);
    listener.listen(7471, 8, PATIENCE).unwrap();
    let mut engine = a.engine.take().unwrap();
    let id = a.context.create_id(&a.channel);
    id.connect(&a.qp, "10.0.0.2:7471".parse().unwrap(), &ConnParam::default()).unwrap();
    let begun = std::time::Instant::now();
    let mut accepted = None;
    while !matches!(a.channel.poll().map(|event| event.kind), Some(CmEventKind::Established { .. })) {
        assert!(begun.elapsed() < PATIENCE, "not established");
        engine.poll();
        if let Some(request) = b.channel.poll() {
            if matches!(request.kind, CmEventKind::ConnectRequest { .. }) {
                request.id.accept(&b.qp, &ConnParam::default()).unwrap();
            }
            accepted = Some(request.id);
        }
    }
    let Host { context, qp, cq: _cq, region: _region, channel: _channel, .. } = a;
    let (number, of_context) = (qp.qp_num(), context.clone());
    let ends = std::sync::Mutex::new((engine, Some((qp, id))));
    let poll = Box::new(move || {
        let (engine, user) = &mut *ends.lock().unwrap();
        engine.poll();
        if let Some((qp, id)) = user.take() {
            id.abort();
            drop((qp, id));
        }
        while of_context.usage().qp.used > 0 && begun.elapsed() < PATIENCE {
            engine.poll();
        }
    });
    let _socket = status::serve_while_idle(&context, &folder.sockets(), poll).unwrap();
    let report = reports(&folder).remove(0);
    let connected: Vec<_> = report.engines[0].connections.iter().filter_map(|conn| conn.qp_num).collect();
    let listed: Vec<_> = report.queue_pairs.iter().map(|qp| qp.qp_num).collect();
    assert_eq!((connected, listed), (vec![number], vec![number]));
    assert_eq!(context.usage().qp.used, 0, "it is gone");
    drop(accepted);
}

#[test]
fn a_context_that_is_gone_is_not_kept_alive() {
    let folder = Parent::new("gone");
    let host = Host::new(pair(&LinkConfig::default()).0, "10.0.0.1/24");
    let context = host.context.clone();
    let socket = status::serve(&context, &folder.sockets()).unwrap();
    drop((host, context));
    let found = status::processes(&folder.sockets()).unwrap();
    assert_eq!(found.answered, []);
    drop(socket);
}

/// The environment variable that makes the test below act as the dying process, and that contains the path of
/// the socket.
const SOCKET_OF_DYING: &str = "UWARP_TEST_SOCKET_OF_DYING";

/// Listens at `path`, passes the socket to a child that outlives this process, and prints the child's process
/// ID.
fn leave_socket_to_child(path: &std::ffi::OsStr) {
    let socket = UnixListener::bind(path).unwrap();
    let mut sleep = Command::new("sleep");
    sleep.arg("60").stdin(OwnedFd::from(socket)).stdout(Stdio::null()).stderr(Stdio::null());
    println!("child {}", sleep.spawn().unwrap().id());
}

/// The child of a dead process.
struct Orphan(Pid);

impl Drop for Orphan {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Starts a process that binds a socket at `path`, starts a child that inherits the socket, and ends. Returns
/// the process ID of the dead process, and the child.
fn die_with_inherited_socket(path: &Path) -> (u32, Orphan) {
    let mut dying = Command::new(std::env::current_exe().unwrap());
    dying.args(["--exact", "status::sockets_of_dead_processes_are_removed", "--nocapture"]);
    let dying = dying.env(SOCKET_OF_DYING, path).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = dying.id();
    let output = dying.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let number = said.split_once("child ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    (pid, Orphan(number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("{output:?}"))))
}

#[test]
fn sockets_of_dead_processes_are_removed() {
    if let Some(path) = std::env::var_os(SOCKET_OF_DYING) {
        return leave_socket_to_child(&path);
    }
    let folder = Parent::new("dead");
    let host = Host::new(pair(&LinkConfig::default()).0, "10.0.0.1/24");
    let _socket = status::serve(&host.context, &folder.sockets()).unwrap();
    // This is the socket of a killed process, on which no process listens any more.
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let dead = child.id();
    child.kill().unwrap();
    child.wait().unwrap();
    let path = folder.sockets().join(format!("{dead}-0.status"));
    drop(UnixListener::bind(&path).unwrap());
    status::processes(&folder.sockets()).unwrap();
    assert!(!path.exists(), "found by a client");
    // This is the socket of a dead process. A child of the dead process still has the descriptor, and answers
    // nothing. The peer credentials of the socket are those of the dead process. The name of the socket has
    // the process ID of this process, as the name of a process in another PID namespace may.
    let path = folder.sockets().join(format!("{}-7.status", std::process::id()));
    let (pid, orphan) = die_with_inherited_socket(&path);
    assert!(path.exists(), "{pid}");
    assert_eq!(status::processes(&folder.sockets()).unwrap().silent, [0; 0]);
    assert!(!path.exists(), "process {pid} is dead");
    drop((orphan, UnixListener::bind(&path).unwrap()));
    let _second = status::serve(&host.context, &folder.sockets()).unwrap();
    assert!(!path.exists(), "found by a server");
    assert_eq!(folder.names().len(), 2, "each context has a socket");
}

#[test]
fn the_socket_of_a_process_that_lives_and_does_not_answer_stays() {
    let folder = Parent::new("lives");
    let host = Host::new(pair(&LinkConfig::default()).0, "10.0.0.1/24");
    drop(status::serve(&host.context, &folder.sockets()).unwrap());
    // The name has a process ID that no process has here, as the name of a process in another PID namespace
    // may.
    let path = folder.sockets().join("999999999-0.status");
    let _silent = UnixListener::bind(&path).unwrap();
    assert_eq!(status::processes(&folder.sockets()).unwrap().silent, [std::process::id()]);
    assert!(path.exists());
}

#[test]
fn a_folder_that_others_may_enter_is_refused() {
    let folder = Parent::new("open");
    fs::create_dir(folder.sockets()).unwrap();
    fs::set_permissions(folder.sockets(), fs::Permissions::from_mode(0o755)).unwrap();
    let host = Host::new(pair(&LinkConfig::default()).0, "10.0.0.1/24");
    let error = status::serve(&host.context, &folder.sockets()).err().expect("an error").to_string();
    assert!(error.contains(".status") && error.contains("755"), "{error}");
    assert!(status::processes(&folder.sockets()).is_err());
}
