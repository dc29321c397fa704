use super::*;
use crate::TcpConfig;
use crate::facade::TcpSeqNumber;
use crate::tcp::send::queue::test_queue::TestQueue;

const LEN: u64 = 100;

fn at(ms: i64) -> Instant {
    Instant::from_millis(ms)
}

/// A queue of segments that were sent at intervals of a millisecond, with a round-trip time of 10 ms.
struct Sender {
    config: TcpConfig,
    made: TestQueue,
    rate: RateControl,
    loss: LossRecovery,
}

impl Sender {
    fn new(segments: i64) -> Self {
        let config = TcpConfig::default();
        let (mut made, mut rate) = (TestQueue::new(64), RateControl::new(&config, LEN as u32));
        let mut loss = LossRecovery::new(at(0));
        rate.sample_rtt(at(0), 10_000);
        loss.on_rtt_sample();
        for nr in 0..segments {
            let idle = made.queue.positions().outstanding() == 0;
            assert!(made.send(LEN as usize, at(nr)));
            loss.on_new_sent(at(nr), LEN as u32, idle);
        }
        Self { config, made, rate, loss }
    }

    /// Returns the deadline in microseconds and the kind of the timer that [`LossRecovery::arm`] starts;
    /// `None` if no timer is started.
    fn armed(&mut self, now: Instant, sack: bool, syn_due: bool) -> Option<(i64, SendTimer)> {
        let Self { config, made, rate, loss } = self;
        loss.arm(now, config, &made.slab, (&made.queue, rate), (sack, syn_due));
        loss.running_timer().map(|(at, timer)| (at.total_micros(), timer))
    }

    fn rto_us(&self) -> i64 {
        self.rate.rto().total_micros() as i64
    }
}

#[test]
fn without_sack_each_duplicate_acknowledgement_is_a_segment_that_left_except_after_a_timeout() {
    let Sender { made, mut loss, .. } = Sender::new(5);
    loss.dup_acks = 2;
    let pipe = |loss: &LossRecovery, sack| loss.pipe(&made.queue, sack, LEN as u32);
    assert_eq!([false, true].map(|sack| pipe(&loss, sack)), [3 * LEN, 5 * LEN]);
    loss.dup_acks = 9;
    assert_eq!(pipe(&loss, false), 0);
    loss.phase = Phase::Loss;
    assert_eq!(pipe(&loss, false), 5 * LEN);
}

#[test]
fn only_fast_recovery_is_limited_by_proportional_rate_reduction() {
    let Sender { rate, mut loss, .. } = Sender::new(5);
    loss.prr = Prr::new(1000);
    loss.prr.on_ack(100, 400, 500, 100, false);
    let limits = [Phase::Open, Phase::Fast, Phase::Loss].map(|phase| {
        loss.phase = phase;
        (loss.send_limit(&rate), loss.is_recovering())
    });
    let window = u64::from(rate.cwnd());
    assert_eq!(limits, [(window, false), (500, true), (window, true)]);
}

#[test]
fn segments_sent_in_a_recovery_count_for_its_limit_and_its_undo() {
    for (phase, counts) in [(Phase::Open, false), (Phase::Fast, true), (Phase::Loss, true)] {
        let Sender { mut loss, .. } = Sender::new(5);
        loss.phase = phase;
        loss.prr = Prr::new(1000);
        loss.undo.start(1, 501, false, None);
        loss.on_sent_again(at(7), 100);
        loss.prr.on_ack(500, 600, 500, 100, false);
        // PRR allows half of the delivered bytes, less the bytes that were sent already.
        assert_eq!(loss.prr.cwnd(), 600 + 250 - if counts { 100 } else { 0 }, "{phase:?}");
        assert_eq!(loss.undo.on_dsack((1, 101)), counts, "{phase:?}");
    }
}

