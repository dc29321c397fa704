//! Engines on a wire in shared memory. One process opens both ports, which otherwise belong to two processes.
#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use crate::common::{Pair, Testbed, connect_error, pattern, read_bytes, remote_addr};
use dp::local::{self, LocalConfig, LocalPort};
use iwarp::engine::EngineConfig;
use iwarp::verbs::{ConnParam, ConnectionError, QpState, RecvRequest, SendOp, SendRequest, WcStatus};
use tcp_lite::{AddressProbing, CloseReason};
use testkit::folder::Folder;

/// A wire for one test.
struct Wire(Folder);

impl Wire {
    fn new() -> Self {
        Self(Folder::absent("iwarp-local"))
    }

    fn open(&self, station: u16) -> LocalPort {
        let config = LocalConfig { mbufs: 1024, bulk_mbufs: 64, ..LocalConfig::new(self.0.to_path_buf()) };
        local::open(&LocalConfig { station: Some(station), ..config }).unwrap()
    }

    /// Returns two hosts, at the stations 1 and 2.
    fn hosts(&self) -> Pair {
        let ports = (Box::new(self.open(1)) as _, Box::new(self.open(2)) as _);
        let mut pair = Testbed::over(ports).configure(configure).hosts();
        pair.b.address = "100.64.0.2:7174".parse().unwrap();
        pair
    }
}

/// The IPv4 address of a station is 100.64.0.0 plus its number. The number is the end of the station's
/// Ethernet address.
fn configure(config: &mut EngineConfig) {
    let [.., high, low] = config.stack.mac.0;
    config.stack.addresses = [format!("100.64.{high}.{low}/10").parse().unwrap()].into_iter().collect();
    config.stack.derived_neighbors = Some([2, 0]);
    config.stack.address_probing = AddressProbing::Off;
}

#[test]
fn writes_of_both_ends_arrive_without_a_broadcast() {
    let wire = Wire::new();
    let mut pair = wire.hosts();
    let c = pair.connect(&ConnParam::default());
    let len = 3 << 20;
    let (at_a, at_b) = pair.regions(2 * len);
    at_a.write_at(0, &pattern(1, len)).unwrap();
    at_b.write_at(0, &pattern(2, len)).unwrap();
    for (qp, from, to) in [(&c.qp_a, &at_a, &at_b), (&c.qp_b, &at_b, &at_a)] {
        let write = SendOp::Write { remote: remote_addr(to, len) };
        qp.post_send(&SendRequest::new(7, write, from.sge(0, len))).unwrap();
    }
    for wc in [pair.wc_a(), pair.wc_b()] {
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
    }
    pair.until(|pair| {
        let placed = [&pair.a, &pair.b].map(|host| host.engine.counters().rx_placed_bytes);
        (placed == [len as u64; 2]).then_some(())
    });
    assert!(read_bytes(&at_b, len, len) == pattern(1, len) && read_bytes(&at_a, len, len) == pattern(2, len));
    for host in [&pair.a, &pair.b] {
        let counters = host.engine.counters();
        assert_eq!(
            (counters.port.tx_dropped, counters.port.tx_link_down, counters.port.rx_dropped),
            (0, 0, 0)
        );
        assert_eq!(counters.stack.tx_retransmits, 0);
    }
}

/// A message of 4 KiB and more is copied twice, even if nothing else is queued: to a page of the sender's
/// TCP, and from this page to the receiver's memory. Only the front of each frame, with the headers, is also
/// copied through the ring.
#[test]
fn a_long_message_alone_is_copied_twice() {
    let wire = Wire::new();
    let mut pair = wire.hosts();
    let c = pair.connect(&ConnParam::default());
    let (at_a, at_b) = pair.regions(2 << 20);
    let ports = |pair: &Pair| [&pair.a, &pair.b].map(|host| host.engine.counters().port);
    for len in [1 << 10, 4 << 10, 20 << 10, 64 << 10, 2 << 20] {
        at_a.write_at(0, &pattern(len as u64, len)).unwrap();
        let (before, placed) = (ports(&pair), pair.b.engine.counters().rx_placed_bytes);
        let write = SendOp::Write { remote: remote_addr(&at_b, 0) };
        c.qp_a.post_send(&SendRequest::new(1, write, at_a.sge(0, len))).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::Success);
        let end = placed + len as u64;
        pair.until(|pair| (pair.b.engine.counters().rx_placed_bytes == end).then_some(()));
        assert!(read_bytes(&at_b, 0, len) == pattern(len as u64, len));
        // The sender counts lent bytes in its next poll.
        let after = pair.until(|pair| {
            let after = ports(pair);
            let lent = after[0].tx_lent_bytes - before[0].tx_lent_bytes;
            (lent == after[1].rx_borrowed_bytes - before[1].rx_borrowed_bytes).then_some(after)
        });
        let frames = after[0].tx_frames - before[0].tx_frames;
        let lent = after[0].tx_lent_bytes - before[0].tx_lent_bytes;
        // A frame of at least 4 KiB lends all but its first 192 bytes. The last frame of a message may be
        // shorter.
        let least = (len as u64).saturating_sub(192 * frames + (4 << 10));
        assert!((least..=len as u64).contains(&lent), "{lent} of {len} bytes in {frames} frames");
        assert_eq!(lent > 0, len >= 4 << 10, "{lent} of {len} bytes in {frames} frames");
        assert!(frames <= 2 + len as u64 / 32_000, "{frames} frames for {len} bytes");
    }
}

