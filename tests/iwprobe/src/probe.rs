//! The endpoint under test, and the setup of connections with it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::case::{CaseError, deviates, not_applicable};
use crate::conn::{Conn, End, ReadResult};
use crate::log::{Direction, Log};
use crate::net::Net;
use crate::scene::{MAGIC, Report, Stage};
use crate::session::{Incoming, Patience, Session};
use crate::watch::Watch;
use crate::wire::{Depths, REPLY_KEY, REQUEST_KEY, Segment, Startup, describe, flag, opcode};

/// Number of Reads that the probe offers to serve at a time. The probe also asks for this number of
/// outstanding Reads of its own.
const DEPTH: u16 = 16;
/// Number of consecutive failed TCP connections after which the probe considers the endpoint gone.
const MAX_ABSENCES: u32 = 3;
/// Number of consecutive failed startups after which the probe considers the endpoint gone. An endpoint that
/// hangs still accepts TCP connections.
const MAX_FAILURES: u32 = 6;
/// The time within which an endpoint that is the initiator has to connect again. A target that does not
/// notice the end of a connection keeps this connection for 20 s (TARGET.md).
const RECONNECT: Duration = Duration::from_secs(25);

/// The kind of Request for a case without special needs: the first kind that the endpoint accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// MPA revision.
    pub revision: u8,
    /// Whether the Request asks for the peer-to-peer model, with an RTR.
    pub peer_to_peer: bool,
}

/// All profiles, in the order in which they are tried.
const PROFILES: [Profile; 3] = [
    Profile { revision: 2, peer_to_peer: false },
    Profile { revision: 2, peer_to_peer: true },
    Profile { revision: 1, peer_to_peer: false },
];

/// The answer of the endpoint to a startup frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A startup frame.
    Frame(Startup),
    /// The end of the connection, and the bytes before it.
    End(End, Vec<u8>),
    /// No whole frame arrived in time. The value has the bytes that arrived.
    Silence(Vec<u8>),
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Frame(frame) => f.write_str(&describe::startup(frame)),
            Self::End(end, bytes) if bytes.is_empty() => write!(f, "{end}"),
            Self::End(end, bytes) => write!(f, "{} and {end}", describe::text(bytes)),
            Self::Silence(bytes) if bytes.is_empty() => f.write_str("nothing"),
            Self::Silence(bytes) => write!(f, "only {}", describe::text(bytes)),
        }
    }
}

/// Drives cases against one endpoint.
#[derive(Debug)]
pub struct Probe {
    net: Rc<dyn Net>,
    patience: Patience,
    /// Whether the probe asks for markers.
    markers: bool,
    log: Log,
    watch: Watch,
    profile: Profile,
    target: bool,
    /// Number of consecutive attempts without a TCP connection.
    absences: Cell<u32>,
    /// Number of consecutive ordinary connections whose startup failed.
    failures: Cell<u32>,
}

impl Probe {
    /// Returns a probe that has not connected to its endpoint yet.
    pub fn new(net: impl Net + 'static, patience: Patience, markers: bool) -> Self {
        Self {
            net: Rc::new(net),
            patience,
            markers,
            log: Log::default(),
            watch: Watch::default(),
            profile: PROFILES[0],
            target: true,
            absences: Cell::new(0),
            failures: Cell::new(0),
        }
    }

    /// Whether the probe considers the endpoint gone, after several failed connections in a row.
    pub fn is_alone(&self) -> bool {
        self.absences.get() >= MAX_ABSENCES || self.failures.get() >= MAX_FAILURES
    }

    /// Makes the first connections: finds out which Requests the endpoint accepts, and whether there is a
    /// target. Returns the result as text.
    ///
    /// # Errors
    /// One line with the reason why there is nothing to probe.
    pub fn meet(&mut self, wait: Duration) -> Result<String, String> {
        let profiles: &[Profile] = if self.is_initiator() { &PROFILES } else { &PROFILES[..1] };
        let mut reason = String::new();
        for profile in profiles {
            self.profile = *profile;
            match self.tcp_within(wait).and_then(|conn| self.establish(conn, MAGIC.as_bytes())) {
                Ok(session) => {
                    self.target = session.stage.is_some();
                    let markers = if session.sends_markers() { ", wants markers" } else { "" };
                    let target = if self.target { "with a target" } else { "without a target" };
                    let found = format!("{}{markers}, {target}", describe::startup(&session.frame));
                    session.close();
                    return Ok(found);
                }
                Err(stop) => reason = stop_text(&stop),
            }
        }
        Err(reason)
    }

