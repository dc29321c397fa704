//! tgt's iSCSI server and libiscsi's clients over iSER.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::{From, Other, succeed, wait_for};
use crate::interface::{self, Interfaces};
use crate::pair::Running;
use crate::wire::Wire;

/// The packages, the first of which names the version.
const PACKAGES: From = From::Debian(&["tgt", "libiscsi-bin", "qemu-utils", "qemu-block-extra"]);

pub(crate) const ALL: [Other; 2] = [
    Other {
        test: "tgt",
        program: "tgt and libiscsi over iSER",
        from: PACKAGES,
        how: "`tgtd`, `iscsi-inq`, `iscsi-perf`, `iscsi-test-cu`, `qemu-img dd` to and from `iser://`",
        checks: "the test compares 64 MiB that `qemu-img` writes and reads; five suites of `iscsi-test-cu` pass; \
                 `tgtd` frees all sessions",
        run: on_one_host,
    },
    Other {
        test: "tgt_hosts",
        program: "tgt and libiscsi over iSER, on two hosts",
        from: PACKAGES,
        how: "as above, on `packet`",
        checks: "as above",
        run: on_two_hosts,
    },
];

/// Maximum time of each program.
const WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of runs of a client to which the server answers late.
const RUNS: usize = 5;
const TARGET: &str = "iqn.2026-01.test:disk";
/// The names of `iscsi-inq` and `iscsi-perf`, of QEMU, and of the tests of libiscsi. Over iSER, tgt wants
/// both the address and the name of a client to be allowed.
const CLIENTS: [&str; 4] = [
    "iqn.2026-01.test:client",
    "iqn.2008-11.org.linux-kvm",
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test",
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test-2",
];
/// Suites of libiscsi's tests that write, read and compare.
const SUITES: [&str; 5] = ["Read16", "Write16", "Verify10", "WriteVerify10", "OrWrite"];
const BYTES: usize = 64 << 20;

fn on_one_host() -> Result<(), String> {
    Stage { wire: Wire::new()? }.run()
}

fn on_two_hosts() -> Result<(), String> {
    if !interface::can_be_made() {
        println!("skipped: tgt_hosts (needs root and network namespaces)");
        return Ok(());
    }
    Stage { wire: Wire::between(Interfaces::hosts()?)? }.run()
}

struct Stage {
    wire: Wire,
}

impl Stage {
    fn run(&self) -> Result<(), String> {
        self.exchange().map_err(|error| {
            let outputs = ["server", "client"].map(|end| format!("--- {end}\n{}", self.wire.output(end)));
            format!("{error}\n{}", outputs.concat())
        })
    }

