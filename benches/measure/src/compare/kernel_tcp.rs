//! One side of a connection with small messages over the kernel's TCP. Such connections are the baseline of
//! our small messages.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use crate::compare::kernel::program::{listen, ping, pong, sink, source};
use clap::Subcommand;
use serde::Serialize;
use testing::lab::Result;
use testing::lab_error;

/// One side of a TCP connection with small messages. Prints its results as one line of JSON.
#[derive(Debug, Subcommand)]
pub(crate) enum KernelTcpEnd {
    /// Listens, and sends all received bytes back.
    Pong {
        /// Address to listen on.
        address: SocketAddr,
        /// Number of bytes of a message.
        #[arg(long, default_value_t = 64)]
        size: usize,
    },
    /// Connects, and measures round trips.
    Ping {
        /// Address to connect to.
        address: SocketAddr,
        /// Number of bytes of a message.
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Number of round trips.
        #[arg(long, default_value_t = 100_000)]
        count: u64,
    },
    /// Listens, and counts the received bytes.
    Sink {
        /// Address to listen on.
        address: SocketAddr,
        /// Sleep when nothing has arrived, instead of spinning.
        #[arg(long)]
        block: bool,
    },
    /// Connects, and sends each message with one call.
    Source {
        /// Address to connect to.
        address: SocketAddr,
        /// Number of bytes of a message.
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Duration in seconds.
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
}

pub(crate) fn run(end: KernelTcpEnd) -> ExitCode {
    match work(end) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure kernel-tcp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(end: KernelTcpEnd) -> Result<()> {
    match end {
        KernelTcpEnd::Pong { address, size } => pong(&listen(address)?, size),
        KernelTcpEnd::Ping { address, size, count } => say(&ping(address, size, count)?),
        KernelTcpEnd::Sink { address, block } => say(&sink(&listen(address)?, block)?),
        KernelTcpEnd::Source { address, size, seconds } => {
            let time = Duration::try_from_secs_f64(seconds).map_err(|error| lab_error!("{error}"))?;
            source(address, size, time)
        }
    }
}

fn say(figures: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(figures).map_err(|error| lab_error!("{error}"))?);
    Ok(())
}
