//! The target listens: one connection at a time, each with the scene of its Request.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use benches::endpoint::Endpoint;
use benches::errors::Error;
use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnParam, ConnectionError, EventChannel, ListenOptions};

use super::report::{self, End};
use super::scene::Scene;
use super::stage::Stage;
use super::{ConnectionOptions, IDLE, text};
use crate::contract::{MAGIC, MAX_TEXT};

/// Limit of waiting connect requests.
const BACKLOG: usize = 64;
/// How long a connection may take to end when the next one waits.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// The connection that is served.
struct Current {
    id: CmId,
    stage: Stage,
    ended: Option<Option<ConnectionError>>,
    /// When it did something last.
    idle: Instant,
    /// When the next connection was requested.
    pressed: Option<Instant>,
    closing: bool,
}

struct Server<'a> {
    end: &'a mut Endpoint,
    options: &'a ConnectionOptions,
    events: EventChannel,
    waiting: VecDeque<(CmId, String)>,
    current: Option<Current>,
    last: String,
}

/// Serves probes on `port` until it is interrupted.
///
/// # Errors
/// Errors of the verbs; [`Error::Interrupted`].
pub fn serve(
    end: &mut Endpoint,
    port: u16,
    options: &ConnectionOptions,
    on_line: &dyn Fn(&str),
) -> Result<(), Error> {
    let events = end.context.create_event_channel()?;
    let listener = end.context.create_id(&events);
    // Most connections of a probe fail on purpose.
    let mut listen_options =
        ListenOptions { backlog: BACKLOG, failures_per_address: None, ..ListenOptions::new(port) };
    listen_options.responder.startup_timeout = end.timeout;
    listener.listen_with(&listen_options)?;
    on_line(&format!("listening on port {port}"));
    let last = report::text(End::Refused, &[]);
    let mut server = Server { end, options, events, waiting: VecDeque::new(), current: None, last };
    loop {
        server.turn()?;
    }
}

impl Server<'_> {
    fn turn(&mut self) -> Result<(), Error> {
        let mut moved = self.end.driver.poll()?;
        while let Some(event) = self.events.poll() {
            moved = true;
            self.take(event);
        }
        moved |= self.look_after()?;
        if self.current.is_none()
            && let Some((id, wish)) = self.waiting.pop_front()
        {
            moved = true;
            self.begin(id, &wish)?;
        }
        if moved {
            self.end.driver.busy();
            return Ok(());
        }
        self.end.driver.idle()
    }

    fn take(&mut self, event: CmEvent) {
        if let CmEventKind::ConnectRequest { private_data, .. } = &event.kind {
            self.waiting.push_back((event.id, text(private_data)));
            return;
        }
        let Some(current) = self.current.as_mut().filter(|current| current.id == event.id) else { return };
        current.idle = Instant::now();
        match event.kind {
            CmEventKind::Established { .. } => current.stage.established(),
            CmEventKind::Disconnected { error, .. } => current.ended = Some(error),
            CmEventKind::ConnectError { error, .. } => current.ended = Some(Some(error)),
            _ => {}
        }
    }

    /// Handles completions, the end, and time limits.
    fn look_after(&mut self) -> Result<bool, Error> {
        let Some(current) = &mut self.current else { return Ok(false) };
        let moved = current.stage.poll()?;
        if moved {
            current.idle = Instant::now();
        }
        if !self.waiting.is_empty() {
            current.pressed.get_or_insert_with(Instant::now);
        }
        let pressed = current.pressed.map_or(Duration::ZERO, |since| since.elapsed());
        if (current.stage.wants_close() || pressed > TIME_LIMIT || current.idle.elapsed() > IDLE)
            && !current.closing
        {
            current.closing = true;
            current.id.disconnect();
        }
        if pressed > 2 * TIME_LIMIT {
            current.id.abort();
        }
        let Some(error) = current.ended else { return Ok(moved) };
        if !current.stage.scene().report {
            let end = if pressed > TIME_LIMIT { End::Open } else { current.stage.end(error) };
            self.last = current.stage.report(end)?;
        }
        self.current = None;
        Ok(true)
    }

    fn begin(&mut self, id: CmId, wish: &str) -> Result<(), Error> {
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
        let mut stage = Stage::new(&self.end.context)?;
        let ours = &self.options.param;
        let mut param = ConnParam {
            responder_resources: scene.ird.unwrap_or(ours.responder_resources),
            initiator_depth: scene.ord.unwrap_or(ours.initiator_depth),
            ..ours.clone()
        };
        let told = if scene.report { self.last.clone() } else { String::new() };
        stage.set(&self.end.context, scene)?;
        if wish.split(' ').next() == Some(MAGIC) {
            let told = if told.is_empty() { stage.text() } else { told };
            param = param.with_private_data(told.as_bytes())?;
        }
        // The peer may have gone already. Then the next one is served.
        if id.accept(stage.qp(), &param).is_ok() {
            let idle = Instant::now();
            self.current = Some(Current { id, stage, ended: None, idle, pressed: None, closing: false });
        }
        Ok(())
    }
}
