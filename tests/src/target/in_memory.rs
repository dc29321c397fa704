//! All cases of `iwprobe`, with the probe and the target in one process and in virtual time. The target has
//! an engine, and the probe has bare TCP on the same wire in memory. The cases take seconds and need no
//! device.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dp::link::{LinkConfig, pair};
use dp::{Burst, Port};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::{ConnParam, Context, ContextConfig};
use iwprobe::net::{End, Net, ReadResult, Stream};
use iwprobe::probe::Probe;
use iwprobe::session::Patience;
use tcp_lite::{AddressProbing, ConnId, Event, Stack};

use super::call::Caller;
use super::plan::{Outcome, PLANS, Plan};
use super::serve::Server;
use super::{ConnectionOptions, Steps};
use crate::lab::{LabError, Result};

const PORT: u16 = 18_515;
/// The default time limits of `iwprobe`.
const PATIENCE: Patience = Patience { timeout: Duration::from_secs(5), quiet: Duration::from_millis(200) };
/// Maximum time until the first connection.
const WAIT: Duration = Duration::from_secs(30);
/// Maximum duration of startup, as in `iwprobe-target`.
const STARTUP: Duration = Duration::from_secs(10);
/// Maximum step of the virtual time, in microseconds. The target checks the clock itself and reports no
/// deadline.
const TICK_US: i64 = 1000;

/// Runs the cases of the plan `name`.
fn run(name: &str) -> Result<()> {
    let plan = PLANS.iter().find(|plan| plan.name == name).expect("a plan of this name");
    let hosts = Rc::new(RefCell::new(Hosts::new(plan)?));
    let mut probe = Probe::new(Network(hosts), PATIENCE, plan.markers);
    probe.meet(WAIT).map_err(LabError::new)?;
    let mut outcomes = Vec::new();
    for case in plan.cases() {
        outcomes.push(Outcome::from(&iwprobe::run::run(&case, &mut probe)));
        if probe.is_alone() {
            break;
        }
    }
    probe.dismiss();
    plan.conclude(&outcomes)
}

macro_rules! plans {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name)).unwrap_or_else(|error| panic!("{error}"));
        })*

        #[test]
        fn every_plan_is_run() {
            assert_eq!(PLANS.map(|plan| plan.name), [$(stringify!($name)),*]);
        }
    };
}

plans! {
    connect_plain
    connect_markers_both_ways
    connect_no_crc
    listen_plain
    listen_markers_both_ways
    listen_client_server
    listen_revision_1
}

fn told(error: impl std::fmt::Display) -> LabError {
    LabError::new(error.to_string())
}

/// The hosts of the target and of the probe, and the time.
struct Hosts {
    engine: Engine,
    target: Box<dyn Steps>,
    target_listens: bool,
    stack: Stack,
    port: Box<dyn Port>,
    out: Burst,
    start: Instant,
    now_us: i64,
    connections: Vec<Connection>,
    /// Connections that the target has opened and that `Net::open` has not returned yet.
    accepted: VecDeque<ConnId>,
}

/// The probe's side of a TCP connection.
struct Connection {
    conn: ConnId,
    inbox: Vec<u8>,
    established: bool,
    end: Option<End>,
    /// Whether the probe has dropped the connection.
    dropped: bool,
}

