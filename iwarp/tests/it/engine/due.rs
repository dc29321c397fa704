//! The work that an engine does in one poll, and the time at which it asks to be polled again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::hooked::Hooks;
use crate::common::{Connected, Pair, Testbed, remote_addr};
use dp::link::LinkConfig;
use dp::{Burst, Mbuf, Port};
use iwarp::verbs::{CmEventKind, ConnParam, ConnectionError, MemoryRegion, SendOp, SendRequest};
use tcp_lite::{CloseReason, Duration, Instant};

/// Creates `count` idle connections between two hosts, and regions of `len` bytes.
fn connections(mut pair: Pair, count: usize, len: usize) -> (Pair, Vec<Connected>, [MemoryRegion; 2]) {
    let _listener = pair.listen();
    let param = ConnParam::default();
    let connections = (0..count).map(|_| pair.connect_again(&param, &param)).collect();
    let (local, remote) = pair.regions(len);
    pair.run_us(1_000_000);
    (pair, connections, [local, remote])
}

/// Posts a Write of `len` bytes at A.
fn post(c: &Connected, [local, remote]: &[MemoryRegion; 2], len: usize) {
    let to = SendOp::Write { remote: remote_addr(remote, 0) };
    c.qp_a.post_send(&SendRequest::new(1, to, local.sge(0, len))).unwrap();
}

/// With InfiniBand's semantics, the acknowledgement of B completes A's request. B sends this acknowledgement
/// in its next poll, so this poll is due at once.
#[test]
fn an_acknowledgement_that_a_request_waits_for_is_due_at_once() {
    let (mut pair, c) = Pair::agreeing();
    let (local, remote) = pair.regions(64);
    let regions = [local, remote];
    pair.run_us(1_000_000);
    post(&c, &regions, 8);
    let before = pair.b.engine.counters().rx_fpdus;
    let mut now = Instant::from_micros(pair.now_us);
    for _ in 0..100 {
        pair.a.engine.poll_at(now);
        pair.b.engine.poll_at(now);
        if pair.b.engine.counters().rx_fpdus > before {
            break;
        }
        now += Duration::from_micros(1);
    }
    assert_eq!(pair.b.engine.counters().rx_placed_bytes, 8);
    assert_eq!(pair.b.engine.next_deadline(now), Some(now));
    pair.b.engine.poll_at(now);
    assert_ne!(pair.b.engine.next_deadline(now), Some(now), "it has left");
    pair.a.engine.poll_at(now + Duration::from_micros(1));
    assert!(pair.a.cq.poll_one().is_some(), "at once");
}

/// If many queue pairs begin to send, each poll serves at most sixteen of them, and every queue pair is
/// served in the end.
#[test]
fn sixteen_queue_pairs_begin_to_send_in_a_poll() {
    let (mut pair, connections, regions) = connections(Testbed::new().hosts(), 40, 64);
    connections.iter().for_each(|c| post(c, &regions, 8));
    let before = pair.a.engine.counters().tx_fpdus;
    let now = Instant::from_micros(pair.now_us);
    for sent in [16, 32, 40, 40] {
        pair.a.engine.poll_at(now);
        assert_eq!(pair.a.engine.counters().tx_fpdus - before, sent);
        assert_eq!(pair.a.engine.next_deadline(now) == Some(now), sent < 40, "{sent} are sent");
    }
}

/// However many queue pairs have much to send, one poll hands a limited number of bytes to TCP, and the next
/// poll is due at once.
#[test]
fn a_poll_hands_over_a_bounded_number_of_bytes() {
    const LEN: usize = 1 << 20;
    let (mut pair, connections, regions) = connections(Testbed::new().hosts(), 40, LEN);
    connections.iter().for_each(|c| post(c, &regions, LEN));
    let now = Instant::from_micros(pair.now_us);
    for poll in 0..4 {
        let before = pair.a.engine.counters().tx_fetched_bytes;
        pair.a.engine.poll_at(now);
        let bytes = pair.a.engine.counters().tx_fetched_bytes - before;
        // Each of sixteen connections begins with 16 KiB, and each burst ends after a complete FPDU.
        assert!((1..16 * (18 << 10)).contains(&bytes), "{bytes} bytes in poll {poll}");
        assert_eq!(pair.a.engine.next_deadline(now), Some(now), "poll {poll}");
    }
}

