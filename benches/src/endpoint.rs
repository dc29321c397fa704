//! One side of a test: a context, the driver that polls its engine, and connections with time limits.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dp::Clock;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, ConnectionError, Context, EventChannel,
    MAX_PRIVATE_DATA, ProtectionDomain, QueuePair, WcStatus, WorkCompletion,
};

use crate::driver::{Driver, WaitMode};
use crate::errors::{Error, NotConnected};
use crate::params::{Params, Test};
use crate::private;
use crate::rendezvous::Rendezvous;
use crate::shown::Shown;

/// Time for which a connection is tried again after the server refuses it, since the server may be about to
/// listen. The time is short, so that a user who has not started the server gets the error soon.
pub const STARTING: Duration = Duration::from_secs(1);

/// Private data of the peer.
pub type PrivateData = Vec<u8>;

/// One side of a test.
pub struct Endpoint {
    /// The context of all objects.
    pub context: Context,
    /// The protection domain of all objects of this side.
    pub pd: ProtectionDomain,
    /// Polls the engine.
    pub driver: Driver,
    /// The clock that measures latencies.
    pub clock: Clock,
    /// Time limit for a peer from which nothing arrives.
    pub timeout: Duration,
    /// Whether to profile by layer.
    pub profile: bool,
    /// Whether the user wants each latency.
    pub keeps_samples: bool,
    /// The rendezvous with the other cores before each run.
    pub rendezvous: Option<Arc<Rendezvous>>,
    /// The engine of this side's connections, if the context has several engines.
    pub engine: Option<usize>,
    /// Makes the context visible to `uwarp status`. Only one of the endpoints of a context has this value.
    pub shown: Option<Shown>,
    events: EventChannel,
    waiting: VecDeque<CmEvent>,
}

/// A connection request of a peer.
pub struct Request {
    /// The identifier with which the request is accepted or rejected.
    pub id: CmId,
    /// Private data of the request.
    pub private_data: PrivateData,
    /// Address of the peer.
    pub remote: SocketAddr,
}

impl Endpoint {
    /// Makes a side on `context`. `driver` polls an engine of the context.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails, or [`Error::System`] if a system call fails.
    pub fn new(context: Context, mut driver: Driver, timeout: Duration) -> Result<Self, Error> {
        let (pd, events) = (context.alloc_pd()?, context.create_event_channel()?);
        driver.watch_connections(events.as_fd())?;
        Ok(Self {
            context,
            pd,
            driver,
            clock: Clock::new(),
            timeout,
            profile: false,
            keeps_samples: false,
            rendezvous: None,
            engine: None,
            shown: None,
            events,
            waiting: VecDeque::new(),
        })
    }