impl Hosts {
    fn new(plan: &Plan) -> Result<Self> {
        let (target_port, port) = pair(&LinkConfig::default());
        let context =
            Context::new(ContextConfig { seed: Some([1; 32]), ..ContextConfig::default() }).map_err(told)?;
        let config = |port: &dyn Port, address: &str, seed: u8| -> Result<EngineConfig> {
            let mut config = EngineConfig::new(port, &[address]).map_err(told)?;
            config.stack.seed = [seed; 32];
            config.stack.address_probing = AddressProbing::Off;
            Ok(config)
        };
        let mut target_config = config(&*target_port, "10.0.0.1/24", 2)?;
        target_config.crc = plan.crc;
        let mut stack = Stack::new(config(&*port, "10.0.0.2/24", 3)?.stack, port.mempool().clone());
        let engine = Engine::new(&context, target_port, target_config).map_err(told)?;
        let Plan { markers, peer_to_peer, revision, listens, .. } = *plan;
        let param = ConnParam {
            markers,
            peer_to_peer,
            mpa_revision: revision,
            timeout: STARTUP,
            ..ConnParam::default()
        };
        let options = ConnectionOptions { param };
        let target: Box<dyn Steps> = if listens {
            Box::new(Server::listen(&context, PORT, &options).map_err(told)?)
        } else {
            stack.listen(PORT).map_err(told)?;
            let probe = ([10, 0, 0, 2], PORT).into();
            Box::new(Caller::new(&context, probe, &options).map_err(told)?)
        };
        Ok(Self {
            engine,
            target,
            target_listens: listens,
            stack,
            port,
            out: Burst::new(),
            start: Instant::now(),
            now_us: 0,
            connections: Vec::new(),
            accepted: VecDeque::new(),
        })
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us as u64)
    }

    fn tcp_now(&self) -> tcp_lite::Instant {
        tcp_lite::Instant::from_micros(self.now_us)
    }

    /// Polls both hosts once. Then advances the time: if a host was busy, by a microsecond; if both are idle,
    /// to the next deadline, but by at most a tick, and not beyond `limit`.
    fn poll(&mut self, limit: Instant) {
        let now = self.tcp_now();
        let mut busy = self.engine.poll_at(now);
        busy |= self.target.step(self.now()).expect("the target goes on");
        let mut frames = Burst::new();
        self.port.rx_burst(self.now_us as u64, &mut frames);
        for frame in frames.drain(..) {
            busy = true;
            self.stack.input(now, frame);
        }
        self.stack.poll(now);
        while let Some(event) = self.stack.event() {
            busy = true;
            self.on_event(event);
        }
        self.stack.transmit(now, &mut self.out);
        busy |= self.port.tx_burst(self.now_us as u64, &mut self.out) > 0;
        let deadlines = [self.engine.next_deadline(now), self.stack.next_deadline(now)];
        let next_us = deadlines.into_iter().flatten().map(|at| at.total_micros()).min().unwrap_or(i64::MAX);
        let limit_us = limit.saturating_duration_since(self.start).as_micros() as i64;
        let idle_until_us = next_us.min(limit_us).min(self.now_us + TICK_US);
        self.now_us = if busy { self.now_us + 1 } else { idle_until_us.max(self.now_us + 1) };
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Established { conn, listener: Some(_) } => {
                self.connections.push(Connection::new(conn));
                self.accepted.push_back(conn);
            }
            Event::Established { conn, listener: None } => self.change(conn, |it| it.established = true),
            Event::Received { conn, received } => {
                for run in received.buf.segments() {
                    self.change(conn, |it| it.inbox.extend_from_slice(run));
                }
                if self.connection(conn).is_some_and(|it| it.dropped) {
                    self.stack.abort(self.tcp_now(), conn);
                }
            }
            Event::PeerClosed { conn } => self.change(conn, |it| it.end = it.end.or(Some(End::Fin))),
            Event::Closed { conn, .. } => {
                self.change(conn, |it| it.end = it.end.or(Some(End::Reset)));
                self.connections.retain(|it| it.conn != conn || !it.dropped);
            }
            _ => {}
        }
    }

    fn connection(&self, conn: ConnId) -> Option<&Connection> {
        self.connections.iter().find(|it| it.conn == conn)
    }

    fn change(&mut self, conn: ConnId, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connections.iter_mut().find(|it| it.conn == conn) {
            change(connection);
        }
    }

    /// Polls until `done` returns a value, and returns the value; `None` if `deadline` has passed.
    fn until<T>(&mut self, deadline: Instant, mut done: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        loop {
            if let Some(done) = done(self) {
                return Some(done);
            }
            if self.now() >= deadline {
                return None;
            }
            self.poll(deadline);
        }
    }

    /// Returns the next connection, or the reason why no connection is established.
    fn open(&mut self, deadline: Instant) -> std::result::Result<ConnId, String> {
        if !self.target_listens {
            return self.until(deadline, |hosts| hosts.accepted.pop_front()).ok_or("nobody connected".into());
        }
        loop {
            let remote = ([10, 0, 0, 1], PORT).into();
            let now = self.tcp_now();
            let conn = self.stack.connect(now, remote, None).map_err(|error| error.to_string())?;
            self.connections.push(Connection::new(conn));
            let answered = self.until(deadline, |hosts| {
                let Connection { established, end, .. } = hosts.connection(conn)?;
                (*established || end.is_some()).then_some(*established)
            });
            match answered {
                Some(true) => return Ok(conn),
                Some(false) => self.connections.retain(|it| it.conn != conn),
                None => {
                    self.stack.abort(self.tcp_now(), conn);
                    return Err("cannot connect: no answer".into());
                }
            }
            if self.now() >= deadline {
                return Err("cannot connect: refused".into());
            }
            self.poll(deadline);
        }
    }
}

