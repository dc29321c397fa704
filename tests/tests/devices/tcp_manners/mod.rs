//! Our TCP against unusual behaviour of Linux's TCP and of middleboxes, such as probes, closed windows,
//! urgent bytes, Fast Open, Multipath TCP, ECN, path MTU probes, missing options, and segments that are
//! joined and split. Every stream is checked byte by byte. Each case also proves that the behaviour occurred,
//! by frames or counters.

mod fpdus;
mod middlebox;
mod proof;
mod streams;

use std::time::Duration;

use tests::lab::{Prerequisite, Suite};

const OURS: &str = "10.64.0.1";
const LINUX: &str = "10.64.0.2";
const PORT: u16 = 7000;
/// Maximum time for a program to start, or to end after its work.
const START: Duration = Duration::from_secs(20);
/// Maximum duration of a stream.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let needs = [
        Prerequisite::Dpdk,
        Prerequisite::Program("ip"),
        Prerequisite::Program("ethtool"),
        Prerequisite::Namespaces,
    ];
    let mut suite = Suite::new("tcp_manners", &needs);
    streams::add(&mut suite);
    middlebox::add(&mut suite);
    fpdus::add(&mut suite);
    suite.run(arguments)
}
