//! Test of a peer that is alive, but has a closed window, because its application reads nothing. The peer's
//! acknowledgements have the form that header prediction accepts.

use dp::link::LinkConfig;

use crate::harness::{MAC_A, MAC_B, World, config};

const WINDOW: u32 = 4000;

/// A time that is longer than the user timeout, whatever the intervals between probes are.
const MINUTES_US: u64 = 300_000_000;

#[test]
fn a_window_that_stays_closed_ends_nothing_and_one_that_opens_is_used() {
    for prediction in [true, false] {
        let (mut a, mut b) = (config(MAC_A, 1), config(MAC_B, 2));
        (a.tcp.header_prediction, b.tcp.header_prediction) = (prediction, prediction);
        b.tcp.recv_window_bytes = WINDOW;
        let mut world = World::new(&LinkConfig::default(), a, b);
        world.b.stack.listen(4000).unwrap();
        world.b.keep_all_open();
        let now = world.now();
        let stream = world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 0);
        world.a.keep_open(stream);
        assert!(world.run(1_000_000, |world| !world.b.streams.is_empty() && world.b.streams[0].established));
        let conn = world.b.streams[0].conn;
        world.b.stack.hold(conn, WINDOW as usize);
        world.a.send_more(stream, 10_000);
        world.run(MINUTES_US, |_| false);
        let probes = world.a.stack.counters().window_probes;
        assert!(probes > 30, "{probes} probes");
        assert_eq!((world.a.streams[stream].closed, world.b.streams[0].closed), (None, None));
        assert!(world.b.received(0) <= u64::from(WINDOW), "{}", world.b.received(0));
        // Nothing is in flight, so the segment that opens the window acknowledges no new bytes.
        world.b.stack.release(conn, WINDOW as usize);
        let arrived = world.run(100_000, |world| world.b.received(0) == 10_000);
        assert!(arrived, "{} arrived, prediction: {prediction}", world.b.received(0));
    }
}
