//! UCX: the transports of `ucx_perftest` below UCP, with a device that reports itself as an InfiniBand
//! device. UCX opens a device only if `/dev/infiniband` has a node for the device, which is one of the
//! library's files.

use crate::pair::{Pair, is_installed};
use crate::wire::Wire;

/// The tests of `ucx_perftest`, with their options.
pub(crate) const TESTS: [(&str, &str); 4] = [
    ("ucx_active_messages", "-t am_lat"),
    ("ucx_put", "-t put_bw -D zcopy -s 16384"),
    ("ucx_get", "-t get -D zcopy -s 16384"),
    ("ucx_atomics", "-t fadd"),
];

/// Returns the reason why these tests cannot run here, or `None` if they can run.
pub(crate) fn missing() -> Option<&'static str> {
    (!is_installed("ucx_perftest")).then_some("apt-get install ucx-utils")
}

/// Runs a test of `ucx_perftest` over a `local` wire.
pub(crate) fn run(options: &str) -> Result<(), String> {
    let server = format!("ucx_perftest -x rc_verbs -d uwarp0:1 -n 2000 -w 100 {options}");
    let client = format!("{server} 127.0.0.1");
    let pair = Pair::of_test("ucx", &server, &client);
    pair.shows("Final:                  2000").run_over(&Wire::new()?.with("UWARP_PRETEND", "ib"))
}
