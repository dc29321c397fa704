//! A time limit for each test: a test that hangs fails under its name, and the other tests continue.
//!
//! `#[tokio::test(crate = "crate::limited")]` finds in this module the items of tokio that it uses. A test
//! without a runtime keeps the value that [`watch`] returns.
#![allow(dead_code, unused_imports, reason = "not every program of tests uses all of it")]

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

pub(crate) use tokio::pin;

/// Maximum time of a test. On a busy machine, some seconds are usual.
const LIMIT: Duration = Duration::from_secs(120);

/// Time for a test to end after it has failed because of the limit. After this time, the whole program ends.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) mod runtime {
    use std::io;

    pub(crate) struct Builder(tokio::runtime::Builder);

    impl Builder {
        pub(crate) fn new_current_thread() -> Self {
            Self(tokio::runtime::Builder::new_current_thread())
        }

        pub(crate) fn new_multi_thread() -> Self {
            Self(tokio::runtime::Builder::new_multi_thread())
        }

        pub(crate) fn worker_threads(&mut self, count: usize) -> &mut Self {
            self.0.worker_threads(count);
            self
        }

        pub(crate) fn enable_all(&mut self) -> &mut Self {
            self.0.enable_all();
            self
        }

        pub(crate) fn build(&mut self) -> io::Result<Runtime> {
            self.0.build().map(Runtime)
        }
    }

    pub(crate) struct Runtime(tokio::runtime::Runtime);

    impl Runtime {
        pub(crate) fn block_on<F: Future>(self, test: F) -> F::Output {
            super::block_on(self.0, super::LIMIT, test)
        }
    }
}

/// Returns the name of the test that this thread runs.
fn name() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}

/// Runs a test, which fails when it exceeds the time limit `limit`.
pub(crate) fn block_on<F: Future>(runtime: tokio::runtime::Runtime, limit: Duration, test: F) -> F::Output {
    let _watched = watch_for(limit + GRACE);
    let ended = runtime.block_on(async { tokio::time::timeout(limit, test).await });
    ended.unwrap_or_else(|_| {
        // The shutdown does not wait for the threads of the runtime, which may also hang.
        runtime.shutdown_background();
        panic!("{} has not ended within {limit:?}", name())
    })
}

/// Returns a value for a test without a runtime. If the test still has the value after its time, its thread
/// is blocked, and the program ends with the name of the test.
pub(crate) fn watch() -> impl Sized {
    watch_for(LIMIT + GRACE)
}

fn watch_for(limit: Duration) -> Sender<()> {
    let (watched, end) = channel();
    let name = name();
    thread::spawn(move || {
        if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            // No macro is used, because the harness keeps a macro's output until the test ends.
            let text = format!("\n{name} has not ended within {limit:?}, and its thread is blocked\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::exit(101);
        }
    });
    watched
}