    /// Creates a completion queue. Completions wake this thread if the engine has its own thread.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn create_cq(&mut self, entries: usize) -> Result<CompletionQueue, Error> {
        let queue = self.context.create_cq(entries, self.driver.channel())?;
        self.driver.watch(&queue);
        Ok(queue)
    }

    /// Polls the engine until `look` finds something.
    ///
    /// # Errors
    /// Returns [`Error::Silent`] if `look` finds nothing and `timeout` has passed since the first idle poll
    /// (`None` means that there is no limit), or [`Error::Interrupted`] if the run is interrupted. Also
    /// returns errors of `look` and of the completion channel.
    pub fn wait<T>(
        &mut self,
        doing: &'static str,
        timeout: Option<Duration>,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let mut deadline = None;
        loop {
            let moved = self.driver.poll()?;
            if let Some(found) = look(self)? {
                self.driver.busy();
                return Ok(found);
            }
            if moved {
                self.driver.busy();
                continue;
            }
            self.driver.idle()?;
            if let Some(after) = timeout {
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + after) {
                    return Err(Error::Silent { doing, after });
                }
            }
        }
    }

    /// Removes and returns the oldest event that `wanted` accepts. Other events stay queued.
    fn take_event<T>(&mut self, mut wanted: impl FnMut(&CmEvent) -> Option<T>) -> Option<T> {
        while let Some(event) = self.events.poll() {
            self.waiting.push_back(event);
        }
        let (index, found) =
            self.waiting.iter().enumerate().find_map(|(i, event)| Some((i, wanted(event)?)))?;
        self.waiting.remove(index);
        Some(found)
    }

    /// Returns `Some` if connection `id` has ended, with the error of the connection if there was an error.
    pub fn ended(&mut self, id: &CmId) -> Option<Option<ConnectionError>> {
        while let Some(event) = self.events.poll() {
            self.waiting.push_back(event);
        }
        self.waiting.iter().find_map(|event| match &event.kind {
            CmEventKind::Disconnected { error, .. } if event.id == *id => Some(*error),
            _ => None,
        })
    }

    /// Listens on `port`.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<CmId, Error> {
        let id = self.context.create_id(&self.events);
        id.listen(port, backlog, self.timeout)?;
        Ok(id)
    }

    /// Waits for the next connection request, and sleeps between polls. If `timeout` is `None`, waits without
    /// limit.
    ///
    /// # Errors
    /// Returns the errors of [`wait`](Self::wait).
    pub fn request(&mut self, timeout: Option<Duration>) -> Result<Request, Error> {
        self.driver.set_wait_mode(WaitMode::Waiting);
        let request = self.wait("waiting for a connection", timeout, |end| {
            Ok(end.take_event(|event| match &event.kind {
                CmEventKind::ConnectRequest { private_data, remote, .. } => Some(Request {
                    id: event.id.clone(),
                    private_data: private_data.to_vec(),
                    remote: *remote,
                }),
                _ => None,
            }))
        });
        self.driver.set_wait_mode(WaitMode::Measuring);
        request
    }

    /// Accepts `request` on `qp`.
    ///
    /// # Errors
    /// Returns [`Error::Accept`] if the connection is not established, [`Error::Verbs`] if a verbs call
    /// fails, or an error of [`wait`](Self::wait).
    pub fn accept(&mut self, request: &Request, qp: &QueuePair, param: &ConnParam) -> Result<(), Error> {
        request.id.accept(qp, param)?;
        match self.established(&request.id, request.remote) {
            Err(Error::Connect { remote, reason }) => Err(Error::Accept { remote, reason: reason.of_peer() }),
            established => established.map(drop),
        }
    }

    /// Connects a queue pair to `remote`. Returns the queue pair, its identifier and the peer's private data.
    /// After a refusal, tries again with a new queue pair until `patience` is over. perftest's server listens
    /// again for its data connections, and may not listen yet.
    ///
    /// # Errors
    /// Returns [`Error::Connect`] if the connection is not established, or [`Error::Rejected`] if an iwperf
    /// server rejects the test with a reason. Returns [`Error::Verbs`] if a verbs call fails, an error of
    /// `create_qp`, or an error of [`wait`](Self::wait).
    pub fn connect(
        &mut self,
        mut create_qp: impl FnMut() -> Result<QueuePair, Error>,
        remote: SocketAddr,
        param: &ConnParam,
        patience: Duration,
    ) -> Result<(CmId, QueuePair, PrivateData), Error> {
        const PAUSE: Duration = Duration::from_millis(100);
        let begun = Instant::now();
        let param = &ConnParam { engine: self.engine, ..param.clone() };
        loop {
            let (id, qp) = (self.context.create_id(&self.events), create_qp()?);
            id.connect(&qp, remote, param)?;
            match self.established(&id, remote) {
                Ok(private_data) => return Ok((id, qp, private_data)),
                Err(Error::Connect { reason, .. })
                    if reason.is_refused() && begun.elapsed() + PAUSE < patience =>
                {
                    self.pause(PAUSE)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Polls the engine for `time`.
    ///
    /// # Errors
    /// Returns [`Error::Interrupted`] if the run is interrupted, or an error of the completion channel.
    pub fn pause(&mut self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        self.wait("pausing", None, |_| Ok((Instant::now() >= end).then_some(())))
    }

    /// Disconnects `id`, and waits until the connection has ended. If the time limit expires first, aborts
    /// the connection.
    pub fn finish(&mut self, id: &CmId) -> Result<(), Error> {
        id.disconnect();
        match self.wait("closing", Some(self.timeout), |end| Ok(end.ended(id))) {
            Ok(_) => Ok(()),
            Err(Error::Silent { .. }) => {
                id.abort();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn established(&mut self, id: &CmId, remote: SocketAddr) -> Result<PrivateData, Error> {
        // The connection has its own time limit. The limit here applies only if the event never arrives.
        let silence = self.timeout + Duration::from_secs(2);
        let id = id.clone();
        let failed = |reason| Error::Connect { remote, reason };
        self.wait("connecting", Some(silence), |end| {
            let outcome = end.take_event(|event| {
                if event.id != id {
                    return None;
                }
                Some(match &event.kind {
                    CmEventKind::Established { private_data, .. } => Ok(private_data.to_vec()),
                    CmEventKind::Rejected { private_data, .. } => {
                        Err(match private::rejection_reason(private_data) {
                            Some(reason) => Error::Rejected { remote, reason },
                            None => failed(NotConnected::Error(ConnectionError::Rejected)),
                        })
                    }
                    CmEventKind::ConnectError { error, .. } => Err(failed(NotConnected::Error(*error))),
                    CmEventKind::Disconnected { error, .. } => {
                        Err(failed(error.map_or(NotConnected::Closed, NotConnected::Error)))
                    }
                    // Other events belong to the listening side, or to streaming mode, which is not used
                    // here.
                    _ => return None,
                })
            });
            outcome.transpose()
        })
    }
}

/// The parameters of the connections of a test.
///
/// # Errors
/// Returns [`Error::Verbs`] if there are more than [`MAX_PRIVATE_DATA`] bytes of private data.
pub fn conn_param(params: &Params, timeout: Duration, private_data: &[u8]) -> Result<ConnParam, Error> {
    debug_assert!(private_data.len() <= MAX_PRIVATE_DATA);
    // perftest announces no read depth if the test has no Reads or atomics. At a given rate, iwperf uses
    // Reads to confirm messages.
    let reads = params.test.verb().is_answered() || params.rate.is_some();
    let depth = if reads { params.outs.min(1024) as u16 } else { 0 };
    let param = ConnParam {
        responder_resources: depth,
        initiator_depth: depth,
        markers: params.markers,
        // In perftest's Write latency test the server may write first. A peer such as siw's client sends no
        // RTR, so the server would otherwise wait for the client's first FPDU.
        await_first_fpdu: params.test != Test::WriteLat,
        timeout,
        ..ConnParam::default()
    };
    Ok(param.with_private_data(private_data)?)
}

/// Returns `Ok` if the request succeeded.
///
/// # Errors
/// Returns [`Error::Completion`] if the request failed.
pub fn checked(completion: &WorkCompletion, what: &'static str) -> Result<(), Error> {
    match completion.status {
        WcStatus::Success => Ok(()),
        status => Err(Error::Completion { what, status, detail: completion.cause.map(|e| e.to_string()) }),
    }
}

#[cfg(test)]
mod tests;
