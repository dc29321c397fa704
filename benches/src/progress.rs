//! A progress bar on a terminal; nothing in a pipe or a file.

use std::io::IsTerminal;
use std::time::Duration;

use dp::Clock;
use indicatif::{ProgressBar, ProgressStyle};

/// Progress of a run. A call costs one comparison, except once in a tenth of a second.
pub struct Progress {
    bar: Option<ProgressBar>,
    by_time: bool,
    next_look: u64,
    period: u64,
}

impl Progress {
    /// No bar.
    pub fn hidden() -> Self {
        Self { bar: None, by_time: false, next_look: 0, period: 0 }
    }

    /// A bar for `total` messages (0: by time) at `hz` cycles a second, if standard error is a terminal.
    pub fn new(label: String, total: u64, hz: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::hidden();
        }
        let by_time = total == 0;
        let bar = ProgressBar::new(if by_time { 1000 } else { total });
        if let Ok(style) = ProgressStyle::with_template("{msg:>12} [{bar:40}] {percent:>3} % {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(label);
        let period = hz * Duration::from_millis(100).as_millis() as u64 / 1000;
        Self { bar: Some(bar), by_time, next_look: 0, period }
    }

    /// Shows `done` messages, or the time between `started` and `deadline`.
    #[inline]
    pub fn at(&mut self, done: u64, started: u64, deadline: u64) {
        let Some(bar) = &self.bar else { return };
        let now = Clock::cycles();
        if now < self.next_look {
            return;
        }
        self.next_look = now + self.period;
        let span = deadline.saturating_sub(started).max(1);
        bar.set_position(if self.by_time {
            now.saturating_sub(started).min(span) * 1000 / span
        } else {
            done
        });
    }

    /// Removes the bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