/// A port that accepts one frame per call.
struct OneByOne(Arc<AtomicUsize>);

impl Hooks for OneByOne {
    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let mut rest: Vec<Mbuf> = frames.drain(..).collect();
        if rest.is_empty() {
            return 0;
        }
        let mut first = Burst::new();
        first.push(rest.remove(0));
        let sent = port.tx_burst(now_us, &mut first);
        self.0.fetch_add(sent, Ordering::Relaxed);
        frames.extend(first.drain(..).chain(rest));
        sent
    }
}

/// A poll ends even if the port accepts few frames per call. The remaining frames are due at once.
#[test]
fn frames_that_a_poll_has_left_are_due_at_once() {
    const LEN: usize = 100_000;
    let taken = Arc::new(AtomicUsize::new(0));
    let bed = Testbed::new().hook_a(OneByOne(Arc::clone(&taken)));
    let (mut pair, connections, regions) = connections(bed.hosts(), 1, 4 << 20);
    // This Write lets the congestion window grow.
    post(&connections[0], &regions, 4 << 20);
    pair.wc_a();
    pair.run_us(5000);
    post(&connections[0], &regions, LEN);
    let before = taken.swap(0, Ordering::Relaxed);
    assert!(before > 2000, "{before} frames");
    let now = Instant::from_micros(pair.now_us);
    pair.a.engine.poll_at(now);
    let first = taken.load(Ordering::Relaxed);
    assert!((32..LEN / 1460).contains(&first), "{first} frames in one poll");
    let mut polls = 1;
    while pair.a.engine.next_deadline(now) == Some(now) {
        pair.a.engine.poll_at(now);
        polls += 1;
        assert!(polls < 20);
    }
    let rest = taken.load(Ordering::Relaxed);
    assert!(rest > LEN / 1460, "{rest} frames");
    pair.b.engine.poll_at(now);
    pair.run_us(1);
    assert_eq!(pair.b.engine.counters().rx_placed_bytes, (4 << 20) + LEN as u64);
}

/// Counts the calls of `rx_burst` with which an engine asks its port for frames.
struct Asked(Arc<AtomicUsize>);

impl Hooks for Asked {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed);
        port.rx_burst(now_us, frames)
    }
}

/// If a port has returned few frames, the engine assumes that the port has no more, and does not ask the port
/// again in the same poll. The engine asks a port that has returned many frames again.
#[test]
fn a_port_with_few_frames_is_asked_once_in_a_poll() {
    let asked = Arc::new(AtomicUsize::new(0));
    let bed = Testbed::on(&LinkConfig::default()).hook_b(Asked(Arc::clone(&asked)));
    let (mut pair, connections, regions) = connections(bed.hosts(), 20, 64);
    for (posts, times) in [(0, 1), (1, 1), (15, 1), (16, 2)] {
        connections[..posts].iter().for_each(|c| post(c, &regions, 8));
        let now = Instant::from_micros(pair.now_us);
        let before = pair.b.engine.counters().rx_fpdus;
        pair.a.engine.poll_at(now);
        asked.store(0, Ordering::Relaxed);
        pair.b.engine.poll_at(Instant::from_micros(pair.now_us + 1));
        assert_eq!(pair.b.engine.counters().rx_fpdus - before, posts as u64);
        assert_eq!(asked.load(Ordering::Relaxed), times, "{posts} frames");
        pair.run_us(1_000_000);
    }
}

/// A port that accepts no frames while the flag is set. Records the maximum number of frames that the engine
/// offers in this time.
struct Stuck(Arc<AtomicBool>, Arc<AtomicUsize>);

impl Hooks for Stuck {
    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        if self.0.load(Ordering::Relaxed) {
            self.1.fetch_max(frames.len(), Ordering::Relaxed);
            return 0;
        }
        port.tx_burst(now_us, frames)
    }
}

