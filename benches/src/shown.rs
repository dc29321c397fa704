//! The contexts of this process that are visible to `uwarp status` and `--metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use iwarp::verbs::Context;

static CONTEXTS: Mutex<Vec<(u64, Context)>> = Mutex::new(Vec::new());

/// Keeps a context visible until the value is dropped.
pub struct Shown {
    number: u64,
    #[cfg(target_os = "linux")]
    _socket: Option<iwarp::status::StatusSocket>,
}

impl Shown {
    /// Makes a context visible. If the system refuses the socket for `uwarp status`, the test runs without
    /// the socket.
    pub fn new(context: &Context) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        all().push((number, context.clone()));
        Self {
            number,
            #[cfg(target_os = "linux")]
            _socket: iwarp::status::default_folder()
                .and_then(|folder| iwarp::status::serve(context, &folder))
                .ok(),
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        all().retain(|(number, _)| *number != self.number);
    }
}

/// The visible contexts, with their numbers.
pub(crate) fn contexts() -> Vec<(u64, Context)> {
    all().clone()
}

fn all() -> MutexGuard<'static, Vec<(u64, Context)>> {
    CONTEXTS.lock().expect("no holder of this lock panics")
}