/// The number of bytes that both ends copy for each payload byte, while one end transfers `bytes` bytes by
/// `op`.
fn copies_per_byte(pair: &mut Pair, bytes: usize, post: impl FnOnce(&mut Pair)) -> f64 {
    let copied = |pair: &Pair| -> u64 {
        [&pair.a, &pair.b].iter().map(|host| host.engine.counters().copied_bytes()).sum()
    };
    let delivered = |pair: &Pair| -> u64 {
        [&pair.a, &pair.b].iter().map(|host| host.engine.counters().rx_placed_bytes).sum()
    };
    let (before, placed) = (copied(pair), delivered(pair));
    post(pair);
    pair.until(|pair| (delivered(pair) - placed >= bytes as u64).then_some(()));
    // A sender subtracts lent bytes when it has them back.
    pair.until(|pair| {
        let [sent, received] = [&pair.a, &pair.b].map(|host| host.engine.counters().port);
        let returned = sent.tx_lent_bytes == received.rx_borrowed_bytes;
        (returned && received.tx_lent_bytes == sent.rx_borrowed_bytes).then_some(())
    });
    (copied(pair) - before) as f64 / (delivered(pair) - placed) as f64
}

/// The payload of long messages is copied twice: once at each end. The rest of the 0.02 is the headers, and
/// the first 192 bytes of each frame, which go through the ring.
#[test]
fn long_messages_cost_two_copies_of_each_byte() {
    let wire = Wire::new();
    let mut pair = wire.hosts();
    let c = pair.connect(&ConnParam::default());
    let len = 1 << 20;
    let (at_a, at_b) = pair.regions(len);
    for name in ["Write", "Send", "Read"] {
        let ratio = copies_per_byte(&mut pair, len, |pair| {
            let op = match name {
                "Write" => SendOp::Write { remote: remote_addr(&at_b, 0) },
                "Send" => {
                    c.qp_b.post_recv(&RecvRequest::new(2, at_b.sge(0, len))).unwrap();
                    SendOp::Send
                }
                _ => SendOp::Read { remote: remote_addr(&at_b, 0) },
            };
            c.qp_a.post_send(&SendRequest::new(1, op, at_a.sge(0, len))).unwrap();
            assert_eq!(pair.wc_a().status, WcStatus::Success, "{name}");
        });
        assert!((2.0..2.02).contains(&ratio), "{name}: {ratio} copies of each byte");
    }
}

#[test]
fn a_station_that_is_not_there_is_unreachable_at_once() {
    let wire = Wire::new();
    let mut pair = wire.hosts();
    pair.b.address = "100.64.0.9:7174".parse().unwrap();
    let before_us = pair.now_us;
    let (qp, _id) = pair.dial(&ConnParam::default());
    let error = connect_error(pair.event_a());
    assert_eq!(error, ConnectionError::Tcp(CloseReason::Unreachable));
    assert!(pair.now_us - before_us < 1000, "{} us", pair.now_us - before_us);
    assert_eq!((qp.state(), pair.a.engine.stack_usage().connections), (QpState::Error, 0));
}

/// A sleep ends at its time limit even if no frame has arrived, because the caller may have other work at
/// this time.
#[test]
fn a_sleep_takes_no_longer_than_its_limit_where_frames_wake() {
    let wire = Wire::new();
    let mut pair = wire.hosts();
    let limit = Duration::from_millis(1);
    let (mut sleeps, start) = (0, Instant::now());
    // The first sleeps may end at once, since the first polls have something to do.
    while sleeps < 100 {
        sleeps += 1;
        pair.a.engine.poll();
        pair.a.engine.sleep(limit);
    }
    // Nothing wakes this engine, and it has no timer, so only the limit can end a sleep.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