    /// Whether the probe opens the TCP connections, and therefore is the MPA initiator.
    pub fn is_initiator(&self) -> bool {
        self.net.is_initiator()
    }

    /// Whether the endpoint has a target.
    pub fn has_target(&self) -> bool {
        self.target
    }

    /// Returns the kind of Request that the endpoint accepts.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the time limits.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// Returns the rules that every segment is checked against.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns the messages that were logged since the last call.
    pub fn take_log(&self) -> Vec<crate::log::Passed> {
        self.log.take()
    }

    /// Opens or accepts a TCP connection with the endpoint, and sends no startup frame yet.
    ///
    /// # Errors
    /// A deviation if there is no connection: after its first connection, the endpoint has to remain
    /// reachable.
    pub fn tcp(&self) -> Result<Conn, CaseError> {
        let wait =
            if self.is_initiator() { self.patience.timeout } else { self.patience.timeout.max(RECONNECT) };
        let conn = self.tcp_within(wait);
        self.absences.set(if conn.is_ok() { 0 } else { self.absences.get() + 1 });
        conn
    }

    fn tcp_within(&self, wait: Duration) -> Result<Conn, CaseError> {
        match self.net.open(self.net.now() + wait, self.patience.timeout) {
            Ok(stream) => Ok(Conn::new(stream, Rc::clone(&self.net), self.log.clone())),
            Err(reason) => deviates(format!("{reason} (waited {} s)", wait.as_secs_f32())),
        }
    }

    /// Returns the depths of a Request for a case without special needs.
    pub fn depths(&self) -> Depths {
        let kinds = self.profile.peer_to_peer;
        Depths { peer_to_peer: kinds, by_write: kinds, by_read: kinds, ..Depths::new(DEPTH, DEPTH) }
    }

    fn flags(&self) -> u8 {
        flag::C | if self.markers { flag::M } else { 0 }
    }

    /// Returns a Request that the endpoint accepts.
    pub fn request(&self, private: &[u8]) -> Startup {
        match self.profile.revision {
            1 => Startup::plain(REQUEST_KEY, self.flags(), private),
            _ => Startup::enhanced(REQUEST_KEY, self.flags(), self.depths(), private),
        }
    }

    /// Returns a Reply with the revision of `request`, and with depths and an RTR that `request` allows.
    pub fn reply(&self, request: &Startup, private: &[u8]) -> Startup {
        let Some(asked) = request.depths() else {
            let reply = Startup::plain(REPLY_KEY, self.flags(), private);
            return Startup { revision: request.revision, ..reply };
        };
        let common = |depth: u16| if depth == Depths::UNSAID { depth } else { depth.min(DEPTH) };
        let depths = Depths {
            peer_to_peer: asked.peer_to_peer,
            by_send: false,
            by_write: asked.peer_to_peer && asked.by_write,
            by_read: asked.peer_to_peer && (asked.by_read || !asked.by_write),
            ird: common(asked.ord),
            ord: common(asked.ird),
        };
        Startup::enhanced(REPLY_KEY, self.flags(), depths, private)
    }

    /// Waits for the endpoint's next startup frame, the end of the connection, or the timeout. Returns the
    /// answer, and the bytes after a frame.
    pub fn answer(&self, conn: &mut Conn) -> (Answer, Vec<u8>) {
        let deadline = conn.after(self.patience.timeout);
        let mut bytes = Vec::new();
        loop {
            if let Some((frame, length)) = Startup::decode(&bytes) {
                self.log.note(Direction::Received, &bytes[..length], describe::startup(&frame));
                return (Answer::Frame(frame), bytes.split_off(length));
            }
            match conn.receive(deadline) {
                ReadResult::Bytes(more) => bytes.extend(more),
                ReadResult::End(end) => return (Answer::End(end, bytes), Vec::new()),
                ReadResult::Nothing => return (Answer::Silence(bytes), Vec::new()),
            }
        }
    }