/// If an engine's port accepts no frames, or its pool has no buffers, the engine asks to be polled again
/// soon. The engine does not ask for polls without a pause, and does not wait for a timer of TCP.
#[test]
fn a_refusal_is_tried_again_soon() {
    for by_the_port in [false, true] {
        let (port_a, port_b) = dp::link::pair(&LinkConfig::default());
        let pool = port_a.mempool().clone();
        let stuck = Arc::new(AtomicBool::new(false));
        let hook = Stuck(Arc::clone(&stuck), Arc::default());
        let bed = Testbed::over((port_a, port_b)).hook_a(hook);
        let (mut pair, connections, regions) = connections(bed.hosts(), 1, 64);
        let held: Vec<_> =
            if by_the_port { Vec::new() } else { std::iter::from_fn(|| pool.alloc()).collect() };
        stuck.store(by_the_port, Ordering::Relaxed);
        post(&connections[0], &regions, 64);
        // These polls take longer than the retransmission timers.
        for poll in 0..200 {
            let now = Instant::from_micros(pair.now_us);
            pair.a.engine.poll_at(now);
            let due = pair.a.engine.next_deadline(now).expect("something waits").total_micros();
            assert!((1..=10_000).contains(&(due - pair.now_us)), "poll {poll}: in {} us", due - pair.now_us);
            pair.now_us = due;
        }
        stuck.store(false, Ordering::Relaxed);
        drop(held);
        pair.wc_a();
        pair.until(|pair| (pair.b.engine.counters().rx_placed_bytes == 64).then_some(()));
    }
}

/// An engine that stops resets its connections at once, so that no peer has to detect the end by a timeout.
#[test]
fn an_engine_that_stops_resets_its_connections() {
    let (mut pair, connections, _regions) = connections(Testbed::new().hosts(), 3, 64);
    drop(std::mem::replace(&mut pair.a.engine, Testbed::new().hosts().a.engine));
    let start_us = pair.now_us;
    for _ in &connections {
        let event = pair.event_b();
        let error = Some(ConnectionError::Tcp(CloseReason::Reset));
        assert!(
            matches!(event.kind, CmEventKind::Disconnected { error: told, .. } if told == error),
            "{event:?}"
        );
    }
    assert!(pair.now_us - start_us < 1000, "{} us", pair.now_us - start_us);
}

/// The engine has a separate counter for polls that found work.
#[test]
fn busy_polls_are_those_with_work() {
    let (mut pair, connections, regions) = connections(Testbed::new().hosts(), 1, 64);
    let counts = |pair: &Pair| {
        let counters = pair.a.engine.counters();
        (counters.polls, counters.busy_polls)
    };
    let (polls, busy) = counts(&pair);
    let now = Instant::from_micros(pair.now_us);
    assert!(!pair.a.engine.poll_at(now));
    assert_eq!(counts(&pair), (polls + 1, busy));
    post(&connections[0], &regions, 8);
    assert!(pair.a.engine.poll_at(now));
    assert_eq!(counts(&pair), (polls + 2, busy + 1));
}

/// While the port refuses frames, the engine offers no further frames to the port. TCP keeps what is posted
/// or retransmitted in this time.
#[test]
fn a_port_that_refuses_frames_is_offered_no_more() {
    let (stuck, most) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let bed = Testbed::new().hook_a(Stuck(Arc::clone(&stuck), Arc::clone(&most)));
    let (mut pair, connections, regions) = connections(bed.hosts(), 8, 64);
    stuck.store(true, Ordering::Relaxed);
    let poll = |pair: &mut Pair, polls: usize| {
        for _ in 0..polls {
            let now = Instant::from_micros(pair.now_us);
            pair.a.engine.poll_at(now);
            pair.now_us += 1000;
        }
    };
    post(&connections[0], &regions, 64);
    poll(&mut pair, 10);
    connections[1..].iter().for_each(|c| post(c, &regions, 64));
    poll(&mut pair, 1000);
    assert_eq!(most.load(Ordering::Relaxed), 1);
    stuck.store(false, Ordering::Relaxed);
    pair.until(|pair| (pair.b.engine.counters().rx_placed_bytes == 8 * 64).then_some(()));
}
