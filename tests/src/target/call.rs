//! The target connects repeatedly, each time with the scene of the Reply.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use benches::endpoint::Endpoint;
use benches::errors::Error;
use iwarp::verbs::{CmEventKind, CmId, ConnectionError, EventChannel};
use tcp_lite::CloseReason;

use super::report::{self, End};
use super::scene::Scene;
use super::stage::Stage;
use super::{ConnectionOptions, IDLE, text};
use crate::contract::MAGIC;

/// Time before it connects again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long connections may be refused.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The outcome of connecting.
enum Called {
    Established(String),
    Rejected(String),
    Failed(ConnectionError),
}

/// Connects to the probe at `remote` until the probe sends `bye`.
///
/// # Errors
/// [`Error::Connect`] if no probe listens for ten seconds; errors of the verbs; [`Error::Interrupted`].
pub fn call(end: &mut Endpoint, remote: SocketAddr, options: &ConnectionOptions) -> Result<(), Error> {
    let events = end.context.create_event_channel()?;
    let mut last = report::text(End::Refused, &[]);
    let mut there = Instant::now();
    loop {
        let mut stage = Stage::new(&end.context)?;
        let id = end.context.create_id(&events);
        let param = options.param.clone().with_private_data(format!("{MAGIC} hello").as_bytes())?;
        id.connect(stage.qp(), remote, &param)?;
        let called = called(end, &events, &id)?;
        if !matches!(called, Called::Failed(ConnectionError::Tcp(CloseReason::Refused))) {
            there = Instant::now();
        }
        match called {
            Called::Established(wish) | Called::Rejected(wish) if is_bye(&wish) => {
                id.disconnect();
                return end.pause(PAUSE);
            }
            Called::Established(wish) => {
                let scene = Scene::parse(&wish).map_err(|word| Error::Exchange(format!("scene: {word}")))?;
                let is_report = scene.report;
                if is_report {
                    stage.say(&last)?;
                } else {
                    stage.set(&end.context, scene)?;
                    if wish.starts_with(MAGIC) {
                        stage.say(&stage.text())?;
                    }
                    stage.established();
                }
                let how = until_end(end, &events, &id, &mut stage)?;
                if !is_report {
                    last = stage.report(how)?;
                }
            }
            Called::Rejected(_) | Called::Failed(_) => last = report::text(End::Refused, &[]),
        }
        if there.elapsed() > TIME_LIMIT {
            return Err(Error::Connect {
                remote,
                reason: format!("no probe listened for {} s", TIME_LIMIT.as_secs()),
            });
        }
        end.pause(PAUSE)?;
    }
}

fn is_bye(wish: &str) -> bool {
    Scene::parse(wish).is_ok_and(|scene| scene.bye)
}

fn called(end: &mut Endpoint, events: &EventChannel, id: &CmId) -> Result<Called, Error> {
    let patience = end.timeout + TIME_LIMIT;
    end.wait("connecting", Some(patience), |_| {
        Ok(events.poll().filter(|event| event.id == *id).and_then(|event| match event.kind {
            CmEventKind::Established { private_data, .. } => Some(Called::Established(text(&private_data))),
            CmEventKind::Rejected { private_data, .. } => Some(Called::Rejected(text(&private_data))),
            CmEventKind::ConnectError { error, .. } => Some(Called::Failed(error)),
            CmEventKind::Disconnected { error, .. } => {
                Some(Called::Failed(error.unwrap_or(ConnectionError::PeerClosed)))
            }
            _ => None,
        }))
    })
}

/// Does what the scene requests until the connection has ended.
fn until_end(end: &mut Endpoint, events: &EventChannel, id: &CmId, stage: &mut Stage) -> Result<End, Error> {
    let mut idle = Instant::now();
    let mut closing = false;
    end.wait("serving a probe", None, |_| {
        if stage.poll()? {
            idle = Instant::now();
        }
        if (stage.wants_close() || idle.elapsed() > IDLE) && !closing {
            closing = true;
            id.disconnect();
        }
        if idle.elapsed() > 2 * IDLE {
            id.abort();
        }
        let over = events.poll().filter(|event| event.id == *id).and_then(|event| match event.kind {
            CmEventKind::Disconnected { error, .. } => Some(stage.end(error)),
            CmEventKind::ConnectError { error, .. } => Some(stage.end(Some(error))),
            _ => None,
        });
        if over.is_some() {
            stage.poll()?;
        }
        Ok(over)
    })
}
