//! A target of iwprobe that connects repeatedly. The Reply to each connection contains the scene of the
//! connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use benches::endpoint::Endpoint;
use benches::errors::{Error, NotConnected};
use iwarp::verbs::{CmEventKind, CmId, ConnectionError, Context, EventChannel};
use tcp_lite::CloseReason;

use super::report::{self, End};
use super::scene::Scene;
use super::stage::Stage;
use super::{ConnectionOptions, IDLE, Steps, text};
use crate::contract::MAGIC;

/// Pause before the target connects again.
const PAUSE: Duration = Duration::from_millis(20);
/// Time without a listener after which the target gives up. A connect attempt may take this time in addition
/// to its own time limit.
const PATIENCE: Duration = Duration::from_secs(10);

/// A target that connects.
pub(super) struct Caller {
    context: Context,
    remote: SocketAddr,
    options: ConnectionOptions,
    events: EventChannel,
    last: String,
    /// The time of the last attempt to connect that was not refused, or of the end of the last connection.
    /// Until one of these has happened, it is the time of the first step.
    there: Option<Instant>,
    state: State,
}

enum State {
    /// Waiting until the target connects again.
    Paused {
        since: Option<Instant>,
    },
    Connecting {
        id: CmId,
        stage: Stage,
        since: Instant,
    },
    Serving(Current),
    /// The probe has sent `iwp1 bye`.
    Leaving {
        _id: CmId,
        _stage: Stage,
        since: Instant,
    },
}

/// The connection that the target serves now.
struct Current {
    id: CmId,
    stage: Stage,
    is_report: bool,
    /// The time of the connection's last activity.
    idle: Instant,
    closing: bool,
}

/// The result of an attempt to connect.
enum Called {
    Established(String),
    Rejected(String),
    Failed(ConnectionError),
}

/// Connects to the probe at `remote` repeatedly, until the probe ends the run (`bye`).
///
/// # Errors
/// If no probe has listened for ten seconds, if a connect attempt gets no answer, if the probe requests an
/// invalid scene, if the verbs refuse a call, or if the program is interrupted.
pub fn call(end: &mut Endpoint, remote: SocketAddr, options: &ConnectionOptions) -> Result<(), Error> {
    let mut caller = Caller::new(&end.context, remote, options)?;
    super::run(end, &mut caller)
}

impl Caller {
    /// Creates a target that will connect to the probe at `remote`.
    ///
    /// # Errors
    /// If the verbs refuse a call.
    pub(super) fn new(
        context: &Context,
        remote: SocketAddr,
        options: &ConnectionOptions,
    ) -> Result<Self, Error> {
        Ok(Self {
            context: context.clone(),
            remote,
            options: options.clone(),
            events: context.create_event_channel()?,
            last: report::text(End::Refused, &[]),
            there: None,
            state: State::Paused { since: None },
        })
    }

    fn connect(&mut self, now: Instant) -> Result<State, Error> {
        let stage = Stage::new(&self.context)?;
        let id = self.context.create_id(&self.events);
        let param = self.options.param.clone().with_private_data(format!("{MAGIC} hello").as_bytes())?;
        id.connect(stage.qp(), self.remote, &param)?;
        Ok(State::Connecting { id, stage, since: now })
    }

    fn called(&self, id: &CmId) -> Option<Called> {
        self.events.poll().filter(|event| event.id == *id).and_then(|event| match event.kind {
            CmEventKind::Established { private_data, .. } => Some(Called::Established(text(&private_data))),
            CmEventKind::Rejected { private_data, .. } => Some(Called::Rejected(text(&private_data))),
            CmEventKind::ConnectError { error, .. } => Some(Called::Failed(error)),
            CmEventKind::Disconnected { error, .. } => {
                Some(Called::Failed(error.unwrap_or(ConnectionError::PeerClosed)))
            }
            _ => None,
        })
    }

