//! Our TCP against what Linux's does besides moving bytes, and against what a wire does to segments: probes,
//! closed windows, urgent bytes, fast open, Multipath TCP, ECN, path MTU probes, options left away, segments
//! joined and cut. Every stream is checked byte by byte, and each case shows that what it is about did occur:
//! by the frames, or by a counter of Linux's.

mod fpdus;
mod middlebox;
mod proof;
mod streams;

use std::process::ExitCode;
use std::time::Duration;

use tests::lab::{Need, Suite};

const OURS: &str = "10.64.0.1";
const LINUX: &str = "10.64.0.2";
const PORT: u16 = 7000;
/// How long a program may take to start, or to end when all is done.
const START: Duration = Duration::from_secs(20);
/// How long a stream may take.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let needs = [Need::Dpdk, Need::Program("ip"), Need::Program("ethtool"), Need::Namespaces];
    let mut suite = Suite::new("tcp_manners", &needs);
    streams::add(&mut suite);
    middlebox::add(&mut suite);
    fpdus::add(&mut suite);
    suite.run()
}
