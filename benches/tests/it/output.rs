//! The output and the files of `iwperf local`.

use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::folder::Folder;

use crate::common::local;

/// Runs a test, which has to succeed, and returns its standard output and standard error.
fn printed(test: &str, options: &str) -> (String, String) {
    let output = local(test, options);
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{test} {options}: {err}\n{out}");
    (out, err)
}

fn parsed(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_file_that_cannot_be_written_costs_no_run() {
    for options in ["--json /nonexistent/x.json", "--out_json_file /nonexistent/x.json", "--report /proc/x/y"]
    {
        let output = local("write-bw", &format!("-D 60 {options}"));
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout.is_empty() && output.status.code() == Some(1), "{options}: {err}");
        assert!(err.starts_with("iwperf: cannot write /") && err.lines().count() == 1, "{err}");
    }
}

/// `-` is standard output. Standard output contains only the document, since the table is on standard error.
#[test]
fn a_document_on_standard_output_is_there_alone() {
    for option in ["--json -", "--out_json_file -", "--out_json --out_json_file=-"] {
        let (out, err) = printed("write-bw", &format!("-n 50 {option}"));
        let value: Value =
            serde_json::from_str(&out).unwrap_or_else(|error| panic!("{option}: {error}: {out}"));
        assert!(value["results"].is_array() || value["results"].is_object(), "{option}: {out}");
        assert!(err.contains("#bytes") && err.contains(" 65536 "), "{option}: {err}");
    }
    let (out, err) = printed("write-bw", "-n 50 --report -");
    assert!(out.starts_with("<!DOCTYPE html>") || out.starts_with("<!doctype html>"), "{out}");
    assert!(err.contains("#bytes"), "{err}");
    assert!(!std::path::Path::new("-").exists(), "a file of that name");
    let refused = local("write-bw", "-n 50 --json - --report -");
    let err = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && err.contains("room for one document"), "{err}");
}

/// Runs commands whose output cannot be written: the device of standard output or of a file is full, or the
/// reader of standard output has gone.
#[test]
fn output_that_is_lost_is_an_error() {
    let lines = [
        "local write-bw -n 50",
        "local write-lat -n 50 -H",
        "local write-bw -n 50 --stats",
        "local write-bw -n 50 --json -",
        "local write-bw -n 50 --report -",
        "local write-bw -n 50 --json /dev/full",
        "local write-bw -n 50 --out_json_file /dev/full",
        "completions bash",
        "man",
        "--help",
        "local --help",
        "--version",
    ];
    for line in lines {
        for is_full in [true, false] {
            // The error of a file that cannot be written does not depend on standard output.
            let has_file = line.contains("/dev/full");
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let out = if is_full { Stdio::from(full) } else { Stdio::from(writer) };
            let mut command = Command::new(env!("CARGO_BIN_EXE_iwperf"));
            let output = command.args(line.split(' ')).env_remove("RUST_LOG").stdout(out).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            let says =
                if has_file { "cannot write /dev/full: " } else { "standard output cannot be written: " };
            let is_told = err.lines().filter(|line| line.starts_with("iwperf: ")).count() == 1
                && err.contains(&format!("iwperf: {says}No space left on device"));
            match is_full || has_file {
                true => {
                    assert!(output.status.code() == Some(1) && is_told, "{line}: {}: {err}", output.status)
                }
                // A reader that has gone is not an error.
                false => assert!(output.status.success() && !err.contains("iwperf: "), "{line}: {err}"),
            }
        }
    }
}

/// Tests numbers of queue pairs whose requests do not fit into a completion queue. The message names an
/// option that helps, with a value that is small enough.
#[test]
fn queue_pairs_and_depths_that_do_not_fit_are_told_with_a_depth_that_does() {
    for (test, options, says) in [
        ("write-bw", "-q 16000 -n 5", "--tx-depth 128: 16000 queue pairs"),
        ("write-bw", "-q 100 -t 16384 -n 1", "--tx-depth 16384: 100 queue pairs"),
        ("send-bw", "-q 100 -t 8 -r 16384 -D 1", "--rx-depth 16384: 100 queue pairs"),
    ] {
        let output = local(test, options);
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && err.contains(says) && err.lines().count() == 1, "{err}");
        let (_, advice) = err.trim_end().split_once("give ").unwrap();
        let advice = advice.strip_suffix(" or less").unwrap();
        let (name, depth) = advice.split_once(' ').unwrap();
        let with = |depth: u32| {
            let words: Vec<&str> = options.split(' ').collect();
            let of_depth = ["-t", "-r"].map(|short| name.starts_with(&format!("-{short}")).then_some(short));
            let old = of_depth.into_iter().flatten().next().unwrap();
            let at = words.iter().position(|word| *word == old);
            let others =
                words.iter().enumerate().filter(|(i, _)| at.is_none_or(|at| *i != at && *i != at + 1));
            format!("{} {name} {depth}", others.map(|(_, word)| *word).collect::<Vec<_>>().join(" "))
        };
        let depth: u32 = depth.parse().unwrap();
        assert_eq!(local(test, &with(depth + 1)).status.code(), Some(2), "{}", with(depth + 1));
        // Creating 16000 queue pairs takes long, so only the lines with 100 queue pairs are run.
        if options.contains("-q 100 ") {
            printed(test, &format!("{} -s 64", with(depth)));
        }
    }
}

