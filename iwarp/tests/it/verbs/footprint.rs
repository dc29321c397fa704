//! The memory of an idle connection (RFC 5042 section 2.2.1).

use crate::common::counting::held;
use crate::common::{Connected, Pair};
use iwarp::verbs::{ConnParam, QpInit, Usage};

/// Returns the usage of queue pairs and of read slots, as B's context reports it.
fn reported(pair: &Pair) -> [Usage; 2] {
    let usage = pair.b.context.usage();
    [usage.qp, usage.read_slots]
}

fn connect(pair: &mut Pair, count: usize, connections: &mut Vec<Connected>) {
    let param = ConnParam::default();
    for _ in 0..count {
        let qps = [&pair.a, &pair.b].map(|host| {
            let init = QpInit { max_send_wr: 16, max_recv_wr: 16, ..QpInit::new(&host.cq) };
            host.pd.create_qp(&init).unwrap()
        });
        let [qp_a, qp_b] = qps;
        connections.push(pair.connect_qps(qp_a, qp_b, &param, &param));
    }
    // After this time, buffers of startup are freed and timers have stopped.
    pair.run_us(50_000);
}

fn end(pair: &mut Pair, connections: &mut Vec<Connected>) {
    for connection in connections.drain(..) {
        connection.id_a.abort();
    }
    pair.run_us(1_000_000);
    while pair.a.channel.poll().is_some() {}
    while pair.b.channel.poll().is_some() {}
    while pair.a.cq.poll_one().is_some() {}
    while pair.b.cq.poll_one().is_some() {}
}

// Proves SEC-019: the memory of an idle connection does not depend on the number of connections, and the
// usage that the context reports grows by the same amount for each connection. All memory of the connections
// is freed when they end. The first round makes tables grow to their final sizes.
#[test]
fn idle_connections_hold_the_same_each_and_give_it_back() {
    const STEP: usize = 100;
    let (mut pair, _listener) = Pair::listening();
    let mut connections = Vec::with_capacity(4 * STEP);
    let nothing = reported(&pair);
    assert_eq!(nothing[0].used, 0);
    let mut left = Vec::with_capacity(4);
    for round in 0..4 {
        let mut each = Vec::with_capacity(4);
        for step in 1..=4 {
            let before = held();
            connect(&mut pair, STEP, &mut connections);
            each.push((held() - before) / STEP as i64);
            let [qps, reads] = reported(&pair);
            assert_eq!(qps.used, step * STEP);
            // For each queue pair, the slots of its Reads and the same number of slots for atomics.
            assert_eq!(reads.used, nothing[1].used + step * STEP * 2 * 128);
        }
        if round > 0 {
            let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
            assert!(*least > 0 && *most <= least + least / 50, "bytes of each, both ends: {each:?}");
        }
        // The amounts do not change while the connections are idle.
        let idle = held();
        pair.run_us(4_000_000);
        assert_eq!(held(), idle);
        end(&mut pair, &mut connections);
        assert_eq!(reported(&pair), nothing);
        drop(each);
        left.push(held());
    }
    let back = left.windows(2).map(|two| two[1] - two[0]).collect::<Vec<_>>();
    assert_eq!(back[1..], [0, 0], "what a round left behind");
}