    /// Sends a startup frame.
    pub fn say(&self, conn: &mut Conn, frame: &Startup) {
        conn.send(&frame.encode(), describe::startup(frame));
    }

    /// Waits for the endpoint's Request, on a connection that the endpoint opened.
    ///
    /// # Errors
    /// A deviation if no Request arrives.
    pub fn heard_request(&self, conn: &mut Conn) -> Result<(Startup, Vec<u8>), CaseError> {
        match self.answer(conn) {
            (Answer::Frame(frame), rest) if frame.key == REQUEST_KEY => Ok((frame, rest)),
            (other, _) => deviates(format!("expected an MPA Request, got {other}")),
        }
    }

    /// Sends `request` and waits for a Reply that accepts it.
    ///
    /// # Errors
    /// A deviation if no accepting Reply arrives.
    pub fn accepted(&self, request: &Startup) -> Result<Session, CaseError> {
        let mut conn = self.tcp()?;
        self.say(&mut conn, request);
        self.heard_reply(conn, request)
    }

    /// Waits for a Reply that accepts `request`.
    ///
    /// # Errors
    /// A deviation if no accepting Reply arrives.
    pub fn heard_reply(&self, mut conn: Conn, request: &Startup) -> Result<Session, CaseError> {
        match self.answer(&mut conn) {
            (Answer::Frame(frame), rest) if frame.key == REPLY_KEY && !frame.has(flag::R) => {
                let mut session = Session::new(conn, request, frame, self.watch.clone(), self.patience);
                session.begin_with(&rest);
                Ok(session)
            }
            (other, _) => deviates(format!("expected an accepting MPA Reply, got {other}")),
        }
    }

    /// Brings a connection into full operation, with `private` in the probe's startup frame.
    fn establish(&self, conn: Conn, private: &[u8]) -> Result<Session, CaseError> {
        let session = self.start_up(conn, private);
        self.failures.set(if session.is_ok() { 0 } else { self.failures.get() + 1 });
        session
    }

    fn start_up(&self, mut conn: Conn, private: &[u8]) -> Result<Session, CaseError> {
        if self.is_initiator() {
            let request = self.request(private);
            self.say(&mut conn, &request);
            let mut session = self.heard_reply(conn, &request)?;
            session.stage = Stage::parse(session.frame.ulp_data());
            if session.frame.depths().is_some_and(|depths| depths.peer_to_peer) {
                session.send(&Segment::write(1, 0, &[]));
            }
            return Ok(session);
        }
        let (request, rest) = self.heard_request(&mut conn)?;
        let reply = self.reply(&request, private);
        self.say(&mut conn, &reply);
        let mut session = Session::new(conn, &reply, request, self.watch.clone(), self.patience);
        session.begin_with(&rest);
        self.take_first(&mut session)?;
        Ok(session)
    }

    /// As the responder, receives the endpoint's RTR if both sides agreed on an RTR, and the stage if the
    /// endpoint has a target.
    ///
    /// # Errors
    /// A deviation if no message arrives.
    pub fn take_first(&self, session: &mut Session) -> Result<(), CaseError> {
        if let Some(text) = self.first_text(session)? {
            session.stage = Stage::parse(&text);
        }
        Ok(())
    }

    /// Returns the payload of the first Send that is no RTR. Returns `None` if another message arrives first,
    /// if no message follows the RTR, or after the RTR of an endpoint without a target.
    fn first_text(&self, session: &mut Session) -> Result<Option<Vec<u8>>, CaseError> {
        let peer_to_peer = session.frame.depths().is_some_and(|depths| depths.peer_to_peer);
        let mut rtr = false;
        loop {
            let segment = match session.receive() {
                Incoming::Segment(segment) => segment,
                Incoming::Silence if rtr => return Ok(None),
                other => return deviates(format!("expected the first FPDU, got {other}")),
            };
            let read = segment
                .as_read_request()
                .filter(|read| segment.opcode() == opcode::READ_REQUEST && read.size == 0);
            match (segment.opcode(), read) {
                (opcode::WRITE, _) if peer_to_peer && !rtr && segment.payload().is_empty() => {}
                (opcode::READ_REQUEST, Some(read)) if peer_to_peer && !rtr => {
                    let response = Segment::tagged(opcode::READ_RESPONSE, read.sink_stag, read.sink_to, &[]);
                    session.send(&response);
                }
                (opcode::SEND, _) => return Ok(Some(segment.payload().to_vec())),
                _ => return Ok(None),
            }
            rtr = true;
            if !self.target {
                return Ok(None);
            }
        }
    }

