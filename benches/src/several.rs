//! Client and server on several cores of one device. Each core has a queue of the device, an engine on the
//! queue, and a thread that polls the engine. All engines share the same IP addresses. Core `n` of the client
//! connects to port `PORT + n` of the server, on which core `n` of the server listens. The server's device
//! decides which engine carries the connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dp::Clock;

use crate::cli::{ServerArgs, TestArgs};
use crate::cores::together;
use crate::driver::{Interrupt, WaitMode};
use crate::errors::Error;
use crate::lines::tell;
use crate::net::{Cores, End};
use crate::output::{self, Output};
use crate::params::Params;
use crate::perftest::client::{self, Outcome};
use crate::perftest::server::Server;
use crate::rendezvous::Rendezvous;
use crate::runs::Row;

/// Runs the tests of `sweep` on all cores, with the queue pairs spread over the cores.
///
/// # Errors
/// Returns an error of the output or, if cores fail, the error that is the cause.
pub fn client(
    first: SocketAddr,
    sweep: &[Params],
    args: &TestArgs,
    cores: Cores,
    interrupt: &Interrupt,
    output: &mut Output<'_>,
) -> Result<(), Error> {
    let (unit, count, hz) = (args.unit(), cores.ends.len(), Clock::new().hz());
    let Cores { mut ends, cpus } = cores;
    let mut outcome = Outcome::default();
    let ended = sweep.iter().try_for_each(|params| {
        output.heading(params, true);
        let (begin, over) = (Rendezvous::new(count), Rendezvous::new(count));
        let begin = std::sync::Arc::new(begin);
        let one = |index: usize, mut end: End, on_row: &mut dyn FnMut(&Row)| {
            end.take_thread()?;
            end.endpoint.rendezvous = Some(std::sync::Arc::clone(&begin));
            let share = params.share(index as u32, count as u32);
            let remote = port_of(first, index)?;
            let outcome = client::run(&mut end, remote, &share, unit, on_row)?;
            keep_polling(&mut end, &over)?;
            Ok((end, outcome))
        };
        let states = std::mem::take(&mut ends);
        let ran = together(states, &cpus, interrupt, &mut |row| output.row(row), one)?;
        let outcomes: Vec<Outcome>;
        (ends, outcomes) = ran.into_iter().unzip();
        outcome = outcomes.into_iter().reduce(Outcome::merged).unwrap_or_default();
        ends.iter().try_for_each(|end| end.endpoint.driver.interrupted())
    });
    let counters: Vec<_> = ends.iter().map(|end| end.endpoint.driver.counters()).collect();
    let ended = output.end(output::Conclusion {
        params: &sweep[0],
        counters: &counters,
        hz,
        outcome: &outcome,
        ended,
    });
    output.device(ends.first().and_then(|end| end.device_stats.as_ref()));
    ended
}

/// Polls the engine of a finished core until all cores have finished, since this engine may carry connections
/// of other cores.
fn keep_polling(end: &mut End, over: &Rendezvous) -> Result<(), Error> {
    end.endpoint.driver.set_wait_mode(WaitMode::Measuring);
    over.meet(|| {
        if !end.endpoint.driver.poll()? {
            end.endpoint.driver.idle()?;
        }
        Ok(())
    })
}

fn port_of(first: SocketAddr, core: usize) -> Result<SocketAddr, Error> {
    let port = u16::try_from(core).ok().and_then(|core| first.port().checked_add(core));
    let port = port.ok_or_else(|| {
        Error::Usage(format!("--cores: port {} leaves no room for a port of each core", first.port()))
    })?;
    Ok(SocketAddr::new(first.ip(), port))
}

/// The state that the cores of a server share.
#[derive(Default)]
struct Service {
    /// Number of cores that serve a client now.
    busy: AtomicUsize,
    /// True if the first core has served its only client. Cores that wait for another client then end.
    over: AtomicBool,
}

/// Serves clients on all cores.
///
/// # Errors
/// Returns [`Error::Usage`] if there are too few ports. If cores fail, returns the error that is the cause.
pub fn server(
    args: &ServerArgs,
    fallback: Option<&Params>,
    cores: Cores,
    interrupt: &Interrupt,
    say: impl Fn(&str) + Sync,
) -> Result<(), Error> {
    let (service, count) = (Service::default(), cores.ends.len());
    let any = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), args.port);
    let last = port_of(any, count - 1)?.port();
    let listening = Rendezvous::new(count);
    let one = |index: usize, mut end: End, _: &mut dyn FnMut(&Row)| {
        end.take_thread()?;
        args.args.set(&mut end);
        let server = Server::listen(&mut end, port_of(any, index)?.port())?;
        listening.meet(|| end.endpoint.driver.poll().map(drop))?;
        if index == 0 {
            say(&format!("listening on ports {} to {last}, one for each core", args.port));
        }
        let ended = serve_clients(&server, &mut end, args, fallback, &service, index == 0);
        match ended {
            Ok(()) => {
                service.over.store(true, Ordering::Release);
                interrupt.raise();
                Ok(())
            }
            Err(Error::Interrupted) if service.over.load(Ordering::Acquire) => Ok(()),
            Err(error) => Err(error),
        }
    };
    together(cores.ends, &cores.cpus, interrupt, &mut |_| {}, one)?;
    Ok(())
}

fn serve_clients(
    server: &Server,
    end: &mut End,
    args: &ServerArgs,
    fallback: Option<&Params>,
    service: &Service,
    is_first: bool,
) -> Result<(), Error> {
    loop {
        let served = serve_one(server, end, args, fallback, service);
        match served {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) if args.persistent => tell(&format!("iwperf: {error}")),
            Err(error) => return Err(error),
            Ok(()) if args.persistent || !is_first => {}
            Ok(()) => break,
        }
    }
    // The other cores may still serve the same client.
    while service.busy.load(Ordering::Acquire) > 0 {
        if !end.endpoint.driver.poll()? {
            end.endpoint.driver.idle()?;
        }
    }
    Ok(())
}

fn serve_one(
    server: &Server,
    end: &mut End,
    args: &ServerArgs,
    fallback: Option<&Params>,
    service: &Service,
) -> Result<(), Error> {
    let mut client = server.accept(end, fallback)?;
    service.busy.fetch_add(1, Ordering::AcqRel);
    let params = client.params.clone();
    let mut output = Output::held(params.test, &args.args);
    output.heading(&params, params.bidirectional);
    let served = server.serve(end, &mut client, args.args.unit(), &mut |row| output.row(row));
    let (outcome, ended) =
        served.map_or_else(|error| (Outcome::default(), Err(error)), |done| (done, Ok(())));
    let counters = [end.endpoint.driver.counters()];
    // The call to `end` prints all lines that were held.
    output.device(end.device_stats.as_ref());
    let hz = end.endpoint.clock.hz();
    let ended =
        output.end(output::Conclusion { params: &params, counters: &counters, hz, outcome: &outcome, ended });
    service.busy.fetch_sub(1, Ordering::AcqRel);
    ended
}
