//! Our engine on a device, and connections to a target. Either the target listens and we connect, or we
//! listen and the target connects.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, Context, ContextConfig,
    EventChannel, MemoryRegion, ProtectionDomain, QpInit, QueuePair, RecvRequest, StreamError, WcStatus,
    WorkCompletion,
};

use super::{LIMIT, Report, Stage, words};
use crate::contract::{MAGIC, MAX_TEXT};
use crate::lab::Result;
use crate::{ensure, lab_error};

/// The side that listens.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// The target listens, at this address.
    Connect(SocketAddr),
    /// We listen, on this port.
    Listen(u16),
}

/// Our side: an engine that this type polls, and the objects that all connections share.
pub struct Lab {
    engine: Engine,
    context: Context,
    events: EventChannel,
    /// Events that arrived while the lab waited for another event, since a target that connects does not
    /// wait.
    kept: Vec<CmEvent>,
    role: Role,
    crc: bool,
    listener: Option<CmId>,
    /// The protection domain of all regions.
    pub pd: ProtectionDomain,
}

/// A connection whose scene has been set up.
pub struct Session {
    /// The queue pair of the session.
    pub qp: QueuePair,
    /// The only completion queue of the session, on [`channel`](Self::channel).
    pub cq: CompletionQueue,
    /// The channel of the completion queue.
    pub channel: CompletionChannel,
    /// The stage message of the target.
    pub stage: Stage,
    id: CmId,
    ended: bool,
}

/// `wr_id` of the receives that [`Lab::session`] posts for the target's texts.
const TEXT_WR: u64 = u64::MAX;

impl Lab {
    /// Creates an engine on `port`. With `crc`, we ask for CRCs.
    ///
    /// # Errors
    /// If an object cannot be created.
    pub fn new(port: Box<dyn dp::Port>, ip: &str, role: Role, crc: bool) -> Result<Self> {
        let context = Context::new(ContextConfig::default()).map_err(told)?;
        let mut config = EngineConfig::new(&*port, &[ip]).map_err(told)?;
        config.crc = crc;
        let engine = Engine::new(&context, port, config).map_err(told)?;
        let pd = context.alloc_pd().map_err(told)?;
        let events = context.create_event_channel().map_err(told)?;
        let listener = match role {
            Role::Connect(_) => None,
            Role::Listen(port) => {
                let listener = context.create_id(&events);
                listener.listen(port, 4, LIMIT).map_err(told)?;
                Some(listener)
            }
        };
        Ok(Self { engine, context, events, kept: Vec::new(), role, crc, listener, pd })
    }

    /// Creates a queue pair with its own completion queue and channel, for [`session`](Self::session).
    /// Regions can be bound to the queue pair before it is connected.
    ///
    /// # Errors
    /// If a limit is reached.
    pub fn queue_pair(&self) -> Result<(QueuePair, CompletionQueue, CompletionChannel)> {
        let channel = self.context.create_comp_channel().map_err(told)?;
        let cq = self.context.create_cq(512, Some(&channel)).map_err(told)?;
        let qp = self.pd.create_qp(&QpInit::new(&cq)).map_err(told)?;
        Ok((qp, cq, channel))
    }

    /// Registers memory with these rights.
    ///
    /// # Errors
    /// If a limit is reached.
    pub fn region(&self, bytes: usize, access: Access) -> Result<MemoryRegion> {
        self.pd.reg_mr(bytes, access).map_err(told)
    }

    /// Registers memory that contains these bytes.
    ///
    /// # Errors
    /// If a limit is reached.
    pub fn filled(&self, bytes: &[u8], access: Access) -> Result<MemoryRegion> {
        let region = self.region(bytes.len().max(1), access)?;
        region.write_at(0, bytes).map_err(told)?;
        Ok(region)
    }

    /// Sets up the scene `words` on a new connection.
    ///
    /// # Errors
    /// If there is no connection, or if the target sends no stage message.
    pub fn scene(&mut self, words: &str) -> Result<Session> {
        let queues = self.queue_pair()?;
        self.session(queues, &[], words)
    }

