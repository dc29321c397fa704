//! CUBIC (RFC 9438): after a reduction, the window grows by a cubic function of the time since the reduction.
//! This growth does not depend on the round-trip time. While Reno's window would be larger than the window of
//! the cubic function, Reno's window is used.
//!
//! The first slow start uses HyStart++ (`hystart.rs`). The RFC measures windows in segments; this code
//! measures windows in bytes. `f64` gives the same results on every machine, because the code uses only IEEE
//! 754 sums, products and quotients.

use super::hystart::{Growth, HyStart};
use super::{Ack, CongestionControl, Signal, Timeout, initial_window};
use crate::{Duration, Instant};

/// The threshold after a reduction, as a fraction of the window before the reduction (section 4.6,
/// beta_cubic).
const BETA: f64 = 0.7;
/// Growth in segments per second cubed (section 5, C).
const C: f64 = 0.4;
/// Growth of Reno's window in segments per round trip, if a reduction multiplies the window by [`BETA`]
/// instead of by one half (section 4.3, alpha_cubic).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Cubic {
    mss: u32,
    ssthresh: u32,
    cwnd: f64,
    /// The plateau of the cubic function (section 4.1.2, W_max).
    w_max: u32,
    /// The window just before the last reduction (cwnd_prior).
    prior: u32,
    stage: Stage,
    /// The state before the last reduction; `None` if there was no reduction, or if the last reduction was
    /// undone.
    prior_state: Option<PriorState>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The first slow start, with HyStart++.
    First(HyStart),
    /// Slow start up to the threshold. At the threshold, an epoch begins.
    Plain,
    /// Congestion avoidance.
    Epoch(Epoch),
}

/// An epoch: a period of congestion avoidance without a reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// The time at which the epoch began, plus the time during which the window was not used (section 4.2).
    start: Instant,
    /// The time of the last acknowledgement, or the end of the last idle time, whichever is later.
    latest: Instant,
    /// Seconds from the start to the plateau (section 4.2, K).
    plateau_after: f32,
    /// The window that Reno would have (section 4.3, W_est).
    reno: f64,
}

/// The part of the state that [`undo`](CongestionControl::undo) restores.
#[derive(Clone, Copy, Debug)]
struct PriorState {
    cwnd: u32,
    ssthresh: u32,
    w_max: u32,
    /// The window just before the last reduction (cwnd_prior).
    prior: u32,
}

impl Cubic {
    pub(super) fn new(mss: u32, cwnd: u32) -> Self {
        let stage = Stage::First(HyStart::new());
        Self { mss, ssthresh: u32::MAX, cwnd: f64::from(cwnd), w_max: 0, prior: 0, stage, prior_state: None }
    }

    fn save_prior_state(&mut self) {
        let Self { ssthresh, w_max, prior, .. } = *self;
        self.prior_state = Some(PriorState { cwnd: self.cwnd(), ssthresh, w_max, prior });
    }

    /// Sets the plateau, the threshold and the stage for a reduction (sections 4.6 and 4.7). The caller sets
    /// the window.
    fn reduce(&mut self) {
        self.save_prior_state();
        let (cwnd, w_max) = (self.cwnd(), self.w_max);
        self.prior = cwnd;
        // Fast convergence: if the window did not reach the last plateau again, the flow gives up bandwidth
        // for other flows.
        self.w_max = if cwnd < w_max { (self.cwnd * (1.0 + BETA) / 2.0) as u32 } else { cwnd };
        self.ssthresh = ((self.cwnd * BETA) as u32).max(2 * self.mss);
        self.stage = Stage::Plain;
    }

    /// Called when the window was not used: excludes the time since the last acknowledgement from the epoch
    /// (section 4.2).
    #[inline]
    fn pause_epoch(&mut self, now: Instant) {
        if let Stage::Epoch(epoch) = &mut self.stage {
            epoch.start += now - epoch.latest;
            epoch.latest = now;
        }
    }

    /// The new window in slow start (section 4.10), at most the threshold; `None` if slow start is over.
    fn slow_start(&mut self, ack: &Ack) -> Option<f64> {
        let bytes = match &mut self.stage {
            Stage::First(hystart) => match hystart.on_ack(ack, self.mss) {
                Growth::By(bytes) => bytes,
                Growth::Ends => {
                    self.ssthresh = self.cwnd();
                    return None;
                }
            },
            _ => ack.slow_start_bytes(self.mss),
        };
        let threshold = f64::from(self.ssthresh);
        (self.cwnd < threshold).then(|| (self.cwnd + f64::from(bytes)).min(threshold))
    }

