//! Runs the client of a test: connects, runs the test, and returns the results.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::endpoint::{Endpoint, STARTING, conn_param};
use crate::errors::Error;
use crate::net::End;
use crate::params::{Params, Test};
use crate::path::Path;
use crate::perftest::exchange::{Control, ControlLink, nothing};
use crate::perftest::script::Script;
use crate::perftest::wire::Dest;
use crate::private::{self, Hello};
use crate::private_report::FinalReport;
use crate::runs::OnRow;
use crate::table::Unit;

/// The results of a finished test, except its rows.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Whether the peer is iwperf.
    pub with_iwperf: bool,
    /// The peer's final message, if the peer is iwperf.
    pub peer: Option<FinalReport>,
    /// Number of messages that validation checked at this end.
    pub messages_checked: u64,
}

impl Outcome {
    /// Merges the results of two ends that measured at the same time.
    pub fn merged(self, other: Self) -> Self {
        let peers = self.peer.into_iter().chain(other.peer);
        Self {
            with_iwperf: self.with_iwperf && other.with_iwperf,
            peer: peers.reduce(FinalReport::merged),
            messages_checked: self.messages_checked + other.messages_checked,
        }
    }
}

/// Runs the test `params` against the server at `remote`.
///
/// # Errors
/// Returns any error that ends a test.
pub fn run(
    end: &mut End,
    remote: SocketAddr,
    params: &Params,
    unit: Unit,
    on_row: OnRow<'_>,
) -> Result<Outcome, Error> {
    let (mtu, gid) = (end.mtu, end.gid());
    let end = &mut end.endpoint;
    end.driver.set_wait_mode(crate::driver::WaitMode::Measuring);
    let (mut control, with_iwperf) = connect_control(end, remote, params)?;
    if params.validate && !with_iwperf {
        return Err(Error::Usage("--validate needs iwperf on both ends: this server is not iwperf".into()));
    }
    control.prefix(end, mtu)?;
    control.dest(end, &Dest::default(), &mut nothing)?;
    let mut path = Path::new(end, params, true, with_iwperf)?;
    connect_data(end, remote, &mut path)?;
    control.dest(end, &Dest::default(), &mut nothing)?;
    let mut script = Script { end, control: &mut control, path: &mut path, with_iwperf, unit, gid };
    let peer = script.run(on_row);
    let peer = peer.map_err(|error| leave(end, &control, &path, with_iwperf, error))?;
    finish(end, &control, &path, peer, with_iwperf)
}

/// Maximum wait for the end of the control connection: an interrupted end waits for its peer, and an end that
/// has lost a connection waits for the cause. The wait may be long, since the peer may be waiting for a
/// processor. A second signal ends the process at once.
const LONGEST_GOODBYE: Duration = Duration::from_secs(5);

/// After an error, ends the connections before their memory is freed, so that the peer notices the end.
/// Returns the cause of the error.
///
/// The connections are reset, with one exception. If this end was interrupted and the peer is iwperf, the
/// control connection is closed gracefully, so that the peer recognizes the interrupt.
pub(super) fn leave(
    end: &mut Endpoint,
    control: &Control,
    path: &Path,
    with_iwperf: bool,
    error: Error,
) -> Error {
    const GOODBYE: Duration = Duration::from_millis(20);
    let error = explained(end, control, path, with_iwperf, error);
    let tells_peer = with_iwperf && matches!(error, Error::Interrupted);
    if tells_peer {
        control.id().disconnect()
    } else {
        control.id().abort()
    }
    path.flows.iter().for_each(|flow| flow.id.abort());
    let begun = Instant::now();
    end.driver.linger(GOODBYE);
    while tells_peer && end.ended(control.id()).is_none() && begun.elapsed() < LONGEST_GOODBYE {
        end.driver.linger(Duration::from_millis(1));
    }
    error
}

/// Returns the cause of `error`. If `error` shows only that a connection has ended, waits for the event that
/// has the reason. Only the end of the control connection shows whether the peer was interrupted.
fn explained(end: &mut Endpoint, control: &Control, path: &Path, with_iwperf: bool, error: Error) -> Error {
    const TIME_LIMIT: Duration = Duration::from_millis(500);
    let doing = "measuring";
    let error = if error.lacks_its_reason() {
        let reason = end.wait("closing", Some(TIME_LIMIT), |end| {
            Ok(path.flows.iter().map(|flow| &flow.id).chain([control.id()]).find_map(|id| end.ended(id)))
        });
        reason.map_or(error, |reason| Error::Disconnected { doing, error: reason })
    } else {
        error
    };
    if with_iwperf && matches!(error, Error::Disconnected { .. }) {
        let of_control = end.wait("closing", Some(LONGEST_GOODBYE), |end| Ok(end.ended(control.id())));
        if let Ok(None) = of_control {
            return Error::PeerInterrupted { doing };
        }
    }
    error
}

/// Maximum time for perftest to notice the completion of its last Write, whose data has already arrived here,
/// and to close the connection.
const SETTLE: Duration = Duration::from_secs(1);

/// Closes the connections. Returns the results, or [`Error::Validation`] if validation found an error at this
/// end or at the peer.
pub(super) fn finish(
    end: &mut Endpoint,
    control: &Control,
    path: &Path,
    peer: Option<FinalReport>,
    with_iwperf: bool,
) -> Result<Outcome, Error> {
    if !with_iwperf && path.params.test == Test::WriteLat {
        // No message follows the last Write, and perftest fails if the connection closes before perftest has
        // finished. So we wait, within a time limit, until perftest closes.
        match end
            .wait("closing", Some(SETTLE), |end| Ok(path.flows.iter().find_map(|flow| end.ended(&flow.id))))
        {
            Ok(_) | Err(Error::Silent { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for flow in &path.flows {
        end.finish(&flow.id)?;
    }
    end.finish(control.id())?;
    // An error that this end found has more detail than an error that the peer reports.
    let told = peer.as_ref().and_then(|peer| peer.first_error.clone());
    let first_error = if path.messages_checked > 0 {
        path.first_error.clone().or(told)
    } else {
        told.or(path.first_error.clone())
    };
    match first_error {
        Some(first_error) => Err(Error::Validation(first_error)),
        None => Ok(Outcome { with_iwperf, peer, messages_checked: path.messages_checked }),
    }
}

fn connect_control(
    end: &mut Endpoint,
    remote: SocketAddr,
    params: &Params,
) -> Result<(Control, bool), Error> {
    let hello = Hello(params.clone()).encode();
    let mut param = conn_param(params, end.timeout, &hello)?;
    (param.responder_resources, param.initiator_depth) = (0, 0);
    // A refused connection makes its queue pair unusable, so each attempt makes a new queue pair.
    let mut link = ControlLink::new(end)?;
    let mut tried = false;
    let pd = end.pd.clone();
    let (id, _qp, answer) = end.connect(
        || {
            if std::mem::replace(&mut tried, true) {
                link.renew(&pd)?;
            }
            Ok(link.qp.clone())
        },
        remote,
        &param,
        STARTING,
    )?;
    Ok((Control::new(link, id, true), private::is_welcome(&answer)))
}

fn connect_data(end: &mut Endpoint, remote: SocketAddr, path: &mut Path) -> Result<(), Error> {
    let pd = end.pd.clone();
    for index in 0..path.params.qps {
        let param = conn_param(&path.params, end.timeout, &private::data_connection(index))?;
        let (id, qp, _answer) = end.connect(|| path.create_qp(&pd), remote, &param, end.timeout)?;
        path.add(qp, id)?;
    }
    Ok(())
}
