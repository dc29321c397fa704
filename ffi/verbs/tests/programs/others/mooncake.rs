//! Mooncake's transfer engine. It transfers by TCP, without an error, if it finds no RDMA device.

use std::time::Duration;

use super::{From, Other, ends, python, site_packages};
use crate::pair::Running;
use crate::wire::Wire;

const MOONCAKE: From = From::PyPi("mooncake-transfer-engine-non-cuda", "0.3.13.post1");
/// Maximum time in which a program listens or ends.
const LIMIT: Duration = Duration::from_secs(60);
/// The bytes that the wire has to move during each run: many times what the engines need to connect.
const LEAST_BYTES: u64 = 4 << 20;

pub(super) const ALL: [Other; 2] = [
    Other {
        test: "mooncake_bench",
        program: "Mooncake",
        from: MOONCAKE,
        how: "`transfer_engine_bench --protocol=rdma --device_name=uwarp0` with metadata `P2PHANDSHAKE`, \
              reads and then writes",
        checks: "`uwarp status` shows the bytes, and all programs end with success",
        run: bench,
    },
    Other {
        test: "mooncake_python",
        program: "Mooncake",
        from: MOONCAKE,
        how: "two engines of its Python API, `initialize(\"127.0.0.1\", \"P2PHANDSHAKE\", \"rdma\", \"uwarp0\")`",
        checks: "the engines compare bytes that were read and written, and `uwarp status` shows the bytes",
        run: two_engines,
    },
];

fn environment() -> Result<std::path::PathBuf, String> {
    // Without its dependencies, which are for Mooncake's store.
    python("mooncake", &["--no-deps", "mooncake-transfer-engine-non-cuda==0.3.13.post1", "numpy==2.2.6"])
}

fn two_engines() -> Result<(), String> {
    let python = environment()?;
    let wire = Wire::new()?;
    ends::exchange(&wire, include_str!("mooncake.py"), &python.display().to_string(), "")?;
    let log = wire.output("initiator");
    if log.contains("installTransport, type=rdma") { Ok(()) } else { Err(log) }
}

fn bench() -> Result<(), String> {
    let wire = Wire::new()?;
    let result = bench_on(&wire);
    result.map_err(|error| {
        let outputs = ["target", "read", "write"].map(|name| format!("--- {name}\n{}", wire.output(name)));
        format!("{error}\n{}", outputs.concat())
    })
}

fn bench_on(wire: &Wire) -> Result<(), String> {
    let program = site_packages(&environment()?)?.join("mooncake/transfer_engine_bench");
    let common = format!(
        "{} --protocol=rdma --device_name=uwarp0 --metadata_server=P2PHANDSHAKE --local_server_name=127.0.0.1 \
         --buffer_size=67108864 --threads=2 --batch_size=16",
        program.display()
    );
    let mut target = Running::start(wire, "target", &format!("{common} --mode=target"))?;
    // The target prints the port of its handshakes, and then that it has allocated its memory.
    let port = target.wait_for_output(wire, "target", LIMIT, |output| {
        let (_, rest) = output.split_once("listening on 127.0.0.1:")?;
        output
            .contains("DRAM is used")
            .then(|| rest.chars().take_while(char::is_ascii_digit).collect::<String>())
    })?;
    for operation in ["read", "write"] {
        let words = format!(
            "{common} --mode=initiator --segment_id=127.0.0.1:{port} --operation={operation} --duration=3"
        );
        let mut initiator = Running::start(wire, operation, &words)?;
        initiator.wait_to_connect(wire, LEAST_BYTES)?;
        let status = initiator.wait(LIMIT)?;
        if !status.success() || !wire.output(operation).contains("Test completed") {
            return Err(format!("the initiator of {operation} ended with {status}"));
        }
    }
    let status = target.terminate(LIMIT)?;
    if status.success() { Ok(()) } else { Err(format!("the target ended with {status}")) }
}
