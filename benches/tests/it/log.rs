//! `--log`: the events of a run, on standard error.

use std::process::Command;

use crate::common::local;

/// Returns the lines that a successful run prints on standard error.
fn events(options: &str) -> Vec<String> {
    let output = local("write-bw", &format!("-n 5 {options}"));
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{options}: {err}");
    assert!(!String::from_utf8(output.stdout).unwrap().contains("iwarp::"), "events are in the table");
    err.lines().map(str::to_owned).collect()
}

#[test]
fn a_connection_is_shown_with_its_fields() {
    let lines = events("--log info -p 4000");
    let line = lines.iter().find(|line| line.contains("connection established")).expect("an event");
    for part in [" INFO iwarp::engine::trace: ", "engine=0", ":4000", "qp_num=", "revision=", "crc=true"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(lines.iter().all(|line| !line.contains(" DEBUG ")), "{lines:?}");
}

#[test]
fn a_filter_chooses_levels_by_crate() {
    let lines = events("--log iwarp=debug,tcp_lite=off --drop-ppm 1000");
    assert!(lines.iter().any(|line| line.contains(" DEBUG iwarp") && line.contains("MPA Request sent")));
    assert!(lines.iter().all(|line| line.contains(" iwarp::")), "{lines:?}");
    assert_eq!(events(""), [""; 0]);
}

#[test]
fn the_environment_may_have_the_filter() {
    let output = Command::new(env!("CARGO_BIN_EXE_iwperf"))
        .args(["local", "write-bw", "-n", "5"])
        .env("RUST_LOG", "iwarp=info")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("connection established"), "{output:?}");
}

#[test]
fn a_filter_that_is_none_is_refused_in_one_line() {
    for filter in ["verbose", "iwarp=loud", "info,debu"] {
        let output = local("write-bw", &format!("-n 5 --log {filter}"));
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{filter}: {err}");
        assert!(err.contains(&format!("--log {filter}: ")) && err.contains("give a level"), "{err}");
    }
}