impl Connection {
    fn new(conn: ConnId) -> Self {
        Self { conn, inbox: Vec::new(), established: false, end: None, dropped: false }
    }
}

/// The network as the probe sees it.
struct Network(Rc<RefCell<Hosts>>);

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

impl Net for Network {
    fn is_initiator(&self) -> bool {
        self.0.borrow().target_listens
    }

    fn open(&self, deadline: Instant, _timeout: Duration) -> std::result::Result<Box<dyn Stream>, String> {
        let conn = self.0.borrow_mut().open(deadline)?;
        Ok(Box::new(Tcp { hosts: Rc::clone(&self.0), conn }))
    }

    fn now(&self) -> Instant {
        self.0.borrow().now()
    }

    fn sleep(&self, time: Duration) {
        let mut hosts = self.0.borrow_mut();
        let end = hosts.now() + time;
        let _ = hosts.until(end, |_| None::<()>);
    }
}

/// A connection as the probe sees it.
struct Tcp {
    hosts: Rc<RefCell<Hosts>>,
    conn: ConnId,
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tcp({:?})", self.conn)
    }
}

impl Stream for Tcp {
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let (conn, mut hosts) = (self.conn, self.hosts.borrow_mut());
        let deadline = hosts.now() + PATIENCE.timeout;
        let sent = hosts.until(deadline, |hosts| {
            if hosts.connection(conn).is_none_or(|it| it.end == Some(End::Reset)) {
                return Some(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let sent = hosts.stack.send(hosts.tcp_now(), conn, bytes).unwrap_or(0);
            bytes = &bytes[sent..];
            bytes.is_empty().then_some(Ok(()))
        });
        sent.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    fn receive(&mut self, deadline: Instant) -> ReadResult {
        let conn = self.conn;
        let came = self.hosts.borrow_mut().until(deadline, |hosts| {
            let connection = hosts.connections.iter_mut().find(|it| it.conn == conn)?;
            let bytes = std::mem::take(&mut connection.inbox);
            if bytes.is_empty() {
                connection.end.map(ReadResult::End)
            } else {
                Some(ReadResult::Bytes(bytes))
            }
        });
        came.unwrap_or(ReadResult::Nothing)
    }

    fn finish(&mut self) -> bool {
        let mut hosts = self.hosts.borrow_mut();
        let open = hosts.connection(self.conn).is_some_and(|it| it.end != Some(End::Reset));
        let now = hosts.tcp_now();
        hosts.stack.close(now, self.conn);
        open
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let mut hosts = self.hosts.borrow_mut();
        let now = hosts.tcp_now();
        let Some(connection) = hosts.connection(self.conn) else { return };
        if connection.inbox.is_empty() {
            hosts.stack.close(now, self.conn);
        } else {
            hosts.stack.abort(now, self.conn);
        }
        hosts.change(self.conn, |it| it.dropped = true);
    }
}
