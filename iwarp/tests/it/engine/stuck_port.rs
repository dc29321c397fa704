//! A port that accepts no frames, or a pool without buffers: connections end in time, and no posted request
//! is lost.

use crate::common::{Connected, Pair, Testbed, remote_addr};
use dp::link::{LinkConfig, pair};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, MemoryRegion, QpState, SendOp, SendRequest, WcStatus,
};
use tcp_lite::{CloseReason, Instant};

/// Length of a Write in bytes.
const BYTES: usize = 1 << 20;

/// Connects two hosts on a wire whose ring is soon full. A posts `writes` Writes between the two regions.
fn writing(writes: u64) -> (Pair, Connected, [MemoryRegion; 2]) {
    let mut pair = Pair::new(&LinkConfig { ring_frames: 8, ..LinkConfig::default() });
    let c = pair.connect(&ConnParam::default());
    pair.run_us(100_000);
    let regions = post(&mut pair, &c, writes);
    (pair, c, regions)
}

fn post(pair: &mut Pair, c: &Connected, writes: u64) -> [MemoryRegion; 2] {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let local = pair.a.pd.reg_mr(BYTES, access).unwrap();
    let remote = pair.b.pd.reg_mr(BYTES, access).unwrap();
    for wr_id in 0..writes {
        let to = remote_addr(&remote, 0);
        c.qp_a
            .post_send(&SendRequest::new(wr_id, SendOp::Write { remote: to }, local.sge(0, BYTES)))
            .unwrap();
    }
    [local, remote]
}

/// Polls only A, so that the ring at B stays full. Returns A's event, the time until the event, and the
/// number of A's polls.
fn alone(pair: &mut Pair) -> (CmEventKind, i64, u64) {
    let (start_us, before) = (pair.now_us, pair.a.engine.counters().polls);
    loop {
        let now = Instant::from_micros(pair.now_us);
        let busy = pair.a.engine.poll_at(now);
        if let Some(event) = pair.a.channel.poll() {
            return (event.kind, pair.now_us - start_us, pair.a.engine.counters().polls - before);
        }
        let next = pair.a.engine.next_deadline(now).expect("something waits");
        pair.now_us = next.total_micros().max(pair.now_us + i64::from(busy));
        assert!(pair.now_us < start_us + 60_000_000, "it does not end");
        assert!(pair.a.engine.counters().polls < before + 100_000, "it polls in vain");
    }
}

#[test]
fn a_connection_whose_port_takes_nothing_ends_when_bytes_were_not_acknowledged_for_ten_seconds() {
    let (mut pair, _c, _regions) = writing(64);
    let (kind, took_us, polls) = alone(&mut pair);
    let error = Some(ConnectionError::Tcp(CloseReason::TimedOut));
    assert!(matches!(kind, CmEventKind::Disconnected { error: told, .. } if told == error), "{kind:?}");
    assert!((9_999_000..10_100_000).contains(&took_us), "{took_us}");
    assert!(polls < 12_000, "{polls} polls");
    let counters = pair.a.engine.counters();
    assert!(counters.port.tx_ring_full > 0);
    assert_eq!((counters.stack.path_mtu_black_holes, counters.stack.tx_cut_by_emss), (0, 0));
}

#[test]
fn an_idle_connection_whose_port_takes_nothing_ends_when_keepalives_were_not_answered() {
    let mut pair = Pair::new(&LinkConfig { ring_frames: 1, ..LinkConfig::default() });
    let _c = pair.connect(&ConnParam::default());
    pair.run_us(100_000);
    let (kind, took_us, _) = alone(&mut pair);
    let error = Some(ConnectionError::Tcp(CloseReason::TimedOut));
    assert!(matches!(kind, CmEventKind::Disconnected { error: told, .. } if told == error), "{kind:?}");
    // The peer's last segment arrived about a second ago. Four keepalives are due five, six, seven and eight
    // seconds after that segment, and the connection ends a second after the last of them.
    assert!((7_900_000..9_100_000).contains(&took_us), "{took_us}");
}

#[test]
fn a_terminate_that_the_port_does_not_take_has_its_deadline() {
    let (mut pair, c, _regions) = writing(64);
    let (now, a) = (Instant::from_micros(pair.now_us), &mut pair.a.engine);
    for _ in 0..100 {
        a.poll_at(now);
    }
    assert!(a.counters().port.tx_ring_full > 0);
    c.qp_a.modify(QpState::Terminate).unwrap();
    let (kind, took_us, polls) = alone(&mut pair);
    assert!(matches!(kind, CmEventKind::Disconnected { error: Some(_), .. }), "{kind:?}");
    // The limit is `EngineConfig::close_timeout`.
    assert!((4_999_000..5_100_000).contains(&took_us), "{took_us}");
    assert!(polls < 7_000, "{polls} polls");
}

#[test]
fn what_is_posted_while_there_is_no_buffer_is_sent_when_there_is_one() {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let pool = port_a.mempool().clone();
    let mut pair = Testbed::over((port_a, port_b)).hosts();
    let c = pair.connect(&ConnParam::default());
    pair.run_us(100_000);
    let held: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let before = pair.a.engine.counters().polls;
    let _regions = post(&mut pair, &c, 3);
    let end_us = pair.now_us + 4_000_000;
    while pair.now_us < end_us {
        pair.poll();
    }
    let polls = pair.a.engine.counters().polls - before;
    assert!(polls < 20_000, "{polls} polls");
    drop(held);
    for wr_id in 0..3 {
        let wc = pair.wc_a();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
    pair.until(|pair| (pair.b.engine.counters().rx_placed_bytes == 3 * BYTES as u64).then_some(()));
    assert!(pair.a.channel.poll().is_none() && pair.b.channel.poll().is_none());
}