#[test]
fn sizes_have_suffixes() {
    for (size, bytes) in [("64", "64"), ("4K", "4096"), ("2k", "2048"), ("1M", "1048576")] {
        let (out, _) = printed("write-bw", &format!("-n 5 -s {size}"));
        assert!(out.contains(&format!("\n {bytes} ")), "{size}: {out}");
    }
    // The maximum size is 1 GiB.
    for (size, says) in [("2G", "1G"), ("5g", "1G"), ("1T", "64, 4K, 1M, 1G"), ("G", "64, 4K, 1M, 1G")] {
        let err = String::from_utf8(local("write-bw", &format!("-n 5 -s {size}")).stderr).unwrap();
        assert!(err.contains(says) && err.lines().count() == 1, "{size}: {err}");
    }
}

#[test]
fn a_run_below_its_limit_fails_after_its_output() {
    let dir = Folder::new("iwperf-limit");
    let path = dir.join("r.json");
    printed("write-bw", "-n 50 -w 0.001 -y 0.000001");
    for (options, what) in [("-w 1e9", "bandwidth"), ("--report_gbits --limit_msgrate=1e6", "message rate")] {
        let output = local("write-bw", &format!("-n 50 {options} --json {}", path.display()));
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains(&format!("the {what} of ")) && err.contains("% below the limit of"), "{err}");
        assert_eq!(parsed(&path)["results"][0]["iterations"], 50);
    }
}

#[test]
fn json_says_where_when_and_how() {
    let dir = Folder::new("iwperf-json");
    let (json, perftest) = (dir.join("r.json"), dir.join("p.json"));
    let options =
        format!("-b -n 50 --cpu_util --json {} --out_json_file={}", json.display(), perftest.display());
    printed("send-bw", &options);
    let value = parsed(&json);
    let about = &value["iwperf"];
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert!(about["command_line"].as_str().unwrap().starts_with("iwperf local send-bw -b -n 50"), "{about}");
    assert!(about["time"].as_str().unwrap().ends_with('Z') && !about["host"].as_str().unwrap().is_empty());
    assert!(about["machine"]["cores"].as_u64().unwrap() > 0, "{about}");
    let entry = &value["results"][0];
    let ways: f64 =
        entry["ways_bytes_per_s"].as_array().unwrap().iter().map(|way| way.as_f64().unwrap()).sum();
    assert!((ways - entry["bytes_per_s"].as_f64().unwrap()).abs() < 1.0, "{entry}");
    assert!(entry["cpu_percent"].as_f64().unwrap() > 0.0, "{entry}");
    let value = parsed(&perftest);
    assert_eq!(value["test_info"]["test"], "Send_Bidirectional_BW_Test");
    assert!(
        value["results"]["n_iterations"] == 50 && value["results"]["CPU_util"].as_f64().unwrap() > 0.0,
        "{value}"
    );
}

#[test]
fn samples_are_printed_as_perftest_does() {
    let samples = |out: &str| {
        let lines = out.lines().skip_while(|line| *line != "#, usec").skip(1);
        let number = |line: &str| line.split_once(", ")?.1.parse::<f64>().ok();
        lines.map_while(number).collect::<Vec<_>>()
    };
    let (out, _) = printed("read-lat", "-n 40 -U");
    assert_eq!(samples(&out).len(), 40, "{out}");
    for (test, count) in [("send-lat", 39), ("write-lat", 39), ("atomic-lat", 40)] {
        let (out, _) = printed(test, "-n 40 -H");
        let samples = samples(&out);
        // A side that answers does not know how long its last message took, so one sample may be missing.
        assert!(samples.len() == count || samples.len() == 39, "{test}: {out}");
        assert!(samples.is_sorted() && samples[0] > 0.0, "{test}: {samples:?}");
    }
}

#[test]
fn both_directions_and_further_columns_are_shown_if_wanted() {
    let (out, _) = printed("write-bw", "-b -n 100 --report-both --cpu_util");
    let averages: Vec<f64> = out
        .lines()
        .filter(|line| line.starts_with(" 65536"))
        .map(|line| line.split_whitespace().nth(3).unwrap().parse().unwrap())
        .collect();
    let &[both, local, remote] = &averages[..] else { panic!("{out}") };
    assert!((both - local - remote).abs() < 0.05, "{out}");
    assert!(
        out.contains(" Local results: ") && out.contains(" Remote results: ") && out.contains("CPU_Util[%]")
    );
    let (out, _) = printed("write-bw", "-n 200 -N");
    assert!(out.contains(" 65536      200              0.00  "), "{out}");
}

#[test]
fn counters_are_a_table_with_rates() {
    let (out, _) = printed("write-bw", "-n 200 --stats");
    for word in ["counter", "a second", " port\n", " TCP\n", " RDMA\n", "tx_fpdus", "cost of 65536 B"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(!out.contains("rx_bad_checksum") && !out.contains('{'), "{out}");
}

#[test]
fn a_run_by_time_says_how_it_goes_every_second() {
    let (out, err) = printed("write-bw", "-D 3 --report_gbits");
    assert!(!out.contains("retransmits"), "{out}");
    assert!(
        (1..=2).contains(&err.lines().count()) && err.contains(" s: ") && err.contains("Gb/sec"),
        "{err}"
    );
    let (_, err) = printed("read-lat", "-D 2");
    assert!(err.contains("99 %") && err.contains("% busy"), "{err}");
    assert_eq!(printed("write-bw", "-n 100").1, "");
}

#[test]
fn a_run_goes_on_when_nobody_reads_how_it_goes() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(["local", "write-bw", "-D", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && out.lines().any(|line| line.starts_with(" 65536")), "{out}");
}

#[test]
fn options_without_an_effect_are_explained_in_one_line() {
    let (_, err) = printed("write-bw", "-n 50 -R -F -d siw0 -i 1 -x 3");
    assert!(err.starts_with("iwperf: accepted without an effect: -R (") && err.lines().count() == 1, "{err}");
}