    /// The new window in congestion avoidance (sections 4.2 to 4.5).
    fn congestion_avoidance(&mut self, ack: &Ack) -> f64 {
        let (mss, cwnd, acked) = (f64::from(self.mss), self.cwnd, f64::from(ack.delivered));
        let mut epoch = match self.stage {
            Stage::Epoch(epoch) => epoch,
            _ => self.begin_epoch(ack.now),
        };
        epoch.latest = ack.now;
        let alpha = if epoch.reno >= f64::from(self.prior) { 1.0 } else { ALPHA };
        epoch.reno += alpha * mss * acked / cwnd;
        self.stage = Stage::Epoch(epoch);

        let cubic = |seconds: f64| {
            let from_plateau = seconds - f64::from(epoch.plateau_after);
            f64::from(self.w_max) + C * mss * from_plateau * from_plateau * from_plateau
        };
        let seconds = (ack.now - epoch.start).total_micros() as f64 / 1e6;
        if cubic(seconds) < epoch.reno {
            return cwnd.max(epoch.reno);
        }
        let target = cubic(seconds + f64::from(ack.srtt_us) / 1e6).clamp(cwnd, 1.5 * cwnd);
        cwnd + (target - cwnd) * acked / cwnd
    }

    fn begin_epoch(&mut self, now: Instant) -> Epoch {
        // If the window is above the plateau, as after a slow start that ended without a loss, the window
        // becomes the new plateau.
        self.w_max = self.w_max.max(self.cwnd());
        let below = (f64::from(self.w_max) - self.cwnd) / f64::from(self.mss);
        Epoch { start: now, latest: now, plateau_after: cube_root(below / C) as f32, reno: self.cwnd }
    }
}

impl CongestionControl for Cubic {
    fn cwnd(&self) -> u32 {
        self.cwnd as u32
    }

    fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.cwnd = self.slow_start(ack).unwrap_or_else(|| self.congestion_avoidance(ack));
    }

    #[inline]
    fn on_unused(&mut self, now: Instant) {
        self.pause_epoch(now);
    }

    fn on_congestion(&mut self, _now: Instant, _in_flight: u32, _signal: Signal) {
        self.reduce();
        self.cwnd = f64::from(self.ssthresh);
    }

    fn on_timeout(&mut self, _now: Instant, _in_flight: u32, timeout: Timeout) {
        match timeout {
            Timeout::Congestion => self.reduce(),
            Timeout::Answered => self.save_prior_state(),
            Timeout::Again => {}
        }
        self.cwnd = f64::from(self.mss);
        self.stage = Stage::Plain;
    }

    fn undo(&mut self, _now: Instant, limit: u32) {
        if let Some(before) = self.prior_state.take() {
            self.cwnd = self.cwnd.max(f64::from(before.cwnd.min(limit)));
            self.ssthresh = self.ssthresh.max(before.ssthresh).max(before.cwnd);
            (self.w_max, self.prior) = (before.w_max, before.prior);
            // The time in recovery does not count for growth, so the old epoch does not continue.
            self.stage = Stage::Plain;
        }
    }

    fn on_idle(&mut self, now: Instant, _idle: Duration) {
        self.cwnd = self.cwnd.min(f64::from(initial_window(self.mss)));
        self.pause_epoch(now);
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
    }
}