    /// Sets up a scene as [`scene`](Self::scene) does, but with an existing queue pair without posted
    /// requests. Posts `receives` before a message can arrive.
    ///
    /// # Errors
    /// The same errors as [`scene`](Self::scene).
    pub fn session(
        &mut self,
        (qp, cq, channel): (QueuePair, CompletionQueue, CompletionChannel),
        receives: &[RecvRequest],
        words: &str,
    ) -> Result<Session> {
        let (id, text) = self.establish(&qp, &cq, receives, words)?;
        let stage = Stage::parse(&text)?;
        Ok(Session { qp, cq, channel, stage, id, ended: false })
    }

    /// Ends the connection, and asks the target for its report.
    ///
    /// # Errors
    /// If the target does not send a report.
    pub fn report(&mut self, mut session: Session) -> Result<Report> {
        self.end(&mut session)?;
        drop(session);
        let (qp, cq, _channel) = self.queue_pair()?;
        let (id, text) = self.establish(&qp, &cq, &[], "report")?;
        id.disconnect();
        self.await_end(&id)?;
        Report::parse(&text)
    }

    /// Tells a target that connects that the scenes are over.
    ///
    /// # Errors
    /// If the target does not connect.
    pub fn bye(&mut self) -> Result<()> {
        if self.listener.is_none() {
            return Ok(());
        }
        let (qp, _cq, _channel) = self.queue_pair()?;
        let request = self.connect_request()?;
        // The request is accepted and not rejected, since siw overlooks the private data of a rejecting Reply
        // that a FIN follows at once.
        let private_data = format!("{MAGIC} bye").bytes().collect();
        request.id.accept(&qp, &ConnParam { private_data, ..ConnParam::default() })?;
        self.established(&request.id)?;
        self.await_end(&request.id)?;
        Ok(())
    }

    /// Disconnects, and waits until the connection has ended. Does nothing if the connection has already
    /// ended.
    ///
    /// # Errors
    /// If the connection does not end.
    pub fn end(&mut self, session: &mut Session) -> Result<()> {
        if !session.ended {
            // If the connection ends before the completion of a request whose bytes have been sent, a stack
            // may fail this request.
            self.turn_for(Duration::from_millis(50));
            session.id.disconnect();
            self.await_end(&session.id)?;
            session.ended = true;
        }
        Ok(())
    }

    /// Waits until the connection ends, and returns the stream's error.
    ///
    /// # Errors
    /// If the connection ends without an error or does not end.
    pub fn error(&mut self, session: &mut Session) -> Result<StreamError> {
        self.await_end(&session.id)?;
        session.ended = true;
        session.qp.error().ok_or_else(|| lab_error!("the stream ended without an error"))
    }

    /// Waits for the next completion.
    ///
    /// # Errors
    /// If there is no completion within the time limit.
    pub fn completion(&mut self, session: &Session) -> Result<WorkCompletion> {
        self.completion_of(&session.cq)
    }

    /// Waits for the next completion, which has to be successful.
    ///
    /// # Errors
    /// If there is no completion within the time limit, or if the request failed.
    pub fn success(&mut self, session: &Session) -> Result<WorkCompletion> {
        let done = self.completion(session)?;
        ensure!(
            done.status == WcStatus::Success,
            "request {} ({:?}): {}{}",
            done.wr_id,
            done.opcode,
            done.status,
            done.cause.map_or(String::new(), |error| format!(", {error}"))
        );
        Ok(done)
    }

    /// Polls the engine for `time`.
    pub fn turn_for(&mut self, time: Duration) {
        let started = Instant::now();
        while started.elapsed() < time {
            self.engine.poll();
            self.engine.sleep(Duration::from_millis(1));
        }
    }

