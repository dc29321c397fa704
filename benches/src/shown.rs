//! The contexts of this process that others can look at: `uwarp status`, and `--metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use iwarp::verbs::Context;

static CONTEXTS: Mutex<Vec<(u64, Context)>> = Mutex::new(Vec::new());

/// A context is shown as long as this lives.
pub struct Shown {
    number: u64,
    #[cfg(target_os = "linux")]
    _socket: Option<iwarp::status::StatusSocket>,
}

impl Shown {
    /// Shows a context. If the system refuses the socket for `uwarp status`, the test runs all the same.
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

/// The contexts that are shown, with their numbers.
pub(crate) fn contexts() -> Vec<(u64, Context)> {
    all().clone()
}

fn all() -> MutexGuard<'static, Vec<(u64, Context)>> {
    CONTEXTS.lock().expect("no holder of this lock panics")
}
