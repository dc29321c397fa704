//! Processes end when they should, and their output is captured.

use super::*;

const SOON: Duration = Duration::from_secs(10);

fn shell(script: &str) -> Run {
    Run::new("sh").args(["-c", script])
}

#[test]
fn both_streams_are_captured_and_an_exit_code_is_an_error() {
    assert_eq!(shell("echo one; echo two >&2").check(SOON).unwrap().len(), 8);
    let error = shell("echo why >&2; exit 3").check(SOON).unwrap_err().to_string();
    assert!(error.contains("why") && error.contains('3'), "{error}");
    let ended = shell("echo first; echo last; exit 1").spawn().unwrap().finish(SOON).unwrap();
    assert_eq!(ended.failure().unwrap(), "last");
}

#[test]
fn output_that_comes_after_the_end_of_the_program_is_captured() {
    let late = shell("(sleep 2; echo late) & echo early").check(SOON).unwrap();
    assert_eq!(late, "early\nlate\n");
}

#[test]
fn waiting_for_a_line_ends_with_the_line_with_the_program_or_with_the_limit() {
    let mut process = shell("echo ready; sleep 60").spawn().unwrap();
    process.wait_for("ready", SOON).unwrap();
    let error = process.wait_for("never", Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("ready"), "{error}");
    let mut process = shell("true").spawn().unwrap();
    let started = Instant::now();
    process.wait_for("never", SOON).unwrap_err();
    assert!(started.elapsed() < SOON);
}

#[test]
fn a_program_that_takes_too_long_is_killed_and_a_dropped_one_too() {
    let process = shell("sleep 60").spawn().unwrap();
    let proc_entry = format!("/proc/{}", process.id());
    process.finish(Duration::from_millis(50)).unwrap_err();
    assert!(!Path::new(&proc_entry).exists());

    let process = shell("sleep 60").spawn().unwrap();
    let proc_entry = format!("/proc/{}", process.id());
    drop(process);
    assert!(!Path::new(&proc_entry).exists());
}