    /// Returns the next state after an attempt to connect.
    fn answered(&mut self, now: Instant, called: Called, id: CmId, mut stage: Stage) -> Result<State, Error> {
        if !matches!(called, Called::Failed(ConnectionError::Tcp(CloseReason::Refused))) {
            self.there = Some(now);
        }
        match called {
            Called::Established(wish) | Called::Rejected(wish) if is_bye(&wish) => {
                id.disconnect();
                Ok(State::Leaving { _id: id, _stage: stage, since: now })
            }
            Called::Established(wish) => {
                let scene = Scene::parse(&wish).map_err(|word| Error::Exchange(format!("scene: {word}")))?;
                let is_report = scene.report;
                if is_report {
                    stage.say(&self.last)?;
                } else {
                    stage.set(&self.context, scene)?;
                    if wish.starts_with(MAGIC) {
                        stage.say(&stage.text())?;
                    }
                    stage.established();
                }
                Ok(State::Serving(Current { id, stage, is_report, idle: now, closing: false }))
            }
            Called::Rejected(_) | Called::Failed(_) => {
                self.last = report::text(End::Refused, &[]);
                self.pause(now)
            }
        }
    }

    fn pause(&self, now: Instant) -> Result<State, Error> {
        if self.there.is_some_and(|there| now - there > PATIENCE) {
            let reason = format!("nobody there for {} s", PATIENCE.as_secs());
            return Err(Error::Connect { remote: self.remote, reason: NotConnected::Other(reason) });
        }
        Ok(State::Paused { since: Some(now) })
    }
}

impl Steps for Caller {
    fn step(&mut self, now: Instant) -> Result<bool, Error> {
        self.there.get_or_insert(now);
        let state = std::mem::replace(&mut self.state, State::Paused { since: None });
        let (state, moved) = match state {
            State::Paused { since } if since.is_none_or(|since| now - since >= PAUSE) => {
                (self.connect(now)?, true)
            }
            State::Connecting { id, stage, since } => match self.called(&id) {
                Some(called) => (self.answered(now, called, id, stage)?, true),
                None if now - since > self.options.param.timeout + PATIENCE => {
                    let after = self.options.param.timeout + PATIENCE;
                    return Err(Error::Silent { doing: "connecting", after });
                }
                None => (State::Connecting { id, stage, since }, false),
            },
            State::Serving(mut current) => {
                let moved = current.look_after(now)?;
                match current.ended(&self.events)? {
                    None => (State::Serving(current), moved),
                    Some(how) => {
                        if !current.is_report {
                            self.last = current.stage.report(how)?;
                        }
                        // The probe was there until now.
                        self.there = Some(now);
                        (self.pause(now)?, true)
                    }
                }
            }
            State::Paused { .. } | State::Leaving { .. } => (state, false),
        };
        self.state = state;
        Ok(moved)
    }

    fn is_done(&self, now: Instant) -> bool {
        matches!(self.state, State::Leaving { since, .. } if now - since >= PAUSE)
    }
}

impl Current {
    /// Makes one step of the scene, and ends the connection when the scene asks for it or a time limit has
    /// passed. Returns whether there were any completions.
    fn look_after(&mut self, now: Instant) -> Result<bool, Error> {
        let moved = self.stage.poll()?;
        if moved {
            self.idle = now;
        }
        let idle = now - self.idle;
        if (self.stage.wants_close() || idle > IDLE) && !self.closing {
            self.closing = true;
            self.id.disconnect();
        }
        if idle > 2 * IDLE {
            self.id.abort();
        }
        Ok(moved)
    }

    /// Returns how the connection ended; `None` if it has not ended.
    fn ended(&mut self, events: &EventChannel) -> Result<Option<End>, Error> {
        let event = events.poll().filter(|event| event.id == self.id);
        let error = match event.map(|event| event.kind) {
            Some(CmEventKind::Disconnected { error, .. }) => error,
            Some(CmEventKind::ConnectError { error, .. }) => Some(error),
            _ => return Ok(None),
        };
        let end = self.stage.end(error);
        self.stage.poll()?;
        Ok(Some(end))
    }
}

fn is_bye(wish: &str) -> bool {
    Scene::parse(wish).is_ok_and(|scene| scene.bye)
}
