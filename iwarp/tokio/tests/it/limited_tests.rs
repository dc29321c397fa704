//! Tests of the time limit that each test has.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use crate::limited;

#[test]
fn a_test_that_hangs_fails_under_its_name() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // A blocked thread of the runtime does not delay the failure.
    runtime.spawn_blocking(|| thread::sleep(Duration::from_secs(3600)));
    let hangs = || limited::block_on(runtime, Duration::from_millis(1), std::future::pending::<()>());
    let panic = catch_unwind(AssertUnwindSafe(hangs)).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    let expected = "a_test_that_hangs_fails_under_its_name has not ended within 1ms";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_test_has_its_result() {
    let runtime = limited::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(async { 7 }), 7);
}
