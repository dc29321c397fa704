//! Runs each subcommand of iwperf: turns its options into parameters, runs it, and writes its output.

use dp::Clock;

use crate::cli::{Cli, ClientArgs, Command, LocalArgs, PingClientArgs, PongArgs, ServerArgs};
use crate::driver::Interrupt;
use crate::errors::Error;
use crate::lines::{say, tell};
use crate::net;
use crate::output::{Conclusion, Output, files};
use crate::params::{DEFAULT_PORT, Params, Test};
use crate::perftest::client::{self, Outcome};
use crate::perftest::server::{Client, Server};
use crate::runs::Row;
use crate::{documents, local, ping, several};

/// Runs a command.
///
/// # Errors
/// Returns the error that ended the command.
pub fn run(cli: Cli) -> Result<(), Error> {
    crate::log::start(cli.log.as_deref())?;
    if let Some(note) = cli.command.test_args().and_then(|args| args.perftest.note()) {
        tell(&format!("iwperf: {note}"));
    }
    let interrupt = Interrupt::on_signals()?;
    if let Some(address) = cli.metrics {
        let address = crate::metrics::serve(address)?;
        tell(&format!("iwperf: metrics at http://{address}/metrics"));
    }
    match cli.command {
        Command::Server(args) => server(&args, &interrupt),
        Command::WriteBw(args) => client(Test::WriteBw, &args, &interrupt),
        Command::ReadBw(args) => client(Test::ReadBw, &args, &interrupt),
        Command::SendBw(args) => client(Test::SendBw, &args, &interrupt),
        Command::WriteImmBw(args) => client(Test::WriteImmBw, &args, &interrupt),
        Command::AtomicBw(args) => client(Test::AtomicBw, &args, &interrupt),
        Command::AtomicLat(args) => client(Test::AtomicLat, &args, &interrupt),
        Command::WriteLat(args) => client(Test::WriteLat, &args, &interrupt),
        Command::ReadLat(args) => client(Test::ReadLat, &args, &interrupt),
        Command::SendLat(args) => client(Test::SendLat, &args, &interrupt),
        Command::Local(args) => local(&args, &interrupt),
        Command::Ping(args) => ping(&args, &interrupt),
        Command::Pong(args) => pong(&args, &interrupt),
        Command::Completions { shell } => documents::completions(shell),
        Command::Man { folder } => documents::man(folder.as_deref()),
    }
}

fn client(test: Test, args: &ClientArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let sweep = args.args.sweep(test)?;
    files::check(&args.args)?;
    let remote = args.remote.resolve(args.port, DEFAULT_PORT, &args.net.addresses())?;
    let mut output = Output::new(test, &args.args);
    if args.net.cores > 1 {
        check_cores(args.net.cores.into(), &sweep)?;
        let cores = net::open_cores(&args.net, !args.args.no_crc, interrupt)?;
        return several::client(remote, &sweep, &args.args, cores, interrupt, &mut output);
    }
    let mut end = net::open(&args.net, args.args.events, !args.args.no_crc, interrupt)?;
    args.args.set(&mut end);
    let mut outcome = Outcome::default();
    let ended = sweep.iter().try_for_each(|params| {
        output.heading(params, true);
        outcome = client::run(&mut end, remote, params, args.args.unit(), &mut |row| output.row(row))?;
        end.endpoint.driver.interrupted()
    });
    let net::End { endpoint, device_stats, .. } = &end;
    let counters = [endpoint.driver.counters()];
    let hz = endpoint.clock.hz();
    let ended =
        output.end(Conclusion { params: &sweep[0], counters: &counters, hz, outcome: &outcome, ended });
    output.device(device_stats.as_ref());
    ended
}

fn server(args: &ServerArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let fallback = args.test.map(|test| args.args.params(test)).transpose()?;
    args.args.check()?;
    files::check(&args.args)?;
    if args.net.cores > 1 {
        if args.args.events {
            return Err(Error::Usage("--cores cannot be used with --events".into()));
        }
        let cores = net::open_cores(&args.net, !args.args.no_crc, interrupt)?;
        return several::server(args, fallback.as_ref(), cores, interrupt, say);
    }
    let mut end = net::open(&args.net, args.args.events, !args.args.no_crc, interrupt)?;
    args.args.set(&mut end);
    let server = Server::listen(&mut end, args.port)?;
    say(&format!("listening on port {}", args.port));
    loop {
        let served = server
            .accept(&mut end, fallback.as_ref())
            .and_then(|mut client| serve(&server, &mut end, &mut client, args));
        match served {
            Ok(()) if args.persistent => {}
            // With -P, the server continues after the error of a client, unless a signal has interrupted the
            // server.
            Err(error) if args.persistent && !matches!(error, Error::Interrupted) => {
                tell(&format!("iwperf: {error}"))
            }
            ended => {
                server.stop();
                return ended;
            }
        }
    }
}