    /// Polls the engine until `look` returns a value, but at most for [`LIMIT`].
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Result<Option<T>>) -> Result<T> {
        let started = Instant::now();
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            ensure!(started.elapsed() < LIMIT, "no {what} within {LIMIT:?}");
            if !self.engine.poll() {
                self.engine.sleep(Duration::from_millis(1));
            }
        }
    }

    fn completion_of(&mut self, cq: &CompletionQueue) -> Result<WorkCompletion> {
        self.until("completion", |_| Ok(cq.poll_one()))
    }

    fn connect_request(&mut self) -> Result<CmEvent> {
        self.until("connect request", |lab| {
            Ok(lab.event(|event| matches!(event.kind, CmEventKind::ConnectRequest { .. })))
        })
    }

    /// Returns the first event that `wanted` accepts, or `None`. Other events are kept.
    fn event(&mut self, wanted: impl Fn(&CmEvent) -> bool) -> Option<CmEvent> {
        self.kept.extend(std::iter::from_fn(|| self.events.poll()));
        let place = self.kept.iter().position(wanted)?;
        Some(self.kept.remove(place))
    }

    /// Connects `qp`, and requests the scene `words`. Returns the target's answer.
    fn establish(
        &mut self,
        qp: &QueuePair,
        cq: &CompletionQueue,
        receives: &[RecvRequest],
        words: &str,
    ) -> Result<(CmId, String)> {
        let post = || receives.iter().try_for_each(|request| qp.post_recv(request));
        let scene = words::scene(words);
        ensure!(scene.len() <= MAX_TEXT, "a scene of {} bytes: '{scene}'", scene.len());
        let private_data = ArrayVec::try_from(scene.as_bytes()).map_err(|error| lab_error!("{error}"))?;
        let param = ConnParam { private_data, ..ConnParam::default() };
        match self.role {
            Role::Connect(remote) => {
                post()?;
                let id = self.context.create_id(&self.events);
                id.connect(qp, remote, &param).map_err(told)?;
                let text = self.established(&id)?;
                Ok((id, text))
            }
            Role::Listen(_) => {
                let buffer = self.region(MAX_TEXT, Access::LOCAL_WRITE)?;
                qp.post_recv(&RecvRequest::new(TEXT_WR, buffer.sge(0, MAX_TEXT))).map_err(told)?;
                post()?;
                let request = self.connect_request()?;
                request.id.accept(qp, &param).map_err(told)?;
                self.established(&request.id)?;
                let told_by = self.completion_of(cq)?;
                ensure!(
                    told_by.wr_id == TEXT_WR && told_by.status == WcStatus::Success,
                    "instead of the stage: {told_by:?}"
                );
                let mut bytes = vec![0; told_by.byte_len as usize];
                buffer.read_at(0, &mut bytes).map_err(told)?;
                Ok((request.id, String::from_utf8_lossy(&bytes).into_owned()))
            }
        }
    }

    /// Waits until `id` is connected. Returns the peer's private data.
    fn established(&mut self, id: &CmId) -> Result<String> {
        self.until("connection", |lab| {
            let Some(event) = lab.event(|event| event.id == *id) else { return Ok(None) };
            match event.kind {
                CmEventKind::Established { private_data, .. } => {
                    let without = lab.engine.counters().connections_without_crc;
                    ensure!(without == 0 || !lab.crc, "we asked for CRCs, but the connection has none");
                    Ok(Some(String::from_utf8_lossy(&private_data).into_owned()))
                }
                CmEventKind::Rejected { private_data, .. } => {
                    Err(lab_error!("rejected: {}", String::from_utf8_lossy(&private_data)))
                }
                other => Err(lab_error!("instead of a connection: {other:?}")),
            }
        })
    }

    fn await_end(&mut self, id: &CmId) -> Result<()> {
        self.until("end of the connection", |lab| {
            let ended =
                |event: &CmEvent| event.id == *id && matches!(event.kind, CmEventKind::Disconnected { .. });
            Ok(lab.event(ended).map(drop))
        })?;
        // The engine has to send the last acknowledgements, since the peer's kernel waits for them.
        self.turn_for(Duration::from_millis(50));
        Ok(())
    }
}

fn told(error: impl std::fmt::Display) -> crate::lab::LabError {
    lab_error!("{error}")
}
