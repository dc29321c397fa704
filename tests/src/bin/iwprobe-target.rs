//! The target of `iwprobe` over this stack. The target sets up what the probe asks for and reports what it
//! observed, so that the probe can check what is not visible on the wire. `tests/iwprobe/TARGET.md` describes
//! the protocol.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use benches::cli::NetArgs;
use benches::driver::Interrupt;
use benches::errors::Error;
use benches::net;
use clap::{Args, Parser, Subcommand};
use iwarp::verbs::ConnParam;
use tests::target::{self, ConnectionOptions};

/// A target for iwprobe over this stack.
#[derive(Debug, Parser)]
#[command(name = "iwprobe-target", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Listens, for `iwprobe connect`.
    Listen {
        /// TCP port.
        port: u16,
        #[command(flatten)]
        options: Options,
    },
    /// Connects repeatedly, for `iwprobe listen`.
    Connect {
        /// The probe's address.
        addr: IpAddr,
        /// TCP port.
        port: u16,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Debug, Args)]
struct Options {
    #[command(flatten)]
    net: NetArgs,
    /// Ask the probe for markers.
    #[arg(long)]
    markers: bool,
    /// Do not ask for CRCs.
    #[arg(long)]
    no_crc: bool,
    /// MPA revision of the Requests.
    #[arg(long, default_value_t = 2)]
    revision: u8,
    /// Connect in the client-server model, not peer-to-peer.
    #[arg(long)]
    client_server: bool,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Listen { port, options } => {
            options.run(|end, options| target::serve(end, port, options, &|line| println!("{line}")))
        }
        Command::Connect { addr, port, options } => {
            options.run(|end, options| target::call(end, SocketAddr::new(addr, port), options))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwprobe-target: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

impl Options {
    fn run(
        &self,
        run: impl FnOnce(&mut benches::endpoint::Endpoint, &ConnectionOptions) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let param = ConnParam {
            markers: self.markers,
            mpa_revision: self.revision,
            peer_to_peer: !self.client_server,
            timeout: self.net.timeout,
            ..ConnParam::default()
        };
        let mut end = net::open(&self.net, false, !self.no_crc, &Interrupt::on_signals()?)?.endpoint;
        run(&mut end, &ConnectionOptions { param })
    }
}

#[cfg(test)]
mod command_line {
    use clap::CommandFactory;

    #[test]
    fn it_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