    fn exchange(&self) -> Result<(), String> {
        let folder = self.wire.folder();
        let bytes = pattern();
        for (name, bytes) in [("in", &bytes[..]), ("disk", &vec![0; BYTES][..])] {
            let path = folder.join(name);
            fs::write(&path, bytes)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o666)))
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        // The port of iSER is 3260. The option that sets the port depends on the last error of an earlier
        // call (tgt 1.0.85, `iser_param_parser` in usr/iscsi/iser.c), so the option is not used.
        let server = "tgtd -f --iscsi portal=127.0.0.1:3261 --iser pool_sz_mb=128";
        let mut server = Running::start(&self.wire, "server", &self.with_socket(server))?;
        server.wait_to_listen(&self.wire)?;
        wait_for("tgtd answers", || Ok(self.administer("target --op show").is_ok()))?;
        self.administer(&format!("target --op new --tid 1 --targetname {TARGET}"))?;
        let disk = folder.join("disk");
        self.administer(&format!("logicalunit --op new --tid 1 --lun 1 --backing-store {}", disk.display()))?;
        self.administer("target --op bind --tid 1 --initiator-address ALL")?;
        for client in CLIENTS {
            self.administer(&format!("target --op bind --tid 1 --initiator-name {client}"))?;
        }
        let url = self.wire.at_server(&format!("iser://127.0.0.1:3260/{TARGET}/1"));
        let inquiry = self.client(&format!("iscsi-inq -i {} {url}", CLIENTS[0]))?;
        if !inquiry.contains("Product:VIRTUAL-DISK") {
            return Err(format!("iscsi-inq: {inquiry}"));
        }
        self.measure(&url)?;
        // libiscsi 1.19 does not initialise the memory of a connection (`iscsi_init_iser_transport` in
        // lib/iser.c). This variable makes malloc return zeros.
        for suite in SUITES {
            let words = "env MALLOC_PERTURB_=255 iscsi-test-cu --dataloss -f -s -n -t";
            let output = self.client(&format!("{words} ALL.{suite} {url}"))?;
            if !output.contains("return value: 0") || output.contains("FAILED]") {
                return Err(format!("iscsi-test-cu: {output}"));
            }
        }
        // Over iSER, a command of libiscsi has at most 256 KiB of data, but QEMU asks for longer ones.
        self.client(&format!("qemu-img dd -f raw -O raw bs=256k if=in of={url}"))?;
        self.compare("disk", &bytes)?;
        self.client(&format!("qemu-img dd -f raw -O raw bs=128k if={url} of=out"))?;
        self.compare("out", &bytes)?;
        // tgtd frees a session when the time in which frames of its connection may arrive has passed.
        wait_for("tgtd frees its sessions", || {
            let freed = self.wire.output("server").matches("(after cleanup)").count();
            Ok(freed >= 4 && self.administer("conn --op show --tid 1")?.is_empty())
        })?;
        let queue_pairs =
            self.wire.processes()?.iter().map(|process| process["queue_pairs"].clone()).collect();
        match serde_json::Value::Array(queue_pairs) {
            left if left == serde_json::json!([[]]) => Ok(()),
            left => Err(format!("tgtd has queue pairs: {left}")),
        }
    }

    /// Reads for three seconds. While the client reads, its connection is on the wire.
    fn measure(&self, url: &str) -> Result<(), String> {
        let perf = format!("iscsi-perf -i {} -m 8 -b 128 -t 3 {url}", CLIENTS[0]);
        let mut client = Running::start(&self.wire, "client", &perf)?;
        client.wait_to_connect(&self.wire, 10 << 20)?;
        let session = self.administer("conn --op show --tid 1")?;
        let status = client.wait(WITHIN)?;
        let output = self.wire.output("client");
        match status.success() && output.contains("finished.") && session.contains("RDMA IP Address") {
            true => Ok(()),
            false => Err(format!("iscsi-perf ended with {status}; sessions: {session}")),
        }
    }

    fn compare(&self, name: &str, wanted: &[u8]) -> Result<(), String> {
        let path = self.wire.folder().join(name);
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let wrong = bytes.iter().zip(wanted).position(|(byte, wanted)| byte != wanted);
        match (bytes.len() == wanted.len(), wrong) {
            (true, None) => Ok(()),
            (_, wrong) => Err(format!("{name} has {} bytes; the first wrong one: {wrong:?}", bytes.len())),
        }
    }

    /// The command with the place of the socket for tgtadm.
    fn with_socket(&self, command: &str) -> String {
        format!("env TGT_IPC_SOCKET={}/tgt {command}", self.wire.folder().display())
    }

    fn administer(&self, command: &str) -> Result<String, String> {
        let words = self.with_socket(&format!("timeout 30 tgtadm --lld iser --mode {command}"));
        succeed(&mut self.wire.command(0, &words.split(' ').collect::<Vec<_>>()))
    }

    /// Runs a client. The client runs again if the server answers late: over iSER, libiscsi 1.19 takes an
    /// answer after more than a second for an error (`event_loop` in lib/sync.c, `iscsi_iser_service` in
    /// lib/iser.c).
    fn client(&self, command: &str) -> Result<String, String> {
        let words = format!("timeout {} {command}", WITHIN.as_secs());
        let words: Vec<&str> = words.split(' ').collect();
        let run = || succeed(&mut self.wire.command(1, &words));
        let is_late = |result: &Result<_, String>| {
            result.as_ref().is_err_and(|error| error.contains("revents is not POLLIN"))
        };
        (1..RUNS).fold(run(), |result, _| if is_late(&result) { run() } else { result })
    }
}

/// Bytes in which no two blocks are the same.
fn pattern() -> Vec<u8> {
    (0..BYTES as u64 / 8)
        .flat_map(|word| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}
