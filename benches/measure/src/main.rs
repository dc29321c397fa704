//! `measure`: measurements of uwarp.
//!
//! | file | what |
//! |---|---|
//! | `compare/` | the table: uwarp next to the kernel's TCP and the machine's own limits (`scripts/compare`) |
//! | `overview/` | what people ask first, as bars (`scripts/run`) |
//! | `pair/` | one comparison that needs no device, as a line of JSON |
//! | `fpdus.rs` | Writes as FPDUs in a byte stream, for the baselines that are not uwarp |
//! | `pattern.rs` | distinguishable bytes |
//! | `kinds/` | the last figures of each kind of machine, and the tables of the documents that are made from them |
//! | `marked.rs` | parts of documents that this program writes |
//! | `scaling/` | the number of cores for high rates, computed from a table |
//! | `pacing.rs`, `reach.rs` | tables in virtual time, on the simulator's wire |
//! | `placement.rs` | tables in virtual time, and in real time on this machine |
//!
//! Only `compare` and the helper processes that it starts need DPDK or privileges.

#![deny(unsafe_code)]

mod compare;
mod fpdus;
mod kinds;
mod marked;
mod overview;
mod pacing;
mod pair;
mod pattern;
mod placement;
mod reach;
mod scaling;

use std::process::ExitCode;

use clap::Parser;

/// Measures uwarp.
#[derive(Debug, Parser)]
#[command(name = "measure", version)]
enum Command {
    Compare(compare::options::CompareOptions),
    Overview(overview::OverviewOptions),
    Pair(pair::PairOptions),
    Pacing(pacing::PacingOptions),
    Reach(reach::ReachOptions),
    Placement(placement::PlacementOptions),
    Scaling(scaling::ScalingOptions),
    Kinds(kinds::KindsOptions),
    Churn(compare::churn::ChurnOptions),
    #[command(hide = true)]
    ChurnPeer(compare::churn::ChurnPeer),
    #[command(hide = true)]
    Train(compare::train::TrainOptions),
    #[command(subcommand, hide = true)]
    KernelTcp(compare::kernel_tcp::KernelTcpEnd),
    #[command(subcommand, hide = true)]
    KernelIwarp(compare::kernel_iwarp::KernelIwarpEnd),
    #[command(subcommand, hide = true)]
    BareWire(compare::bare_wire::BareWireEnd),
    #[command(hide = true)]
    Pipe(compare::limits::pipe::PipeOptions),
    #[command(subcommand, hide = true)]
    Wake(compare::wake::WakeEnd),
    #[command(subcommand, hide = true)]
    Burst(compare::burst::BurstEnd),
}

fn main() -> ExitCode {
    benches::lines::end_when_output_is_lost("measure");
    match Command::parse() {
        Command::Compare(options) => compare::run(options),
        Command::Overview(options) => overview::run(&options),
        Command::Pair(options) => pair::run(&options),
        Command::Pacing(options) => pacing::run(&options),
        Command::Reach(options) => reach::run(&options),
        Command::Placement(options) => placement::run(&options),
        Command::Scaling(options) => scaling::run(&options),
        Command::Kinds(options) => kinds::run(&options),
        Command::Churn(options) => compare::churn::run(options),
        Command::ChurnPeer(peer) => compare::churn::run_peer(&peer),
        Command::Train(options) => compare::train::run(options),
        Command::KernelTcp(end) => compare::kernel_tcp::run(end),
        Command::KernelIwarp(end) => compare::kernel_iwarp::run(end),
        Command::BareWire(end) => compare::bare_wire::run(end),
        Command::Pipe(options) => compare::limits::pipe::run(&options),
        Command::Wake(end) => compare::wake::run(end),
        Command::Burst(end) => compare::burst::run(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Command::command().debug_assert();
    }
}
