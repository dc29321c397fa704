//! Commands to the engine, for example to open or close a connection, or to add or remove a listener.

use std::net::SocketAddr;
use std::sync::Arc;

use tcp_lite::{CloseReason, ConnId, ConnectError, ListenConfig};

use super::Poller;
use crate::engine::connection::{Attempt, Connection, Event, Reject, Retry};
use crate::engine::listening::EngineListener;
use crate::engine::rate::Rate;
use crate::engine::state::EngineState;
use crate::engine::trace;
use crate::memory::EpochGuard;
use crate::queues::{Ask, QpShared};
use crate::roce::Qpn;
use crate::verbs::{CmCommand, CmEventKind, CmShared, ConnParam, ConnectionError, ListenerShared};

impl Poller {
    /// Runs the queued commands. Returns whether there were commands.
    #[inline]
    pub(super) fn run_commands(&mut self, guard: &EpochGuard<'_>) -> bool {
        let mut busy = false;
        while let Some(command) = self.state.handle.next_command() {
            busy = true;
            self.step(guard, |poller| poller.run_command(command, guard));
        }
        busy
    }

    fn run_command(&mut self, command: CmCommand, guard: &EpochGuard<'_>) {
        match command {
            CmCommand::Connect { id, qp, remote, param } => {
                self.connect(id, &qp, remote, param, Attempt::First)
            }
            CmCommand::ConnectStream { id, stream, remote, param } => match self.open(remote, &param) {
                Ok(conn) => {
                    let now = self.state.now;
                    self.insert(Connection::connecting_stream(conn, id, stream, param, now));
                }
                Err(error) => {
                    self.state.counters.connections_failed += 1;
                    id.not_streaming(error);
                }
            },
            CmCommand::PlainBytes { id } => {
                self.with_id(&id, |connection, state| connection.on(state, Event::PlainBytes));
            }
            CmCommand::StartInitiator { id, qp, param, after } => {
                if let Some(conn) = id.conn() {
                    qp.engine.set_slot(conn.slot());
                }
                let started = self.with_id(&id, |connection, state| {
                    connection.on(state, Event::StartInitiator { qp: Arc::clone(&qp), param, after });
                    connection.schedule_tx(state);
                });
                if !started {
                    // The connection has ended, and the user has been notified.
                    id.ended_before(&qp);
                }
            }
            CmCommand::StartResponder { id, options, after } => {
                self.with_id(&id, |connection, state| {
                    connection.on(state, Event::StartResponder { guard, options, after })
                });
            }
            CmCommand::Listen { id, listener } => self.listen(id, listener),
            CmCommand::Unlisten { port } => {
                let of_port = |listener: &EngineListener| listener.shared.options.port == port;
                if let Some(at) = self.state.listeners.iter().position(of_port) {
                    let listener = self.state.listeners.swap_remove(at);
                    self.state.tcp.unlisten(listener.tcp);
                }
            }
            CmCommand::Accept { id, conn, qp, param } => {
                qp.engine.set_slot(conn.slot());
                let taken = self.with_conn(conn, |connection, state| {
                    connection.accept(state, guard, Arc::clone(&id), (Arc::clone(&qp), param));
                });
                if !taken {
                    // The connection has ended, and the user has been notified.
                    id.ended_before(&qp);
                }
            }
            CmCommand::Reject { conn, private_data, stays_open } => {
                let why = Reject::ByUser { private_data: &private_data, stays_open };
                self.with_conn(conn, |connection, state| connection.on(state, Event::Reject(why)));
            }
            CmCommand::Disconnect { id } => {
                self.with_id(&id, |connection, state| connection.on(state, Event::Disconnect));
            }
            CmCommand::Abort { id } => {
                self.with_id(&id, |connection, state| connection.abort(state));
            }
            CmCommand::OpenDatagrams { qp, number } => match Qpn::new(number) {
                Some(number) => {
                    let Self { datagrams, state: EngineState { now, tcp, .. }, .. } = self;
                    datagrams.open(*now, tcp, qp, number);
                }
                None => qp.enter_error(),
            },
            CmCommand::Group { group, number, attach } => {
                let Self { datagrams, state: EngineState { now, tcp, .. }, .. } = self;
                match attach {
                    true => {
                        datagrams.attach(*now, tcp, group, number);
                    }
                    false => datagrams.detach(*now, tcp, group, number),
                }
                self.tell_groups();
            }
            CmCommand::Adopt { port } => self.siblings.adopted.push(port),
            CmCommand::Status { engine } => engine.status().answer(Some(self.status())),
        }
    }

    fn listen(&mut self, id: Arc<CmShared>, shared: Arc<ListenerShared>) {
        let options = &shared.options;
        let config = ListenConfig {
            half_open: options.half_open,
            half_open_per_address: options.half_open_per_address,
            filter: options.filter.clone(),
        };
        match self.state.tcp.listen_with(options.port, config) {
            Ok(tcp) => {
                let limit = self.state.config.stack.limits.backlog;
                let half_open = options.half_open.map_or(limit, |own| own.min(limit));
                shared.count(|stats| stats.half_open_limit += half_open);
                let reported = Default::default();
                let rate = Rate::new(options.rate_per_address, options.failures_per_address);
                self.state.listeners.push(EngineListener { id, shared, tcp, reported, half_open, rate });
            }
            Err(_) => {
                let error = ConnectionError::NoResources;
                id.announce(None, CmEventKind::ConnectError { error, peer: None });
            }
        }
    }

    fn open(&mut self, remote: SocketAddr, param: &ConnParam) -> Result<ConnId, ConnectionError> {
        let (now, port) = (self.state.now, param.local_port);
        let opened = self.state.tcp.connect(now, remote, port).map_err(|error| match error {
            ConnectError::NoRoute(_) => ConnectionError::NoRoute,
            ConnectError::NoConnection(_) | ConnectError::EventsWait(_) | ConnectError::NoPort => {
                ConnectionError::NoResources
            }
            ConnectError::InUse => ConnectionError::PortInUse,
        });
        match opened {
            Ok(conn) => trace::syn_sent(&self.state, conn),
            Err(error) => trace::connect_failed(&self.state, remote, error),
        }
        opened
    }

    /// Opens a TCP connection for MPA.
    fn connect(
        &mut self,
        id: Arc<CmShared>,
        qp: &Arc<QpShared>,
        remote: SocketAddr,
        param: Box<ConnParam>,
        attempt: Attempt,
    ) {
        let now = self.state.now;
        let started = if qp.signals.asked() >= Ask::Terminate {
            Err(ConnectionError::Tcp(CloseReason::Aborted))
        } else {
            self.open(remote, &param)
        };
        let made = started.map(|conn| {
            qp.engine.set_slot(conn.slot());
            Connection::connecting(conn, Arc::clone(&id), Arc::clone(qp), param, now, attempt)
        });
        match made {
            Ok(connection) => self.insert(connection),
            Err(error) => {
                self.state.counters.connections_failed += 1;
                id.not_connected(qp, error);
            }
        }
    }

    /// Begins the second attempts that failed connections have requested.
    #[inline]
    pub(super) fn begin_retries(&mut self, guard: &EpochGuard<'_>) {
        while let Some(retry) = self.retries.pop() {
            let Retry { id, qp, remote, param, deadline } = retry;
            self.step(guard, |poller| poller.connect(id, &qp, remote, param, Attempt::Second { deadline }));
        }
    }
}
