//! UCX: the transports of `ucx_perftest` below UCP, with a device that reports itself as an InfiniBand
//! device. UCX opens a device only if `/dev/infiniband` has a node for the device. For an ordinary user, the
//! node is made in a mount namespace.

use std::fs;
use std::path::Path;

use crate::pair::{Files, Pair, is_installed};
use crate::wire::Wire;

/// A script that runs a program in a mount namespace whose `/dev` has a node for the device. The node is like
/// `/dev/null`.
const WITH_NODE: &str = "\
set -e
new=$(mktemp -d -p .)
mount -t tmpfs none $new
mkdir $new/infiniband $new/shm
touch $new/null $new/zero $new/random $new/urandom $new/infiniband/uverbs0
for node in null zero random urandom; do mount --bind /dev/$node $new/$node; done
mount --bind /dev/null $new/infiniband/uverbs0
mount --rbind /dev/shm $new/shm
mount --rbind $new /dev
exec \"$@\"
";

/// The tests of `ucx_perftest`, with their options.
pub(crate) const TESTS: [(&str, &str); 4] = [
    ("ucx_active_messages", "-t am_lat"),
    ("ucx_put", "-t put_bw -D zcopy -s 16384"),
    ("ucx_get", "-t get -D zcopy -s 16384"),
    ("ucx_atomics", "-t fadd"),
];

/// Returns the reason why these tests cannot run here, or `None` if they can run.
pub(crate) fn missing() -> Option<&'static str> {
    let has_namespaces = || {
        let wire = Wire::new().ok()?;
        let status = wire.command(0, &["unshare", "-Urm", "true"]).status().ok()?;
        status.success().then_some(())
    };
    match is_installed("ucx_perftest") {
        false => Some("apt-get install ucx-utils"),
        true if has_namespaces().is_none() => Some("needs namespaces of an ordinary user"),
        true => None,
    }
}

/// Runs a test of `ucx_perftest` over a `local` wire.
pub(crate) fn run(options: &str) -> Result<(), String> {
    let before = |folder: &Path| {
        let path = folder.join("with_node");
        fs::write(&path, WITH_NODE).map_err(|error| format!("{}: {error}", path.display()))
    };
    let server =
        format!("unshare -Urm sh with_node ucx_perftest -x rc_verbs -d uwarp0:1 -n 2000 -w 100 {options}");
    let client = format!("{server} 127.0.0.1");
    let files = Files { before, after: |_| Ok(()) };
    let pair = Pair { files: Some(files), ..Pair::of_test("ucx", &server, &client) };
    pair.shows("Final:                  2000").run_over(&Wire::new()?.with("UWARP_PRETEND", "ib"))
}
