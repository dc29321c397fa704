//! The display of a client's run in progress. On a terminal, and without `--log`, the display is a small
//! dashboard. Otherwise, a run without a fixed number of messages prints a line per second. Both displays go
//! to standard error, so that other programs can parse the table.

use std::io::IsTerminal;

use dp::Clock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use iwarp::engine::EngineCounters;

use crate::lines::{self, tell};
use crate::log;
use crate::table::Unit;

/// How many times per second the dashboard is drawn.
const DRAWN_PER_S: u64 = 5;

/// The state of a run at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// The present time in cycles.
    pub now: u64,
    /// Number of messages so far.
    pub messages: u64,
    /// Number of bytes of each message.
    pub size: u32,
    /// The counters of this side.
    pub counters: EngineCounters,
    /// The median and the 99th percentile of the latencies so far, in microseconds. `None` in a bandwidth
    /// test.
    pub latency_us: Option<[f64; 2]>,
}

/// The display of one run.
pub struct Live {
    bar: Option<ProgressBar>,
    unit: Unit,
    hz: u64,
    /// Total number of messages, or 0 if the number is not limited.
    total: u64,
    /// Cycles between two updates, or 0 if nothing is shown.
    period: u64,
    next: u64,
    started: u64,
    /// Duration of the run in cycles, or 0 if the run has no fixed duration.
    span: u64,
    before: Option<Snapshot>,
}

/// The figures between two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    bytes_per_s: f64,
    messages_per_s: f64,
    retransmits: u64,
    busy_percent: f64,
}

impl Live {
    /// A display that shows nothing.
    pub fn hidden() -> Self {
        Self {
            bar: None,
            unit: Unit::default(),
            hz: 1,
            total: 0,
            period: 0,
            next: u64::MAX,
            started: 0,
            span: 0,
            before: None,
        }
    }

    /// The display of a run of `total` messages. If `total` is 0, the clock or an interrupt ends the run.
    /// `hz` is the number of cycles per second.
    pub fn new(label: &str, total: u64, unit: Unit, hz: u64) -> Self {
        // Events of `--log` would disturb a dashboard.
        let is_dashboard = std::io::stderr().is_terminal() && !log::is_on();
        let period = match (is_dashboard, total) {
            (true, _) => hz / DRAWN_PER_S,
            (false, 0) => hz,
            (false, _) => return Self::hidden(),
        };
        let target = is_dashboard.then(ProgressDrawTarget::stderr);
        let bar = target.map(|target| progress_bar(label, total, target));
        lines::above(bar.clone());
        Self { bar, unit, total, period, hz, ..Self::hidden() }
    }

    /// Begins the display. A run of a fixed duration ends at `deadline`. If `deadline` is not after `moment`,
    /// the run has no fixed duration.
    pub fn start(&mut self, moment: Snapshot, deadline: u64) {
        if self.period == 0 {
            return;
        }
        self.started = moment.now;
        self.span = deadline.saturating_sub(moment.now);
        self.next = moment.now + self.period;
        self.before = Some(moment);
        if let Some(bar) = &self.bar {
            set_style(bar, self.total == 0 && self.span == 0);
        }
    }

    /// Whether the display is to be updated.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.period > 0 && Clock::cycles() >= self.next
    }

    /// Shows `moment`.
    pub fn show(&mut self, moment: Snapshot) {
        let Some(before) = self.before else { return };
        self.next += self.period * ((moment.now.saturating_sub(self.next)) / self.period + 1);
        let elapsed = moment.now - self.started;
        // The last second needs no line, since the table follows.
        if self.bar.is_none() && self.span > 0 && elapsed + self.period / 2 > self.span {
            return;
        }
        let rates = rates(&before, &moment, self.hz);
        match &self.bar {
            None => {
                let seconds = (elapsed as f64 / self.hz as f64).round();
                tell(&format!("{seconds:>5} s: {}", line(&rates, moment.latency_us, self.unit)));
            }
            Some(bar) => {
                bar.set_position(match (self.total, self.span) {
                    (0, 0) => 0,
                    (0, span) => elapsed.min(span) * 1000 / span,
                    _ => moment.messages,
                });
                bar.set_message(dashboard(&rates, &moment, elapsed as f64 / self.hz as f64, self.unit));
            }
        }
        self.before = Some(moment);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            lines::above(None);
            bar.finish_and_clear();
        }
    }
}

fn progress_bar(label: &str, total: u64, target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(if total == 0 { 1000 } else { total }), target);
    bar.set_prefix(label.to_owned());
    bar
}

