//! gloo over its transport ibverbs. `gloo.cc` is a rank.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::ends::{self, Finished};
use super::{From, Other, succeed};
use crate::pair::Running;
use crate::wire::Wire;

const GLOO: From = From::Debian(&["libgloo-dev", "g++", "libibverbs-dev"]);
/// The bytes that each rank has to send and to receive.
const LEAST_BYTES: u64 = 4 << 20;

pub(super) const ALL: [Other; 2] = [
    Other {
        test: "gloo_2_ranks",
        program: "gloo over ibverbs",
        from: GLOO,
        how: "2 ranks that meet by a file store: three kinds of allreduce, broadcast, allgather, barriers, and sends",
        checks: "each rank compares all results; each rank ends with success, after it has freed its objects",
        run: two_ranks,
    },
    Other {
        test: "gloo_4_ranks",
        program: "gloo over ibverbs",
        from: GLOO,
        how: "the same with 4 ranks",
        checks: "each rank compares all results; each rank ends with success, after it has freed its objects",
        run: four_ranks,
    },
];

fn two_ranks() -> Result<(), String> {
    run(2)
}

fn four_ranks() -> Result<(), String> {
    run(4)
}

fn run(ranks: usize) -> Result<(), String> {
    let wire = Wire::new()?;
    let program = compile(&wire)?;
    let result = run_on(&wire, &program, ranks);
    result.map_err(|error| {
        let outputs: Vec<String> = (0..ranks)
            .map(|rank| format!("--- rank {rank}\n{}", wire.output(&format!("rank{rank}"))))
            .collect();
        format!("{error}\n{}", outputs.concat())
    })
}

fn run_on(wire: &Wire, program: &str, ranks: usize) -> Result<(), String> {
    let mut running = Vec::new();
    for rank in 0..ranks {
        running.push(Running::start(wire, &format!("rank{rank}"), &format!("{program} {rank} {ranks}"))?);
    }
    let names = (0..ranks).map(|rank| rank.to_string()).collect();
    let check = |pid, processes: &[Value]| {
        ends::moved_at_least(processes, pid, LEAST_BYTES)?;
        let process = processes.iter().find(|process| process["pid"].as_u64() == Some(u64::from(pid)));
        let pairs = process.and_then(|process| process["queue_pairs"].as_array()).map_or(0, Vec::len);
        // gloo has a queue pair for each other rank.
        if pairs == ranks - 1 { Ok(()) } else { Err(format!("process {pid} has {pairs} queue pairs")) }
    };
    Finished { running, names }.end(wire, check)?;
    for rank in 0..ranks {
        if !wire.output(&format!("rank{rank}")).contains(&format!("rank {rank} of {ranks}: ended")) {
            return Err(format!("rank {rank} has not freed its objects"));
        }
    }
    Ok(())
}

fn compile(wire: &Wire) -> Result<String, String> {
    let program = wire.folder().join("rank");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/others/gloo.cc");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O1", "-o"]).arg(&program).arg(&source).args([
        "-lgloo",
        "-libverbs",
        "-lpthread",
    ]);
    succeed(&mut compiler)?;
    Ok(program.display().to_string())
}
