//! Runs `measure compare` as its users run it, with rows that can be measured and a row that cannot be
//! measured, and `measure churn`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use testing::lab::{Prerequisite, Result, Run, Scratch, Suite, programs};
use testing::{ensure, lab_error};

/// Time limit of one row in a quick run, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let needs = [
        Prerequisite::Dpdk,
        Prerequisite::Program("ip"),
        Prerequisite::Program("ethtool"),
        Prerequisite::Program("taskset"),
        Prerequisite::Namespaces,
    ];
    let mut suite = Suite::new("smoke", &needs);
    suite.add("a_row_is_measured_and_written", a_row_is_measured_and_written);
    suite.add("writes_over_sockets_are_a_baseline", writes_over_sockets_are_a_baseline);
    suite.add("a_row_that_cannot_be_measured_fails_the_run", a_row_that_cannot_be_measured_fails_the_run);
    suite.add("connections_come_and_go", connections_come_and_go);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if suite.run(&arguments) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn compare(row: &str, json: &Path) -> Run {
    let compare = Run::new(env!("CARGO_BIN_EXE_measure")).arg("compare");
    compare.args(["--quick", "--no-huge", "--only", row, "--json"]).arg(json)
}

fn read(json: &Path) -> Result<Value> {
    serde_json::from_slice(&std::fs::read(json)?).map_err(|error| lab_error!("{error}"))
}

fn a_row_is_measured_and_written() -> Result<()> {
    // The program is built into the folder in which `compare` searches.
    programs::iwperf()?;
    let scratch = Scratch::new()?;
    let json = scratch.file("compare.json");
    // This row has runs of a fixed time. Rows with a fixed number of messages take too long if other
    // processes use the two cores.
    let text = compare("rate_64", &json).check(LIMIT)?;
    let document = read(&json)?;
    let row = &document["rate_64"];
    let figure = |name: &str| row[name].as_f64().filter(|figure| *figure > 0.0);
    let (Some(ours), Some(theirs), Some(ratio)) = (figure("ours"), figure("theirs"), figure("ratio")) else {
        return Err(lab_error!("figures are missing: {row}\n{text}"));
    };
    ensure!((ratio - ours / theirs).abs() < 1e-9, "{ratio} is not {ours} by {theirs}");
    ensure!(row["unit"] == "M/s" && row["better"] == "more", "{row}");
    ensure!(row["directions"].as_object().is_some_and(|directions| directions.len() == 2), "{row}");
    ensure!(row["messages_validated"].as_u64().is_some_and(|messages| messages >= 40_000), "{row}");
    ensure!(text.contains("do not quote") && text.contains("rate_64"), "{text}");
    Ok(())
}

fn writes_over_sockets_are_a_baseline() -> Result<()> {
    programs::iwperf()?;
    let scratch = Scratch::new()?;
    let json = scratch.file("compare.json");
    let text = compare("sockets_1500", &json).check(LIMIT)?;
    let document = read(&json)?;
    let row = &document["sockets_1500"];
    for direction in ["vhost_sends", "virtio_user_sends"] {
        let figure = |name: &str| row["directions"][direction][name].as_f64().filter(|figure| *figure > 0.0);
        ensure!(figure("ours").is_some() && figure("theirs").is_some(), "{direction}: {row}");
    }
    ensure!(row["kernel_tried"].as_object().is_some_and(|tried| tried.len() >= 2), "{row}");
    ensure!(row["messages_validated"].as_u64().is_some_and(|messages| messages >= 200), "{row}");
    let machine = &document["machine"];
    ensure!(machine["memory_mib"].as_u64().is_some_and(|memory| memory > 0), "{machine}");
    let runs = &document["runs"];
    ensure!(runs["runs"].as_u64().is_some_and(|runs| runs >= 2), "not both directions were watched: {runs}");
    ensure!(text.contains("runs of pollers were disturbed"), "{text}");
    Ok(())
}

fn a_row_that_cannot_be_measured_fails_the_run() -> Result<()> {
    let scratch = Scratch::new()?;
    // The program is alone in its folder, so it finds none of the programs that it has to run.
    let (alone, json) = (scratch.file("measure"), scratch.file("compare.json"));
    std::fs::copy(env!("CARGO_BIN_EXE_measure"), &alone)?;
    let run = Run::new(&alone).args(["compare", "--quick", "--only", "markers", "--json"]).arg(&json);
    let ended = run.spawn()?.finish(LIMIT)?;
    ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.text);
    ensure!(ended.text.contains("markers        not measured: iwperf is not built"), "{}", ended.text);
    let document = read(&json)?;
    ensure!(document["markers"].is_null() && document["not_measured"]["markers"].is_string(), "{document}");
    Ok(())
}

fn connections_come_and_go() -> Result<()> {
    let churn = Run::new(env!("CARGO_BIN_EXE_measure")).args(["churn", "--rate", "200", "--seconds", "20"]);
    let text = churn.check(LIMIT)?;
    ensure!(text.contains("4000 connections in "), "{text}");
    Ok(())
}
