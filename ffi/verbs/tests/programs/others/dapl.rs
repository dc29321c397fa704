//! The test programs of DAPL, over each of its providers: `libdaplofa` connects by rdma_cm, `libdaploscm` by
//! the kernel's sockets, and `libdaploucm` by datagrams of a queue pair of type UD.

use std::fs;
use std::time::Duration;

use super::{From, Other};
use crate::interface::Interfaces;
use crate::pair::{Pair, Running};
use crate::wire::Wire;

const PACKAGES: From = From::Debian(&["dapl2-utils", "libdapl2"]);
/// What `dtest` and `dtestx` print at their end.
const PASSED: &str = "PASSED";
/// Maximum time of a program of `dapltest`.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) const ALL: [Other; 6] = [
    Other {
        test: "dapl_dtest",
        program: "dtest (uDAPL over rdma_cm)",
        from: PACKAGES,
        how: "`dtest -P cm -B 3 -h 127.0.0.1`, also with `-c` and with `-p`; on one host and on two",
        checks: "Sends, RDMA Writes and Reads; `dtest` prints the bytes that it has received, and the test compares them",
        run: dtest,
    },
    Other {
        test: "dapl_dtest_sockets",
        program: "dtest (uDAPL over sockets, and over UD)",
        from: PACKAGES,
        how: "`dtest -P scm -B 3 -h 127.0.0.1`, and `-P ucm`; the latter on one host",
        checks: "as `dapl_dtest`; the queue pairs of `scm` ask for 200 bytes of inline data",
        run: dtest_of_sockets,
    },
    Other {
        test: "dapl_dtestx",
        program: "dtestx (uDAPL's extensions)",
        from: PACKAGES,
        how: "`dtestx -P cm -h 127.0.0.1` with `UWARP_PRETEND=ib`; on one host and on two",
        checks: "RDMA Writes with immediate, and both atomics; `dtestx` compares the results",
        run: dtestx,
    },
    Other {
        test: "dapl_dtestcm",
        program: "dtestcm, dtestsrq",
        from: PACKAGES,
        how: "`dtestcm -P cm -h 127.0.0.1`, `dtestsrq -P cm -h 127.0.0.1`; on one host and on two",
        checks: "1000 connections; Sends to a shared receive queue",
        run: dtestcm,
    },
    Other {
        test: "dapl_dapltest",
        program: "dapltest",
        from: PACKAGES,
        how: "`dapltest -T S`, then clients with `-T T -V` (2 threads with 4 queue pairs each), `-T P` and `-T Q`",
        checks: "`dapltest` compares the bytes of Sends, RDMA Writes and Reads of several elements",
        run: dapltest,
    },
    Other {
        test: "dapl_limits",
        program: "dapltest (limits)",
        from: PACKAGES,
        how: "`dapltest -T L -m 100 -w 4`",
        checks: "100 objects of each kind are made and destroyed, also 100 listeners",
        run: limits,
    },
];

fn dtest() -> Result<(), String> {
    for wire in [local()?, hosts()?] {
        for options in ["-c -B 3", "-p -B 3", "-B 3"] {
            bytes_arrive(&wire, "cm", options)?;
        }
    }
    Ok(())
}

fn dtest_of_sockets() -> Result<(), String> {
    bytes_arrive(&local()?, "scm", "-B 3")?;
    bytes_arrive(&hosts()?, "scm", "-B 3")?;
    // UCM names its peer by a LID, and a LID names processes of the same host.
    bytes_arrive(&local()?, "ucm", "-B 3")
}

/// Runs `dtest`, and checks that each side has received the bytes of the other side, by a Write and by a
/// Read.
fn bytes_arrive(wire: &Wire, provider: &str, options: &str) -> Result<(), String> {
    run(wire, &format!("dtest -P {provider} {options}"), PASSED)?;
    for (of, other) in [("server", "client"), ("client", "server")] {
        for kind in ["write", "read"] {
            let kind_of_buffer = if kind == "read" { "RCV RDMA read" } else { "RDMA write" };
            let line =
                format!("{}: {kind_of_buffer} buffer contains: {other} RDMA {kind} data", of.to_uppercase());
            let output = wire.output(of);
            if !output.contains(&line) {
                return Err(format!(
                    "dtest over {provider} with {options}: the {of} lacks '{line}': {output}"
                ));
            }
        }
    }
    Ok(())
}

