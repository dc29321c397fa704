//! `iwperf local`: all six tests between two engines over a wire in memory, every octet checked.

use std::process::{Command, Output};

const TESTS: [&str; 6] = ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"];

fn local(test: &str, options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(["local", test])
        .args(options.split_whitespace())
        .output()
        .expect("the binary was built with this test")
}

/// Runs it, expects success, returns the rows of its table.
fn rows(test: &str, options: &str) -> Vec<Vec<f64>> {
    let output = local(test, options);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} {options}: {err}\n{out}");
    let numbers = |line: &str| line.split_whitespace().map(|w| w.parse().ok()).collect::<Option<Vec<f64>>>();
    let rows: Vec<_> = out.lines().filter_map(numbers).filter(|row| row.len() >= 5).collect();
    assert!(!rows.is_empty(), "{out}");
    rows
}

#[test]
fn every_test_places_every_octet() {
    for test in TESTS {
        let row = &rows(test, "--validate -s 5000 -n 40")[0];
        assert_eq!(row[..2], [5000.0, 40.0], "{test}");
    }
}

#[test]
fn jumbo_frames_ipv6_and_markers_change_nothing() {
    for test in TESTS {
        rows(test, "--validate -s 20000 -n 20 --mtu 9000 -6 --markers");
    }
}

#[test]
fn a_lossy_wire_changes_nothing() {
    for test in ["write-bw", "read-bw", "send-bw"] {
        rows(test, "--validate -s 20000 -n 100 --drop-ppm 5000 --markers");
    }
}

#[test]
fn several_queue_pairs_both_ways_place_every_octet() {
    for test in ["write-bw", "read-bw", "send-bw"] {
        rows(test, "--validate -s 3000 -n 50 -q 3 -b");
    }
}

#[test]
fn lists_inline_moderation_and_shallow_queues_work() {
    rows("write-bw", "-s 64 -n 1000 -I 64 -l 8 -t 64");
    rows("send-bw", "-s 64 -n 1000 -I 64 -l 4 -t 16 -Q 4");
    rows("read-bw", "-s 64 -n 300 -t 8 -o 2");
    rows("send-bw", "-s 1 -n 2000 -t 1 --no-crc");
}

#[test]
fn events_instead_of_polling_work() {
    for test in ["write-bw", "read-bw", "send-bw", "read-lat", "send-lat"] {
        rows(test, "--validate -s 2000 -n 20 -e");
    }
}

#[test]
fn a_run_by_time_ends() {
    for test in TESTS {
        rows(test, "-s 1000 -D 1");
    }
}

#[test]
fn all_sizes_make_23_rows() {
    for test in ["write-lat", "send-bw"] {
        let rows = rows(test, "-a -n 5 --validate");
        assert_eq!(rows.len(), 23, "{test}");
        assert_eq!(rows[22][0], 8_388_608.0);
    }
}

#[test]
fn json_and_pcap_files_are_written() {
    let dir = std::env::temp_dir().join(format!("iwperf-local-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (json, pcap) = (dir.join("r.json"), dir.join("r.pcapng"));
    let options = format!("-s 1000 -n 10 --stats --json {} --pcap {}", json.display(), pcap.display());
    rows("send-bw", &options);
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(value["results"][0]["iterations"], 10);
    assert_eq!(value["results"][0]["confirmed_by_target"], true);
    assert!(std::fs::metadata(&pcap).unwrap().len() > 1000);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_wrong_option_is_one_line_and_status_2() {
    for options in ["-s 0", "-e", "--frobnicate", "-q 2"] {
        let output = local("write-lat", options);
        assert_eq!(output.status.code(), Some(2), "{options}");
        assert!(output.stdout.is_empty(), "{options}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with("iwperf: ") && stderr.lines().count() == 1, "{options}: {stderr}");
    }
}
