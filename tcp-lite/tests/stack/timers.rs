//! Tests of when timers run. One poller asks for the next deadline after each poll. Another poller never
//! asks, and for this poller, the stack sets timers later.

use dp::Burst;
use dp::link::{LinkConfig, LinkPlan};
use tcp_lite::{Duration, Pacing, State, TcpConfig};

use crate::harness::{MAC_A, MAC_B, World, byte, config};

/// Maximum delay of a timer whose poller never asks for the next deadline, in microseconds.
const SLACK_US: u64 = 100;

/// Queues `segments` segments in an established connection, and then polls the stack every microsecond for
/// `for_us` microseconds. All frames sent in this time are lost. Returns the times at which frames were sent,
/// in microseconds after the queueing. Before the queueing, a frame takes `delay_us` microseconds on the
/// wire. If `asks`, asks for the next deadline after each poll.
fn departures(tcp: &TcpConfig, delay_us: u32, (segments, for_us): (usize, u64), asks: bool) -> Vec<u64> {
    let (mut a, b) = (config(MAC_A, 1), config(MAC_B, 2));
    a.tcp = *tcp;
    let delay = LinkPlan { delay_us, ..LinkPlan::default() };
    let link = LinkConfig { a_to_b: delay.clone(), b_to_a: delay, ..LinkConfig::default() };
    let mut world = World::new(&link, a, b);
    world.b.stack.listen(4000).unwrap();
    // Both hosts have to be in ESTABLISHED. In other states, the stack sets timers at once.
    world.b.keep_all_open();
    let now = world.now();
    let stream = world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 1);
    world.a.keep_open(stream);
    assert!(world.run(1_000_000, |world| !world.b.streams.is_empty() && world.b.received(0) == 1));
    world.run(500_000, |_| false);
    let (start, conn) = (world.now(), world.a.streams[stream].conn);
    let stack = &mut world.a.stack;
    assert_eq!(stack.info(conn).unwrap().state, State::Established);
    {
        let mut sender = stack.sender(start, conn).unwrap();
        for _ in 0..segments {
            let mut segment = sender.segment(0).unwrap();
            let bytes: Vec<u8> = (0..1000).map(byte).collect();
            assert!(segment.append_slice(&bytes));
            segment.push();
        }
    }
    let (mut times, mut out) = (Vec::new(), Burst::new());
    for us in 0..for_us {
        let now = start + Duration::from_micros(us);
        stack.poll(now);
        out.clear();
        stack.transmit(now, &mut out);
        times.extend(out.iter().map(|_| us));
        if asks {
            stack.next_deadline(now);
        }
    }
    times
}

#[test]
fn timers_longer_than_the_slack_run_when_they_are_due() {
    let tcp = TcpConfig { pacing: None, ..TcpConfig::default() };
    let [asked, polled] = [true, false].map(|asks| departures(&tcp, 200, (2, 1_000_000), asks));
    assert!(asked.len() >= 6, "two segments, a loss probe and some retransmissions: {asked:?}");
    assert_eq!(polled, asked);
}

#[test]
fn shorter_timers_are_late_by_the_slack_at_most() {
    let tiny = Duration::from_micros(1);
    let tcp = TcpConfig { rto_min: tiny, tail_probe_min: tiny, pacing: None, ..TcpConfig::default() };
    let [asked, polled] = [true, false].map(|asks| departures(&tcp, 200, (2, 100_000), asks));
    assert!(asked.len() >= 6, "{asked:?}");
    for (nr, (asked, polled)) in asked.iter().zip(&polled).enumerate() {
        // Each timer starts when the previous timer has run, so the delays add up.
        let late = nr as u64 * SLACK_US;
        assert!((*asked..=asked + late).contains(polled), "number {nr}: {polled} instead of {asked}");
    }
}

#[test]
fn paced_segments_are_not_late() {
    let pacing = Pacing { burst_segments: 1, rtt_min: Duration::from_micros(100) };
    let tcp = TcpConfig { pacing: Some(pacing), ..TcpConfig::default() };
    let [asked, polled] = [true, false].map(|asks| departures(&tcp, 20, (10, 1000), asks));
    let gaps: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0).collect();
    assert!(gaps.len() > 2, "the segments are paced: {asked:?}");
    assert!(gaps.iter().all(|gap| *gap < SLACK_US), "else the slack is over by then: {asked:?}");
    assert_eq!(polled, asked);
}
