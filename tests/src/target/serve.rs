//! A target of iwprobe that listens. This target serves one connection at a time. The Request of each
//! connection contains the scene of the connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use benches::endpoint::Endpoint;
use benches::errors::Error;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionError, Context, EventChannel, ListenOptions,
};

use super::report::{self, End};
use super::scene::Scene;
use super::stage::Stage;
use super::{ConnectionOptions, IDLE, Steps, text};
use crate::contract::{MAGIC, MAX_TEXT};

/// Maximum number of connect requests that wait.
const BACKLOG: usize = 64;
/// Time from the next connect request until the target disconnects the current connection. After twice this
/// time, the target aborts the current connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// The connection that the target serves now.
struct Current {
    id: CmId,
    stage: Stage,
    ended: Option<Option<ConnectionError>>,
    /// The time of the connection's last activity.
    idle: Instant,
    /// The time at which the next connect request arrived.
    pressed: Option<Instant>,
    closing: bool,
}

/// A target that listens.
pub(super) struct Server {
    context: Context,
    options: ConnectionOptions,
    events: EventChannel,
    _listener: CmId,
    waiting: VecDeque<(CmId, String)>,
    current: Option<Current>,
    last: String,
}

/// Serves probes on `port` until the program is interrupted.
///
/// # Errors
/// If the verbs refuse a call, or if the program is interrupted.
pub fn serve(
    end: &mut Endpoint,
    port: u16,
    options: &ConnectionOptions,
    on_line: &dyn Fn(&str),
) -> Result<(), Error> {
    let mut server = Server::listen(&end.context, port, options)?;
    on_line(&format!("listening on port {port}"));
    super::run(end, &mut server)
}

impl Server {
    /// Listens on `port` of every engine of `context`.
    ///
    /// # Errors
    /// If the verbs refuse a call.
    pub(super) fn listen(context: &Context, port: u16, options: &ConnectionOptions) -> Result<Self, Error> {
        let events = context.create_event_channel()?;
        let listener = context.create_id(&events);
        // Most cases of a probe end their connection with an error on purpose. These errors must not block
        // the probe's address.
        let mut listening =
            ListenOptions { backlog: BACKLOG, failures_per_address: None, ..ListenOptions::new(port) };
        listening.responder.startup_timeout = options.param.timeout;
        listener.listen_with(&listening)?;
        Ok(Self {
            context: context.clone(),
            options: options.clone(),
            events,
            _listener: listener,
            waiting: VecDeque::new(),
            current: None,
            last: report::text(End::Refused, &[]),
        })
    }

    fn take(&mut self, now: Instant, event: CmEvent) {
        if let CmEventKind::ConnectRequest { private_data, .. } = &event.kind {
            self.waiting.push_back((event.id, text(private_data)));
            return;
        }
        let Some(current) = self.current.as_mut().filter(|current| current.id == event.id) else { return };
        current.idle = now;
        match event.kind {
            CmEventKind::Established { .. } => current.stage.established(),
            CmEventKind::Disconnected { error, .. } => current.ended = Some(error),
            CmEventKind::ConnectError { error, .. } => current.ended = Some(Some(error)),
            _ => {}
        }
    }

    /// Handles completions, the end of the connection, and time limits. Returns whether anything was done.
    fn look_after(&mut self, now: Instant) -> Result<bool, Error> {
        let Some(current) = &mut self.current else { return Ok(false) };
        let moved = current.stage.poll()?;
        if moved {
            current.idle = now;
        }
        if !self.waiting.is_empty() {
            current.pressed.get_or_insert(now);
        }
        let pressed = current.pressed.map_or(Duration::ZERO, |since| now - since);
        if (current.stage.wants_close() || pressed > PATIENCE || now - current.idle > IDLE)
            && !current.closing
        {
            current.closing = true;
            current.id.disconnect();
        }
        if pressed > 2 * PATIENCE {
            current.id.abort();
        }
        let Some(error) = current.ended else { return Ok(moved) };
        if !current.stage.scene().report {
            let end = if pressed > PATIENCE { End::Open } else { current.stage.end(error) };
            self.last = current.stage.report(end)?;
        }
        self.current = None;
        Ok(true)
    }

    fn begin(&mut self, now: Instant, id: CmId, wish: &str) -> Result<(), Error> {
        let scene = match Scene::parse(wish) {
            Ok(scene) if scene.reject => {
                self.last = report::text(End::Refused, &[]);
                return Ok(id.reject(format!("{MAGIC} no").as_bytes())?);
            }
            Ok(scene) => scene,
            Err(word) => {
                let told: String = format!("{MAGIC} bad {word}").chars().take(MAX_TEXT).collect();
                return Ok(id.reject(told.as_bytes())?);
            }
        };
        let mut stage = Stage::new(&self.context)?;
        let ours = &self.options.param;
        let mut param = ConnParam {
            responder_resources: scene.ird.unwrap_or(ours.responder_resources),
            initiator_depth: scene.ord.unwrap_or(ours.initiator_depth),
            ..ours.clone()
        };
        let told = if scene.report { self.last.clone() } else { String::new() };
        stage.set(&self.context, scene)?;
        if wish.split(' ').next() == Some(MAGIC) {
            let told = if told.is_empty() { stage.text() } else { told };
            param = param.with_private_data(told.as_bytes())?;
        }
        // If the peer has ended the connection, accepting fails, and the target serves the next connect
        // request.
        if id.accept(stage.qp(), &param).is_ok() {
            self.current = Some(Current { id, stage, ended: None, idle: now, pressed: None, closing: false });
        }
        Ok(())
    }
}

impl Steps for Server {
    fn step(&mut self, now: Instant) -> Result<bool, Error> {
        let mut moved = false;
        while let Some(event) = self.events.poll() {
            moved = true;
            self.take(now, event);
        }
        moved |= self.look_after(now)?;
        if self.current.is_none()
            && let Some((id, wish)) = self.waiting.pop_front()
        {
            moved = true;
            self.begin(now, id, &wish)?;
        }
        Ok(moved)
    }
}
