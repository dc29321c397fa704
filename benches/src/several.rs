//! Client and server on several cores of one device: each core has a queue of the device, an engine on it and
//! a thread that polls it. All engines have one address. Core `n` of the client talks to port `PORT + n` of
//! the server, which core `n` there listens on; the device of the server decides which engine has the
//! connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::cli::{ClientArgs, ServerArgs};
use crate::cores::together;
use crate::driver::{Interrupt, WaitMode};
use crate::errors::Error;
use crate::net::{Cores, End};
use crate::output::Output;
use crate::params::{DEFAULT_PORT, Params};
use crate::perftest::client::{self, Outcome};
use crate::perftest::server::Server;
use crate::rendezvous::Rendezvous;
use crate::runs::Row;

/// Runs the tests of `sweep` on all cores, with the queue pairs spread over them.
///
/// # Errors
/// The first error of any core.
pub fn client(
    args: &ClientArgs,
    sweep: &[Params],
    cores: Cores,
    interrupt: &Interrupt,
    output: &mut Output,
) -> Result<(), Error> {
    let (unit, count) = (args.args.unit(), cores.ends.len());
    let Cores { mut ends, cpus } = cores;
    let first = args.remote.resolve(args.port, DEFAULT_PORT, &args.net.addresses())?;
    let mut outcome = Outcome::default();
    for params in sweep {
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
        let ran = together(ends, &cpus, interrupt, &mut |row| output.row(row), one)?;
        let outcomes: Vec<Outcome>;
        (ends, outcomes) = ran.into_iter().unzip();
        outcome = outcomes.into_iter().reduce(Outcome::merged).unwrap_or_default();
    }
    let counters: Vec<_> = ends.iter().map(|end| end.endpoint.driver.counters()).collect();
    output.end(&args.args, &sweep[0], &counters, ends[0].endpoint.clock.hz(), &outcome)?;
    output.device(&args.args, ends[0].device_stats.as_ref());
    Ok(())
}

/// Polls the engine of a core that is done until all are: connections of other cores may be on it.
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
    /// Cores that serve a client now.
    busy: AtomicUsize,
    /// The first core has served its only client, and ends the cores that wait for another.
    over: AtomicBool,
}

/// Serves clients on all cores.
///
/// # Errors
/// The first error of any core.
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
        end.endpoint.profile = args.args.profile;
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
            Err(error) if args.persistent => eprintln!("iwperf: {error}"),
            Err(error) => return Err(error),
            Ok(()) if args.persistent || !is_first => {}
            Ok(()) => break,
        }
    }
    // The others serve the same client.
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
    let unit = args.args.unit();
    let mut output = Output::held(client.params.test, unit);
    let params = client.params.clone();
    output.heading(&params, params.bidirectional);
    let served = server.serve(end, &mut client, unit, &mut |row| output.row(row)).and_then(|outcome| {
        let endpoint = &end.endpoint;
        // It prints all lines that were held.
        output.device(&args.args, end.device_stats.as_ref());
        output.end(&args.args, &params, &[endpoint.driver.counters()], endpoint.clock.hz(), &outcome)
    });
    service.busy.fetch_sub(1, Ordering::AcqRel);
    served
}