/// Returns the cube root, computed by Newton's method, or 0 if `value` is negative. The results of
/// `f64::cbrt` may differ between machines.
fn cube_root(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let mut root = value.max(1.0);
    // The estimate converges from above. While the estimate is far off, each step lowers the estimate by
    // about a third.
    for _ in 0..64 {
        let next = (2.0 * root + value / (root * root)) / 3.0;
        if next >= root {
            break;
        }
        root = next;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::super::tests::ack;
    use super::*;

    const MSS: u32 = 1000;

    fn at(millis: i64) -> Instant {
        Instant::from_millis(millis)
    }

    /// A window of `segments` segments that has just been reduced.
    fn reduced(segments: u32) -> Cubic {
        let mut cubic = Cubic::new(MSS, segments * MSS);
        cubic.on_congestion(at(0), segments * MSS, Signal::Loss);
        cubic
    }

    /// Runs round trips of `rtt_ms` until `until_ms`. In each round trip, a whole window is acknowledged.
    /// Returns the window at the end, in segments.
    fn run(cubic: &mut Cubic, rtt_ms: i64, until_ms: i64) -> f64 {
        for now in (0..=until_ms).step_by(rtt_ms as usize) {
            // Eight acknowledgements acknowledge a window.
            for _ in 0..8 {
                let acked = cubic.cwnd() / 8;
                cubic.on_ack(&Ack { now: at(now), srtt_us: rtt_ms as u32 * 1000, ..ack(acked) });
            }
        }
        f64::from(cubic.cwnd()) / f64::from(MSS)
    }

    #[test]
    fn a_reduction_leaves_seven_tenths() {
        let cubic = reduced(100);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (70 * MSS, 70 * MSS));
    }

    #[test]
    fn the_window_is_back_after_k_whatever_the_round_trip() {
        // K = cbrt(1000 * 0.3 / 0.4) = 9.09 s.
        for rtt_ms in [100, 200] {
            let mut cubic = reduced(1000);
            let half_way = run(&mut cubic.clone(), rtt_ms, 4500);
            assert!((930.0..980.0).contains(&half_way), "{half_way} after 4.5 s of {rtt_ms} ms");
            let back = run(&mut cubic, rtt_ms, 9000);
            assert!((990.0..1002.0).contains(&back), "{back} after 9 s of {rtt_ms} ms");
        }
    }

    #[test]
    fn beyond_the_plateau_it_grows_ever_faster() {
        let mut cubic = reduced(1000);
        let windows: Vec<f64> =
            [9_100, 12_100, 15_100].into_iter().map(|until| run(&mut cubic.clone(), 100, until)).collect();
        let (first, second) = (windows[1] - windows[0], windows[2] - windows[1]);
        // C * 3^3 = 10.8, and C * (6^3 - 3^3) = 75.6.
        assert!((9.0..14.0).contains(&first) && (70.0..85.0).contains(&second), "{windows:?}");
        run(&mut cubic, 100, 1000);
    }

    #[test]
    fn on_a_short_path_it_grows_like_reno() {
        let mut cubic = reduced(20);
        // The window has 14 segments. In each of 11 round trips, the window grows by 0.529 segments, until it
        // reaches the window before the reduction (20 segments). After that, the window grows by one segment
        // in each of ten round trips.
        let window = run(&mut cubic, 1, 20);
        assert!((29.0..30.0).contains(&window), "{window}");
    }

    #[test]
    fn whoever_has_less_than_before_makes_room() {
        let mut cubic = reduced(100);
        cubic.on_congestion(at(1), 70 * MSS, Signal::Loss);
        assert_eq!(cubic.w_max, 59_500);
    }

    #[test]
    fn whoever_has_as_much_as_before_makes_none() {
        let mut cubic = reduced(100);
        cubic.cwnd = f64::from(100 * MSS);
        cubic.on_congestion(at(1), 100 * MSS, Signal::Loss);
        assert_eq!(cubic.w_max, 100 * MSS);
    }

    #[test]
    fn reno_is_slower_up_to_the_window_before_the_reduction_though_the_plateau_is_lower() {
        let mut cubic = reduced(20);
        cubic.cwnd = 18_000.0;
        cubic.on_congestion(at(0), 18 * MSS, Signal::Loss);
        assert_eq!((cubic.w_max, cubic.prior, cubic.cwnd()), (15_300, 18_000, 12_600));
        // The window grows by 0.529 segments in each round trip. After ten round trips, the window is 17.9
        // segments, beyond the plateau. After that, the window grows by one segment in each round trip.
        let (before, after) = (run(&mut cubic.clone(), 1, 9), run(&mut cubic, 1, 19));
        assert!((17.6..17.95).contains(&before), "{before}");
        assert!((26.8..27.9).contains(&after), "{after}");
    }

    #[test]
    fn a_round_trip_adds_half_of_the_window_at_most() {
        let mut cubic = reduced(100);
        let once = |now, cubic: &Cubic| Ack { now: at(now), srtt_us: 1000, ..ack(cubic.cwnd()) };
        cubic.on_ack(&once(0, &cubic));
        let before = cubic.cwnd();
        // After 60 s, the cubic function gives a window of 86000 segments.
        cubic.on_ack(&once(60_000, &cubic));
        assert_eq!(cubic.cwnd(), before * 3 / 2);
    }

    #[test]
    fn an_idle_time_does_not_count() {
        let (mut busy, mut lazy) = (reduced(8), reduced(8));
        let once = |now| Ack { now: at(now), srtt_us: 100_000, ..ack(5600) };
        for cubic in [&mut busy, &mut lazy] {
            cubic.on_ack(&once(0));
        }
        lazy.on_idle(at(60_000), Duration::from_secs(60));
        lazy.on_ack(&once(60_100));
        busy.on_ack(&once(100));
        assert_eq!(lazy.cwnd(), busy.cwnd());
    }

    #[test]
    fn undo_takes_back_the_plateau_and_begins_a_stage_anew() {
        let mut cubic = reduced(1000);
        let (w_max, prior) = (cubic.w_max, cubic.prior);
        cubic.on_congestion(at(1), 700 * MSS, Signal::Loss);
        assert_ne!((cubic.w_max, cubic.prior), (w_max, prior));
        // The window has grown since the reduction, in another stage.
        run(&mut cubic, 100, 1000);
        assert!(matches!(cubic.stage, Stage::Epoch(_)));
        cubic.undo(at(2000), u32::MAX);
        assert_eq!((cubic.w_max, cubic.prior, cubic.cwnd()), (w_max, prior, 700 * MSS));
        assert!(matches!(cubic.stage, Stage::Plain));
    }

    #[test]
    fn a_timeout_ends_the_stage_whatever_it_tells() {
        for timeout in [Timeout::Congestion, Timeout::Answered, Timeout::Again] {
            let mut cubic = reduced(100);
            run(&mut cubic, 100, 1000);
            cubic.on_timeout(at(1000), 70 * MSS, timeout);
            assert_eq!(cubic.cwnd(), MSS, "{timeout:?}");
            assert!(matches!(cubic.stage, Stage::Plain), "{timeout:?}");
        }
    }

    #[test]
    fn where_slow_start_ended_without_a_loss_the_plateau_is_there() {
        let mut cubic = Cubic::new(MSS, 1000 * MSS);
        (cubic.ssthresh, cubic.stage) = (1000 * MSS, Stage::Plain);
        // In ten seconds with round trips of 100 ms, Reno's window grows by 529 / 10 segments, and the window
        // of the cubic function grows by 0.4 * 10^3 segments.
        let window = run(&mut cubic, 100, 10_000);
        assert!((1390.0..1420.0).contains(&window), "{window}");
    }

    #[test]
    fn a_reduction_ends_the_stage() {
        let mut cubic = reduced(100);
        run(&mut cubic, 100, 1000);
        assert!(matches!(cubic.stage, Stage::Epoch(_)));
        cubic.on_congestion(at(1000), 70 * MSS, Signal::Ecn);
        assert!(matches!(cubic.stage, Stage::Plain));
    }

    #[test]
    fn time_in_which_the_window_is_not_used_does_not_count() {
        let (mut busy, mut lazy) = (reduced(1000), reduced(1000));
        let once = |now| Ack { now: at(now), srtt_us: 100_000, ..ack(700_000) };
        for cubic in [&mut busy, &mut lazy] {
            cubic.on_ack(&once(0));
        }
        for now in (0..9000).step_by(100) {
            lazy.on_unused(at(now));
        }
        lazy.on_ack(&Ack { now: at(8_999), srtt_us: 100_000, ..ack(700_000) });
        busy.on_ack(&once(100));
        assert!(lazy.cwnd().abs_diff(busy.cwnd()) < 10 * MSS, "{} and {}", lazy.cwnd(), busy.cwnd());
    }

    #[test]
    fn a_growing_round_trip_ends_slow_start_before_a_loss() {
        let mut cubic = Cubic::new(MSS, 10 * MSS);
        let mut sent = 10_000;
        for round in 0..12u32 {
            // From round 4 on, segments wait longer in the queue each round.
            let rtt_us = 20_000 + 5_000 * round.saturating_sub(3);
            let end = sent;
            let acked = cubic.cwnd() / 10;
            for part in 1..=10 {
                sent += u64::from(2 * acked);
                let una = end - 10_000 + part * 1000;
                cubic.on_ack(&Ack { una, nxt: sent, rtt_us: Some(rtt_us), ..ack(acked) });
            }
            sent += 10_000;
            if cubic.ssthresh() != u32::MAX {
                // The window had 160 segments when the delay began to grow. After five more doublings the
                // window would have 5000 segments.
                return assert!(cubic.cwnd() < 1000 * MSS, "{}", cubic.cwnd());
            }
        }
        panic!("slow start goes on with {}", cubic.cwnd());
    }

    #[test]
    fn the_cube_root_is_one() {
        for value in [0.0, 1e-9, 0.3, 1.0, 27.0, 750.0, 1e9, 1e15] {
            let root = cube_root(value);
            assert!((root * root * root - value).abs() <= value * 1e-9, "{value}: {root}");
        }
    }
}