    /// Opens a connection in full operation, with any endpoint.
    ///
    /// # Errors
    /// A deviation if no connection can be established.
    pub fn plain(&self) -> Result<Session, CaseError> {
        self.establish(self.tcp()?, MAGIC.as_bytes())
    }

    /// Opens a connection on which the target has arranged the scene `words`.
    ///
    /// # Errors
    /// `NeedsTarget` if there is no target; `NotApplicable` if the target does not support the scene; a
    /// deviation if there is no connection or no stage.
    pub fn stage(&self, words: &str) -> Result<Session, CaseError> {
        if !self.target {
            return Err(CaseError::NeedsTarget);
        }
        let session = self.establish(self.tcp()?, format!("{MAGIC} {words}").as_bytes())?;
        match session.stage.as_ref() {
            None => deviates("the target did not tell of its stage"),
            Some(stage) if !stage.cannot.is_empty() => {
                not_applicable(format!("the target cannot do {}", stage.cannot.join(", ")))
            }
            Some(_) => Ok(session),
        }
    }

    /// Ends `session` and asks the target for its report on this session.
    ///
    /// # Errors
    /// `NeedsTarget` without a target; a deviation if no valid report arrives.
    pub fn report(&self, session: Session) -> Result<Report, CaseError> {
        session.close();
        self.report_of_last()
    }

    /// Asks the target for its report on the last connection.
    ///
    /// # Errors
    /// The same errors as [`report`](Self::report).
    pub fn report_of_last(&self) -> Result<Report, CaseError> {
        if !self.target {
            return Err(CaseError::NeedsTarget);
        }
        let text = format!("{MAGIC} report");
        let mut conn = self.tcp()?;
        let bytes = if self.is_initiator() {
            let request = self.request(text.as_bytes());
            self.say(&mut conn, &request);
            let session = self.heard_reply(conn, &request)?;
            let bytes = session.frame.ulp_data().to_vec();
            session.close();
            bytes
        } else {
            let (request, rest) = self.heard_request(&mut conn)?;
            let reply = self.reply(&request, text.as_bytes());
            self.say(&mut conn, &reply);
            let mut session = Session::new(conn, &reply, request, self.watch.clone(), self.patience);
            session.begin_with(&rest);
            let bytes = self.first_text(&mut session)?.unwrap_or_default();
            session.close();
            bytes
        };
        match Report::parse(&bytes) {
            Some(report) => {
                self.log.note(
                    Direction::Received,
                    &[],
                    String::from_utf8_lossy(&bytes).trim_end_matches('\0'),
                );
                Ok(report)
            }
            None => deviates(format!("the target's report is not one: {}", describe::hex(&bytes))),
        }
    }

    /// Tells a target that is the initiator that the run is over.
    pub fn dismiss(&self) {
        if self.is_initiator() || !self.target {
            return;
        }
        // Errors are ignored, since the run is over.
        if let Ok(mut conn) = self.tcp()
            && let Ok((request, _)) = self.heard_request(&mut conn)
        {
            let reply = self.reply(&request, format!("{MAGIC} bye").as_bytes());
            self.say(&mut conn, &Startup { flags: reply.flags | flag::R, ..reply });
            // The rejected side closes first. If the probe's FIN arrived together with the Reply, the
            // endpoint might miss the Reply.
            let _ = conn.receive_within(self.patience.timeout);
            conn.finish();
        }
    }
}

fn stop_text(stop: &CaseError) -> String {
    match stop {
        CaseError::Deviates(text) | CaseError::NotApplicable(text) => text.clone(),
        CaseError::NeedsTarget => "needs a target".into(),
    }
}