#[test]
fn a_probe_is_due_before_the_timeout_only_with_sack_and_outside_of_recoveries() {
    let mut sender = Sender::new(3);
    let rto_us = sender.rto_us();
    let probe_us = 2000 + 2 * 10_000.max(sender.config.tail_probe_min.total_micros() as i64 / 2);
    assert_eq!(sender.armed(at(2), true, false), Some((probe_us.min(rto_us), SendTimer::LossProbe)));
    assert_eq!(sender.armed(at(2), false, false), Some((rto_us, SendTimer::Rto)));
    sender.loss.phase = Phase::Loss;
    assert_eq!(sender.armed(at(2), true, false), Some((rto_us, SendTimer::Rto)));
    sender.loss.phase = Phase::Open;
    sender.loss.loss_probe.make_due();
    assert_eq!(sender.armed(at(2), true, false), Some((rto_us, SendTimer::Rto)), "one is due already");
    sender.loss.cancel_probe();
    sender.loss.timers.set_reorder(Some(at(5)));
    assert_eq!(sender.armed(at(2), true, false), Some((5000, SendTimer::Reorder)));
    assert!(sender.loss.has_reordering_timer());
    // The retransmission timer of the oldest segment is due before the reordering timer.
    sender.loss.timers.set_reorder(Some(at(100_000)));
    assert_eq!(sender.armed(at(2), true, false), Some((rto_us, SendTimer::Rto)));
}

#[test]
fn a_probe_that_was_sent_puts_the_timeout_off_and_no_other_follows() {
    let mut sender = Sender::new(3);
    sender.loss.loss_probe.make_due();
    assert!(sender.loss.is_probe_due());
    sender.loss.on_probe_sent((301, 301), true, at(9000));
    assert!(!sender.loss.is_probe_due() && !sender.loss.is_idle());
    assert_eq!(sender.armed(at(2), true, false), Some((9_000_000, SendTimer::Rto)));
}

#[test]
fn a_run_of_arrivals_cancels_the_probe_and_the_reordering_timer() {
    let mut sender = Sender::new(3);
    sender.loss.loss_probe.make_due();
    sender.loss.timers.set_reorder(Some(at(5)));
    assert!(!sender.loss.on_run(9000, Sent { at: at(0), nr: 1 }, (101, 101)));
    assert!(!sender.loss.is_probe_due() && !sender.loss.has_reordering_timer());
    assert!(sender.loss.rack.overtakes(Sent { at: at(0), nr: 0 }), "it is the latest arrival");
}

#[test]
fn what_cannot_be_sent_is_stuck_but_not_what_is_held_back() {
    // The first case: a SYN has to be sent.
    let mut sender = Sender::new(0);
    sender.made.queue = SendQueue::new(TcpSeqNumber(0));
    assert_eq!(sender.armed(at(100), true, true), Some((600_000, SendTimer::Stuck)));
    assert_eq!(sender.armed(at(200), true, true), Some((600_000, SendTimer::Stuck)), "it keeps running");
    assert_eq!(sender.armed(at(200), true, false), None);
    // The second case: a segment timed out.
    let mut sender = Sender::new(3);
    let is_stuck = |sender: &Sender| sender.loss.is_stuck(&sender.made.slab, &sender.made.queue, false);
    assert!(!is_stuck(&sender), "in flight");
    sender.made.queue.sent().mark_timed_out(&mut sender.made.slab, at(50));
    assert!(is_stuck(&sender));
    sender.loss.frto = Frto::New(1);
    assert!(!is_stuck(&sender), "F-RTO holds it back");
    // The third case: a FIN has to be sent, and the queue is empty.
    let mut sender = Sender::new(0);
    assert!(!is_stuck(&sender));
    sender.made.queue.positions_mut().close();
    assert!(is_stuck(&sender));
    assert_eq!(sender.armed(at(100), true, false), Some((600_000, SendTimer::Stuck)));
}

#[test]
fn a_closed_window_is_probed_ever_later_and_an_open_one_within_a_second() {
    for is_open in [false, true] {
        let mut sender = Sender::new(0);
        if is_open {
            sender.made.queue.window_mut().establish(1, 50);
        }
        assert!(sender.made.push(LEN as usize));
        let rto_us = sender.rto_us();
        assert_eq!(sender.armed(at(0), true, false), Some((rto_us, SendTimer::Persist)));
        for _ in 0..8 {
            sender.loss.back_off_persist();
        }
        assert_eq!(sender.armed(at(0), true, false), Some((rto_us, SendTimer::Persist)), "it keeps running");
        sender.loss.stop_timers();
        let most_us = if is_open { 1_000_000.max(rto_us) } else { i64::MAX };
        assert_eq!(sender.armed(at(0), true, false), Some(((rto_us << 8).min(most_us), SendTimer::Persist)));
        for (silly, doublings) in [(true, 8), (false, 0)] {
            sender.loss.on_progress(at(0), Duration::ZERO, silly);
            let at_us = (rto_us << doublings).min(most_us);
            assert_eq!(sender.armed(at(0), true, false), Some((at_us, SendTimer::Persist)), "{silly}");
        }
    }
}