fn serve(server: &Server, end: &mut net::End, client: &mut Client, args: &ServerArgs) -> Result<(), Error> {
    say(&format!("{} asks for {}", client.remote, client.params.test.name()));
    let params: Params = client.params.clone();
    let mut output = Output::new(params.test, &args.args);
    output.heading(&params, params.bidirectional);
    let served = server.serve(end, client, args.args.unit(), &mut |row| output.row(row));
    let (outcome, ended) =
        served.map_or_else(|error| (Outcome::default(), Err(error)), |done| (done, Ok(())));
    let net::End { endpoint, device_stats, .. } = end;
    let counters = [endpoint.driver.counters()];
    let hz = endpoint.clock.hz();
    let ended = output.end(Conclusion { params: &params, counters: &counters, hz, outcome: &outcome, ended });
    output.device(device_stats.as_ref());
    ended
}

fn local(args: &LocalArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let sweep = args.args.sweep(args.test)?;
    files::check(&args.args)?;
    let unit = args.args.unit();
    let wire = local::Wire {
        ipv6: args.ipv6,
        mtu: args.mtu,
        drop_ppm: args.drop_ppm,
        tos: args.tos.unwrap_or(0),
        pcap: args.pcap.as_deref(),
        timeout: args.timeout,
        profile: args.args.profile,
        keeps_samples: args.args.keeps_samples(),
        port: args.port,
        core: None,
    };
    // Without --cores, the kernel chooses the CPUs on which the two sides run.
    let cores: Vec<Option<u32>> =
        if args.cores.is_empty() { vec![None] } else { args.cores.iter().copied().map(Some).collect() };
    let mut runs = Vec::new();
    for params in &sweep {
        for cores in &cores {
            runs.push((params, cores.map(|cores| cpus(args, params, cores)).transpose()?));
        }
    }
    let mut output = Output::new(args.test, &args.args);
    let mut last: Vec<local::Ended> = Vec::new();
    let ended = runs.iter().try_for_each(|(params, cpus)| {
        output.heading(params, true);
        let mut on_row = |row: &Row| output.row(row);
        last = match cpus {
            Some(cpus) => local::run_cores(&wire, params, unit, interrupt, cpus, &mut on_row)?,
            None => vec![local::run(&wire, params, unit, interrupt, &mut on_row)?],
        };
        output.target(last.iter().flat_map(|ended| ended.target.clone()));
        last.iter().try_for_each(|ended| ended.end.endpoint.driver.interrupted())
    });
    let counters: Vec<_> = last.iter().map(|ended| ended.end.endpoint.driver.counters()).collect();
    let outcome = last.into_iter().map(|ended| ended.outcome).reduce(Outcome::merged).unwrap_or_default();
    let (params, hz) = (&sweep[0], Clock::new().hz());
    output.end(Conclusion { params, counters: &counters, hz, outcome: &outcome, ended })
}

/// Checks that each test of `sweep` can run on `cores` cores.
fn check_cores(cores: u32, sweep: &[Params]) -> Result<(), Error> {
    let usage = |text: String| Err(Error::Usage(text));
    for params in sweep {
        if cores > params.qps {
            let qps = params.qps;
            return usage(format!("--cores {cores}: each core needs a queue pair, but --qp is {qps}"));
        }
        if params.test.is_latency() && cores > 1 {
            return usage(format!("{}: --cores works with bandwidth tests only", params.test.name()));
        }
        if params.events {
            return usage("--cores cannot be used with --events".into());
        }
    }
    Ok(())
}

/// The CPUs for `--cores`: the first `cores` CPUs that this process may use.
fn cpus(args: &LocalArgs, params: &Params, cores: u32) -> Result<Vec<usize>, Error> {
    let usage = |text: String| Err(Error::Usage(text));
    check_cores(cores, std::slice::from_ref(params))?;
    if args.pcap.is_some() && cores > 1 {
        return usage("several cores cannot be used with --pcap".into());
    }
    let mut cpus = net::allowed_cpus()?;
    if cpus.len() < cores as usize {
        return usage(format!("--cores {cores}: this process may use only {} CPUs", cpus.len()));
    }
    cpus.truncate(cores as usize);
    Ok(cpus)
}

fn ping(args: &PingClientArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let remote = args.remote.resolve(args.port, ping::DEFAULT_PORT, &args.net.addresses())?;
    let mut end = net::open(&args.net, false, true, interrupt)?;
    ping::client::run(&mut end.endpoint, remote, &args.ping, &mut say)
}

fn pong(args: &PongArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let mut end = net::open(&args.net, false, true, interrupt)?;
    let server = ping::server::PingServer::listen(&mut end.endpoint, args.port)?;
    say(&format!("listening on port {}", args.port));
    loop {
        match server.serve(&mut end.endpoint, &args.ping, &mut say) {
            Ok(()) if args.persistent => {}
            Err(error) if args.persistent && !matches!(error, Error::Interrupted) => {
                tell(&format!("iwperf: {error}"))
            }
            ended => {
                server.stop();
                return ended;
            }
        }
    }
}
