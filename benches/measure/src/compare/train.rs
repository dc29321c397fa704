//! The loads from which `scripts/pgo` learns how often each part of the programs runs.
//!
//! The programs are those of a build that counts (`-Cprofile-generate`). Their message sizes differ from
//! those of `compare` and of `scripts/instructions`, so these measure loads that were not part of the
//! training. A wire that this machine or this user cannot have is left out: the program says so, since the
//! compiler then takes the code of this wire for code that seldom runs.

use std::process::ExitCode;

use clap::Parser;
use testing::lab::{LabError, Result, Run};

use crate::compare::kernel::KernelHosts;
use crate::compare::options::{CompareOptions, OVERVIEW};
use crate::compare::over_local::perftest;
use crate::compare::over_packet::iwperf;
use crate::compare::session::Session;
use crate::compare::vhost::{self, SendingEnd, Test};

/// Runs the loads by which `scripts/pgo` optimises the programs, with the programs beside this one
#[derive(Clone, Copy, Debug, Parser)]
#[command(name = "train", version)]
pub(crate) struct TrainOptions {
    /// Run without hugepages.
    #[arg(long)]
    pub(crate) no_huge: bool,
}

/// The loads of one wire: a program's name and its options.
type Loads = &'static [(&'static str, &'static str)];

/// Unmodified programs in two processes of one host, which poll, and which wait for events (`-e`).
const LOCAL: Loads = &[
    ("ib_send_lat", "-s 200 -n 40000"),
    ("ib_send_lat", "-s 3000 -n 20000"),
    ("ib_send_lat", "-e -s 200 -n 20000"),
    ("ib_send_lat", "-e -s 300000 -n 1000"),
    ("ib_send_lat", "-c UD -s 200 -n 20000"),
    ("ib_write_lat", "-s 200 -n 2000"),
    ("ib_read_lat", "-s 200 -n 20000"),
    ("ib_atomic_lat", "-n 10000"),
    ("ib_send_bw", "-s 200 -n 200000"),
    ("ib_send_bw", "-e -s 200 -n 50000"),
    ("ib_send_bw", "-s 3000 -n 50000"),
    ("ib_send_bw", "-s 300000 -n 3000"),
    ("ib_write_bw", "-s 200 -n 200000"),
    ("ib_write_bw", "-s 3000 -n 50000"),
    ("ib_write_bw", "-s 300000 -n 3000"),
    ("ib_write_bw", "-s 30000 -q 32 -n 1000"),
    ("ib_read_bw", "-s 3000 -n 50000"),
    ("ib_read_bw", "-s 300000 -n 3000"),
];

/// Both ends in one process, over a wire in memory that can also lose frames.
const IN_MEMORY: Loads = &[
    ("write-lat", "-s 200 -n 20000"),
    ("send-lat", "-s 200 -n 20000"),
    ("read-lat", "-s 200 -n 20000"),
    ("write-bw", "-s 200 -n 40000"),
    ("write-bw", "-s 300000 -n 500"),
    ("send-bw", "-s 3000 -n 20000"),
    ("read-bw", "-s 300000 -n 500 --mtu 9000"),
    ("write-bw", "-s 300000 -n 300 --markers"),
    ("write-bw", "-s 40000 -n 1000 --drop-ppm 1000"),
    ("write-bw", "-s 3000 -n 500 -q 64"),
];

/// Two hosts.
const HOSTS: Loads = &[
    ("send-lat", "-s 200 -n 10000"),
    ("write-lat", "-s 200 -n 10000"),
    ("write-bw", "-s 200 -n 50000"),
    ("write-bw", "-s 300000 -n 2000"),
    ("send-bw", "-s 3000 -n 20000"),
    ("read-bw", "-s 300000 -n 1000"),
];

const MTUS: [u16; 2] = [1500, 9000];

pub(crate) fn run(options: TrainOptions) -> ExitCode {
    match train(options.no_huge) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure train: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all loads. Fails if a load that needs no privilege fails.
fn train(no_huge: bool) -> Result<()> {
    let mut session = Session::new(CompareOptions {
        quick: true,
        only: Vec::new(),
        json: None,
        plots: None,
        valkey: None,
        keep: None,
        no_huge,
    })?;
    session.pace = OVERVIEW;
    for (tool, options) in LOCAL {
        println!("  {tool} {options}");
        let options: Vec<&str> = options.split_whitespace().collect();
        perftest(&session, tool, &options)?;
    }
    for (test, options) in IN_MEMORY {
        println!("  iwperf local {test} {options}");
        let run = Run::new(session.program("iwperf")?).args(["local", test]);
        run.args(options.split_whitespace()).check(vhost::LIMIT)?;
    }
    for mtu in MTUS {
        over("packet sockets", mtu, |test, options| {
            let options: Vec<&str> = [test].into_iter().chain(options.split_whitespace()).collect();
            let hosts = KernelHosts::new(&session, mtu)?;
            iwperf(&session, &hosts, &options).map(drop)
        });
        over("vhost-user", mtu, |test, options| {
            let test = Test::new(test, mtu, options);
            SendingEnd::BOTH.into_iter().try_for_each(|sender| vhost::run(&session, &test, sender).map(drop))
        });
    }
    Ok(())
}

/// Runs the loads of two hosts over one wire. If a load fails, says why, and leaves out those after it.
fn over(wire: &str, mtu: u16, mut run: impl FnMut(&'static str, &'static str) -> Result<()>) {
    for (test, options) in HOSTS {
        println!("  iwperf {test} {options}, {wire}, MTU {mtu}");
        if let Err(error) = run(test, options) {
            println!("{}", left_out(wire, mtu, &error));
            return;
        }
    }
}

fn left_out(wire: &str, mtu: u16, error: &LabError) -> String {
    let why = error.to_string();
    let why = why.lines().next().unwrap_or_default();
    format!("  left out: {wire} at MTU {mtu}, so its code is not optimised ({why})")
}

#[cfg(test)]
mod tests {
    use testing::lab_error;

    use super::*;

    /// Numbers of bytes of the messages that `compare` and `scripts/instructions` measure.
    const MEASURED: [&str; 5] = ["64", "65536", "64K", "1048576", "1M"];

    #[test]
    fn no_load_has_the_size_of_a_measured_message() {
        for (name, options) in LOCAL.iter().chain(IN_MEMORY).chain(HOSTS) {
            let words: Vec<&str> = options.split_whitespace().collect();
            let size = words.iter().position(|word| *word == "-s").map(|at| words[at + 1]);
            assert!(size.is_none_or(|size| !MEASURED.contains(&size)), "{name} {options}");
            assert!(words.contains(&"-n"), "{name} {options} ends by itself");
        }
    }

    #[test]
    fn a_wire_that_fails_is_left_out() {
        let mut ran = Vec::new();
        over("packet sockets", 1500, |test, options| {
            ran.push((test, options));
            Ok(())
        });
        assert_eq!(ran, HOSTS);
        let mut tried = 0;
        over("packet sockets", 1500, |_, _| {
            tried += 1;
            Err(lab_error!("no right to make a namespace\nmore"))
        });
        assert_eq!(tried, 1);
        let text = left_out("vhost-user", 9000, &lab_error!("no hugepages\nmore"));
        assert_eq!(text, "  left out: vhost-user at MTU 9000, so its code is not optimised (no hugepages)");
    }
}