fn dtestx() -> Result<(), String> {
    for wire in [local()?, hosts()?] {
        // DAPL offers its extensions of InfiniBand only on InfiniBand devices.
        run(
            &wire.with("UWARP_PRETEND", "ib"),
            "dtestx -P cm",
            "IB extension test - immed/atomic test PASSED",
        )?;
    }
    Ok(())
}

fn dtestcm() -> Result<(), String> {
    for wire in [local()?, hosts()?] {
        run(&wire, "dtestcm -P cm", "Num=1000")?;
        run(&wire, "dtestsrq -P cm", "DAPL RC SRQ Test Complete.")?;
    }
    Ok(())
}

fn dapltest() -> Result<(), String> {
    const CLIENTS: [(&str, &str); 5] = [
        ("-T T -V -t 2 -w 4 -i 200", "client RW 4096 1 server RW 2048 4 client SR 1024 4 server SR 4096 2"),
        ("-T T -V -t 1 -w 4 -i 200", "client RR 65536 1 server RR 2048 4 client SR 256 3 server SR 256 3"),
        ("-T T -V -P -t 1 -w 1 -i 200", "client SR 100000 1 server SR 4096 2"),
        ("-T P -i 2000", "RW 4096 2"),
        ("-T P -m p -i 2000", "RR 65536 1"),
    ];
    let wire = local()?;
    let mut server = Running::start(&wire, "server", &configured(&wire, 0, "dapltest -T S -D cm"))?;
    server.wait_to_listen(&wire)?;
    for (options, operations) in CLIENTS.into_iter().chain([("-T Q", "")]) {
        let command = format!("dapltest {options} -s 127.0.0.1 -D cm {operations}");
        let mut client = Running::start(&wire, "client", configured(&wire, 1, &command).trim_end())?;
        let status = client.wait(LIMIT)?;
        let output = wire.output("client");
        let ends = ["End of Work -- Client Exiting", "Client Exiting"].iter().any(|end| output.contains(end));
        let differs = output.contains("ERROR") || output.contains("Data integrity");
        if !status.success() || differs || !(ends || options == "-T Q") {
            return Err(format!("{command} ended with {status}: {output}\n{}", wire.output("server")));
        }
    }
    let status = server.wait(LIMIT)?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("the server ended with {status}: {}", wire.output("server")))
    }
}

fn limits() -> Result<(), String> {
    let wire = local()?;
    let mut program =
        Running::start(&wire, "client", &configured(&wire, 1, "dapltest -T L -D cm -m 100 -w 4"))?;
    let status = program.wait(LIMIT)?;
    let output = wire.output("client");
    let kinds = ["IAs opened", "PZs created", "CNOs created", "EVDs created", "EPs created", "RSPs created"];
    let made = kinds.iter().all(|kind| output.contains(&format!("{kind}: 100")));
    // DAPL prints this line for the events of listeners that do not listen.
    let made = made && !output.contains("CONN_ERR");
    if status.success() && made { Ok(()) } else { Err(format!("it ended with {status}: {output}")) }
}

fn local() -> Result<Wire, String> {
    with_configuration(Wire::new()?, ["lo", "lo"])
}

fn hosts() -> Result<Wire, String> {
    with_configuration(Wire::between(Interfaces::hosts()?)?, ["va", "vb"])
}

/// Writes DAPL's file of providers for each end, which names the interface of the end.
fn with_configuration(wire: Wire, interfaces: [&str; 2]) -> Result<Wire, String> {
    for (end, interface) in interfaces.into_iter().enumerate() {
        let line = |name: &str, library: &str, device: &str| {
            format!("{name} u2.0 nonthreadsafe default {library}.so.2 dapl.2.0 \"{device}\" \"\"\n")
        };
        let text = [
            line("cm", "libdaplofa", &format!("{interface} 0")),
            line("scm", "libdaploscm", "uwarp0 1"),
            line("ucm", "libdaploucm", "uwarp0 1"),
        ];
        let path = wire.folder().join(format!("dat{end}.conf"));
        fs::write(&path, text.concat()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(wire)
}

/// The command with the file of providers of an end.
fn configured(wire: &Wire, end: usize, command: &str) -> String {
    format!("env DAT_OVERRIDE={}/dat{end}.conf {command}", wire.folder().display())
}

/// Runs a server, and a client with the same options.
fn run(wire: &Wire, command: &str, shows: &'static str) -> Result<(), String> {
    let client = format!("{command} -h 127.0.0.1");
    let pair = Pair::of_test(command, &configured(wire, 0, command), &configured(wire, 1, &client));
    pair.shows(shows).run_over(wire)
}
