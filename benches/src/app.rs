//! Each command of the command line, from its options to its output.

use crate::cli::{Cli, ClientArgs, Command, LocalArgs, PingClientArgs, PongArgs, ServerArgs};
use crate::driver::Interrupt;
use crate::errors::Error;
use crate::net;
use crate::output::Output;
use crate::params::{DEFAULT_PORT, Params, Test};
use crate::perftest::client;
use crate::perftest::server::{Client, Server};
use crate::{local, ping};

/// Runs a command.
///
/// # Errors
/// Whatever ends it early.
pub fn run(cli: Cli) -> Result<(), Error> {
    let interrupt = Interrupt::on_signals()?;
    match cli.command {
        Command::Server(args) => server(&args, &interrupt),
        Command::WriteBw(args) => client(Test::WriteBw, &args, &interrupt),
        Command::ReadBw(args) => client(Test::ReadBw, &args, &interrupt),
        Command::SendBw(args) => client(Test::SendBw, &args, &interrupt),
        Command::WriteLat(args) => client(Test::WriteLat, &args, &interrupt),
        Command::ReadLat(args) => client(Test::ReadLat, &args, &interrupt),
        Command::SendLat(args) => client(Test::SendLat, &args, &interrupt),
        Command::Local(args) => local(&args, &interrupt),
        Command::Ping(args) => ping(&args, &interrupt),
        Command::Pong(args) => pong(&args, &interrupt),
    }
}

fn client(test: Test, args: &ClientArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let params = args.args.params(test)?;
    let unit = args.args.unit();
    let mut end = net::open(&args.net, params.events, interrupt)?;
    let mut output = Output::begin(&params, unit, false);
    let remote = args.remote.with_port(DEFAULT_PORT);
    let outcome = client::run(&mut end, remote, &params, unit, &mut |row| output.row(row))?;
    let end = &end.endpoint;
    output.end(&args.args, &params, &end.driver, end.clock.hz(), &outcome)
}

fn server(args: &ServerArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let fallback = args.test.map(|test| args.args.params(test)).transpose()?;
    let mut end = net::open(&args.net, args.args.events, interrupt)?;
    let server = Server::listen(&mut end, args.port)?;
    say(&format!("listening on port {}", args.port));
    loop {
        let served = server
            .accept(&mut end, fallback.as_ref())
            .and_then(|mut client| serve(&server, &mut end, &mut client, args));
        match served {
            Ok(()) if args.persistent => {}
            // One client's trouble is not the next one's.
            Err(error) if args.persistent && !matches!(error, Error::Interrupted) => {
                eprintln!("iwperf: {error}")
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
    let unit = args.args.unit();
    let mut output = Output::begin(&params, unit, false);
    let outcome = server.serve(end, client, unit, &mut |row| output.row(row))?;
    let end = &end.endpoint;
    output.end(&args.args, &params, &end.driver, end.clock.hz(), &outcome)
}

fn local(args: &LocalArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let params = args.args.params(args.test)?;
    let unit = args.args.unit();
    let wire = local::Wire {
        ipv6: args.ipv6,
        mtu: args.mtu,
        drop_ppm: args.drop_ppm,
        pcap: args.pcap.as_deref(),
        timeout: args.timeout,
    };
    let output = std::cell::RefCell::new(Output::begin(&params, unit, false));
    local::run(&wire, &params, unit, interrupt, &mut |row| output.borrow_mut().row(row), |end, outcome| {
        let end = &end.endpoint;
        output.borrow().end(&args.args, &params, &end.driver, end.clock.hz(), outcome)
    })
}

fn ping(args: &PingClientArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let mut end = net::open(&args.net, false, interrupt)?;
    ping::client::run(&mut end.endpoint, args.remote.with_port(ping::DEFAULT_PORT), &args.ping, &mut say)
}

fn pong(args: &PongArgs, interrupt: &Interrupt) -> Result<(), Error> {
    let mut end = net::open(&args.net, false, interrupt)?;
    let server = ping::server::Server::listen(&mut end.endpoint, args.port)?;
    say(&format!("listening on port {}", args.port));
    loop {
        match server.serve(&mut end.endpoint, &args.ping, &mut say) {
            Ok(()) if args.persistent => {}
            Err(error) if args.persistent && !matches!(error, Error::Interrupted) => {
                eprintln!("iwperf: {error}")
            }
            ended => {
                server.stop();
                return ended;
            }
        }
    }
}

/// A line on standard output, at once. A reader that has gone away is no reason to fail.
fn say(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
}
