//! The command line: perftest's options with the meanings that they have in perftest, and the options of the
//! network.

mod net;
mod perftest;
mod ping;
mod remote;
mod test;

pub use net::NetArgs;
pub use perftest::PerftestArgs;
pub use ping::PingArgs;
pub use remote::Remote;
pub use test::TestArgs;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::params::{DEFAULT_PORT, Test};

/// Bandwidth and latency of RDMA over a user-space TCP, for people who know perftest.
///
/// Except for write-imm-bw, either end may also be perftest's own tool with -R (ib_write_bw -R and the like),
/// or rping for `ping` and `pong`.
#[derive(Debug, Parser)]
#[command(name = "iwperf", version, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Answer Prometheus at this address and port with all counters: http://ADDR/metrics. Anybody who reaches
    /// the port may read the counters.
    #[arg(long, global = true, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Print events of connections, startup, Terminates, timeouts and links on standard error. The filter is
    /// a level (error, warn, info, debug, trace), or has levels by crate, as iwarp=debug,tcp_lite=warn.
    /// Without the option, the variable RUST_LOG has the filter.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Wait for a client and run the test that the client asks for.
    Server(ServerArgs),
    /// Bandwidth of RDMA Writes (ib_write_bw -R).
    WriteBw(ClientArgs),
    /// Bandwidth of RDMA Reads (ib_read_bw -R).
    ReadBw(ClientArgs),
    /// Bandwidth of Sends (ib_send_bw -R).
    SendBw(ClientArgs),
    /// Bandwidth of RDMA Writes with Immediate Data, each of which consumes a receive of the server.
    WriteImmBw(ClientArgs),
    /// Rate of atomics: fetch and add, or compare and swap (--atomic_type; ib_atomic_bw -R).
    AtomicBw(ClientArgs),
    /// Latency of RDMA Writes: half a round trip (ib_write_lat -R).
    WriteLat(ClientArgs),
    /// Latency of RDMA Reads: a round trip (ib_read_lat -R).
    ReadLat(ClientArgs),
    /// Latency of Sends: half a round trip (ib_send_lat -R).
    SendLat(ClientArgs),
    /// Latency of atomics: a round trip (ib_atomic_lat -R).
    AtomicLat(ClientArgs),
    /// Run both ends in this process over a wire in memory, without a device, privilege or setup.
    Local(LocalArgs),
    /// rping's client.
    #[command(disable_version_flag = true)]
    Ping(PingClientArgs),
    /// rping's server.
    #[command(disable_version_flag = true)]
    Pong(PongArgs),
    /// Print completions for a shell. Put the output into the file from which the shell reads completions.
    #[command(disable_version_flag = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the man page, or write the man pages of all commands into a folder.
    #[command(disable_version_flag = true)]
    Man {
        /// An existing folder.
        folder: Option<PathBuf>,
    },
}

impl Command {
    /// The options of the test, or `None` if the command is not a test.
    pub fn test_args(&self) -> Option<&TestArgs> {
        match self {
            Self::Server(args) => Some(&args.args),
            Self::Local(args) => Some(&args.args),
            Self::WriteBw(args)
            | Self::ReadBw(args)
            | Self::SendBw(args)
            | Self::WriteImmBw(args)
            | Self::AtomicBw(args)
            | Self::WriteLat(args)
            | Self::ReadLat(args)
            | Self::SendLat(args)
            | Self::AtomicLat(args) => Some(&args.args),
            Self::Ping(_) | Self::Pong(_) | Self::Completions { .. } | Self::Man { .. } => None,
        }
    }
}

/// `iwperf server`.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The test, for a client that is perftest's own tool: give both ends the same options. An iwperf client
    /// sends its test to the server.
    #[arg(long, value_enum)]
    pub test: Option<Test>,
    /// Port to listen on.
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// Serve clients one after another instead of ending after the first client.
    #[arg(short = 'P', long)]
    pub persistent: bool,
    /// The options of the test.
    #[command(flatten)]
    pub args: TestArgs,
    /// The options of the network.
    #[command(flatten)]
    pub net: NetArgs,
}

/// A client.
#[derive(Debug, clap::Args)]
pub struct ClientArgs {
    /// The server.
    #[arg(
        value_name = "HOST[:PORT]",
        help = "The server: HOST, HOST:PORT or [IPv6]:PORT; a name or an address"
    )]
    pub remote: Remote,
    /// Port of the server [default: 18515].
    #[arg(short, long)]
    pub port: Option<u16>,
    /// The options of the test.
    #[command(flatten)]
    pub args: TestArgs,
    /// The options of the network.
    #[command(flatten)]
    pub net: NetArgs,
}

/// `iwperf local`.
#[derive(Debug, clap::Args)]
pub struct LocalArgs {
    /// The test.
    #[arg(value_enum)]
    pub test: Test,
    /// Port that both ends use.
    #[arg(short, long, default_value_t = DEFAULT_PORT)]
    pub port: u16,
    /// Use IPv6 addresses.
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// IP MTU of the wire.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9698))]
    pub mtu: u16,
    /// Frames that the wire loses, per million. The seed (--seed) chooses the lost frames.
    #[arg(long, default_value_t = 0, value_name = "PPM")]
    pub drop_ppm: u32,
    /// Type of service or traffic class of the packets: DSCP times 4.
    #[arg(short = 'T', long, alias = "tclass", value_name = "0-255", value_parser = clap::value_parser!(u8))]
    pub tos: Option<u8>,
    /// Run on this many CPUs, each with both ends of its own wire. The queue pairs are spread over the CPUs.
    /// With a list (1,2,4), do a run for each number.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cores: Vec<u32>,
    /// Write the frames at the client's end of the wire to this file (pcapng).
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Seconds to wait for a peer from which nothing arrives.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = net::parse_seconds)]
    pub timeout: std::time::Duration,
    /// The options of the test.
    #[command(flatten)]
    pub args: TestArgs,
}

/// `iwperf ping`.
#[derive(Debug, clap::Args)]
pub struct PingClientArgs {
    /// The server.
    #[arg(
        value_name = "HOST[:PORT]",
        help = "The server: HOST, HOST:PORT or [IPv6]:PORT; a name or an address"
    )]
    pub remote: Remote,
    /// Port of the server [default: 7174, as in rping].
    #[arg(short, long)]
    pub port: Option<u16>,
    /// The options of the rounds.
    #[command(flatten)]
    pub ping: PingArgs,
    /// The options of the network.
    #[command(flatten)]
    pub net: NetArgs,
}

/// `iwperf pong`.
#[derive(Debug, clap::Args)]
pub struct PongArgs {
    /// Port to listen on.
    #[arg(short, long, default_value_t = crate::ping::DEFAULT_PORT)]
    pub port: u16,
    /// Serve clients one after another.
    #[arg(short = 'P', long)]
    pub persistent: bool,
    /// The options of the rounds.
    #[command(flatten)]
    pub ping: PingArgs,
    /// The options of the network.
    #[command(flatten)]
    pub net: NetArgs,
}

#[cfg(test)]
mod tests;