/// Sets the style of the dashboard. An endless run has no progress bar, so only its time is shown.
fn set_style(bar: &ProgressBar, is_endless: bool) {
    let style = match is_endless {
        true => "{prefix}  {elapsed}\n{msg}",
        false => "{prefix} [{bar:40}] {percent:>3} %  {elapsed}\n{msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
}

fn rates(before: &Snapshot, now: &Snapshot, hz: u64) -> Rates {
    let cycles = now.now.saturating_sub(before.now).max(1) as f64;
    // A warm-up may lie between the two snapshots. The count of messages begins again after a warm-up.
    let messages = now.messages.saturating_sub(before.messages);
    let messages_per_s = messages as f64 * hz as f64 / cycles;
    Rates {
        bytes_per_s: messages_per_s * f64::from(now.size),
        messages_per_s,
        retransmits: now.counters.stack.tx_retransmits - before.counters.stack.tx_retransmits,
        busy_percent: 100.0 * (now.counters.busy_cycles - before.counters.busy_cycles) as f64 / cycles,
    }
}

fn line(rates: &Rates, latency_us: Option<[f64; 2]>, unit: Unit) -> String {
    let rate = match latency_us {
        Some([median, p99]) => {
            format!("{median:.2} us, 99 % {p99:.2} us, {:.0} messages/s", rates.messages_per_s)
        }
        None => format!(
            "{:.2} {}, {:.6} Mpps",
            unit.of(rates.bytes_per_s),
            unit.name(),
            rates.messages_per_s / 1e6
        ),
    };
    format!("{rate}, {} retransmits, {:.0} % busy", rates.retransmits, rates.busy_percent)
}

fn dashboard(rates: &Rates, moment: &Snapshot, seconds: f64, unit: Unit) -> String {
    let messages_per_s = moment.messages as f64 / seconds.max(1e-9);
    let row = |name: &str, bytes_per_s: f64, messages_per_s: f64| {
        format!(
            "  {name:<12} {:>10.2} {}  {:>10.6} Mpps\n",
            unit.of(bytes_per_s),
            unit.name(),
            messages_per_s / 1e6
        )
    };
    let mut text = row("now", rates.bytes_per_s, rates.messages_per_s);
    text += &row("average", messages_per_s * f64::from(moment.size), messages_per_s);
    if let Some([median, p99]) = moment.latency_us {
        text += &format!("  {:<12} {median:>10.2} us       99 % {p99:.2} us\n", "latency");
    }
    let stack = &moment.counters.stack;
    text += &format!(
        "  {:<12} {:>10}         {} timeouts\n  {:<12} {:>10.0} %",
        "retransmits", stack.tx_retransmits, stack.rto_expired, "busy", rates.busy_percent
    );
    text
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal that stores what is written to it.
    #[derive(Clone, Debug, Default)]
    struct Terminal(Arc<Mutex<String>>);

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            120
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_dashboard_of_an_endless_run_has_no_share() {
        for (deadline, has_share) in [(0, false), (100_000, true)] {
            let terminal = Terminal::default();
            let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
            let bar = Some(progress_bar("write-bw", 0, target));
            let mut live = Live { bar, period: 10, hz: 1000, ..Live::hidden() };
            live.start(moment(0, 0, 0, 0), deadline);
            live.show(moment(50_000, 50, 0, 0));
            let text = terminal.0.lock().unwrap().clone();
            assert!(text.contains("write-bw") && text.contains("average"), "{text}");
            assert_eq!(text.contains('%') && text.contains('['), has_share, "{text}");
        }
    }

    fn moment(now: u64, messages: u64, retransmits: u64, busy_cycles: u64) -> Snapshot {
        let mut counters = EngineCounters { busy_cycles, ..EngineCounters::default() };
        counters.stack.tx_retransmits = retransmits;
        Snapshot { now, messages, size: 1000, counters, latency_us: None }
    }

    #[test]
    fn figures_are_those_since_the_last_moment() {
        let rates = rates(&moment(1000, 10, 1, 0), &moment(3000, 50, 4, 500), 1000);
        let expected =
            Rates { bytes_per_s: 20_000.0, messages_per_s: 20.0, retransmits: 3, busy_percent: 25.0 };
        assert_eq!(rates, expected);
        let text = line(&rates, None, Unit::GigabitsPerSecond);
        assert_eq!(text, "0.00 Gb/sec, 0.000020 Mpps, 3 retransmits, 25 % busy");
        let text = line(&rates, Some([1.5, 2.25]), Unit::default());
        assert_eq!(text, "1.50 us, 99 % 2.25 us, 20 messages/s, 3 retransmits, 25 % busy");
    }

    #[test]
    fn a_dashboard_has_all_of_it() {
        let now = Snapshot { latency_us: Some([1.5, 2.25]), ..moment(3000, 50, 4, 500) };
        let rates = rates(&moment(1000, 10, 1, 0), &now, 1000);
        let text = dashboard(&rates, &now, 3.0, Unit::default());
        for word in ["now", "average", "99 % 2.25 us", "retransmits", "4", "25 %"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn a_hidden_view_is_never_due() {
        let mut hidden = Live::hidden();
        hidden.start(moment(0, 0, 0, 0), 5);
        assert!(!hidden.is_due());
    }
}
