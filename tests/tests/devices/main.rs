//! Programs over real and virtual devices. Each file or folder here is a suite. All suites are in one
//! program, since a separate program for each would take half a minute to build.
//!
//! The command is `cargo test -p tests --test devices -- [SUITE] [PATTERN]`. The first argument is the name
//! of a suite, and libtest gets the other arguments. Without a name, all suites run one after the other.

mod af_packet;
mod bad_wire;
mod dissect;
mod nics;
mod probe;
mod rxe;
mod siw;
mod sleep;
mod tcp_linux;
mod tcp_manners;
mod vhost;

use std::process::ExitCode;

/// Runs a suite with libtest's arguments. Returns whether all tests passed.
type Run = fn(&[String]) -> bool;

const SUITES: [(&str, Run); 11] = [
    ("vhost", vhost::run_suite),
    ("af_packet", af_packet::run_suite),
    ("sleep", sleep::run_suite),
    ("probe", probe::run_suite),
    ("tcp_linux", tcp_linux::run_suite),
    ("tcp_manners", tcp_manners::run_suite),
    ("bad_wire", bad_wire::run_suite),
    ("dissect", dissect::run_suite),
    ("siw", siw::run_suite),
    ("rxe", rxe::run_suite),
    ("nics", nics::run_suite),
];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = arguments.first().and_then(|first| SUITES.iter().find(|(name, _)| name == first));
    let chosen = match named {
        Some(suite) => {
            arguments.remove(0);
            std::slice::from_ref(suite)
        }
        None => &SUITES[..],
    };
    let failed = chosen.iter().filter(|(_, run)| !run(&arguments)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
