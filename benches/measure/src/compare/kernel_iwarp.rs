//! One side of a connection with RDMA Writes over the kernel's sockets, as a user without DPDK would program
//! it.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use crate::compare::kernel::program::listen;
use crate::compare::kernel::writes::{ping, place, pong, write};
use clap::{Args, Subcommand};
use serde::Serialize;
use testing::lab::Result;
use testing::lab_error;

/// One side of a TCP connection with RDMA Writes. Prints its results as one line of JSON.
#[derive(Debug, Subcommand)]
pub(crate) enum KernelIwarpEnd {
    /// Listens, and places the Writes that it receives.
    Target {
        #[command(flatten)]
        writes: Writes,
    },
    /// Connects, and sends Writes.
    Writer {
        #[command(flatten)]
        writes: Writes,
        /// Duration in seconds.
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
    /// Listens, and answers each Write with a Write.
    Pong {
        #[command(flatten)]
        writes: Writes,
    },
    /// Connects, and measures round trips of Writes.
    Ping {
        #[command(flatten)]
        writes: Writes,
        /// Number of round trips.
        #[arg(long, default_value_t = 100_000)]
        count: u64,
    },
}

/// The address of the listener, and the parameters of the Writes.
#[derive(Debug, Args)]
pub(crate) struct Writes {
    /// Address to listen on, or to connect to.
    address: SocketAddr,
    /// Number of bytes of a message.
    #[arg(long)]
    size: usize,
    /// Number of bytes of the segment into which an FPDU has to fit.
    #[arg(long)]
    emss: usize,
}

pub(crate) fn run(end: KernelIwarpEnd) -> ExitCode {
    match work(end) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure kernel-iwarp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(end: KernelIwarpEnd) -> Result<()> {
    match end {
        KernelIwarpEnd::Target { writes } => say(&place(&listen(writes.address)?, writes.size)?),
        KernelIwarpEnd::Writer { writes: Writes { address, size, emss }, seconds } => {
            let time = Duration::try_from_secs_f64(seconds).map_err(|error| lab_error!("{error}"))?;
            write(address, size, emss, time)
        }
        KernelIwarpEnd::Pong { writes } => pong(&listen(writes.address)?, writes.size, writes.emss),
        KernelIwarpEnd::Ping { writes: Writes { address, size, emss }, count } => {
            say(&ping(address, size, emss, count)?)
        }
    }
}

fn say(figures: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(figures).map_err(|error| lab_error!("{error}"))?);
    Ok(())
}
