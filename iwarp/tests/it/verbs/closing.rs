//! How long a close may take, how it is reported, and what happens to requests that are posted during the end
//! of a stream.

use std::time::Duration;

use super::ending::failed;
use crate::common::responder::Responder;
use crate::common::served::Served;
use crate::common::{ALL, PORT};
use crate::common::{Pair, Testbed, pattern};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, ListenOptions, RemoteAddr, SendOp, SendRequest, StreamOptions,
    StreamRead, WcStatus,
};
use tcp_lite::Instant;

/// A number of bytes whose transfer on the wire of `slow_hosts` takes longer than
/// `EngineConfig::close_timeout`.
const BYTES: usize = 4 << 20;

/// Returns two hosts on a wire that carries about 160 kB per second.
fn slow_hosts() -> Pair {
    let slow = LinkPlan { delay_us: 200_000, ..LinkPlan::default() };
    let link = LinkConfig { a_to_b: slow.clone(), b_to_a: slow, ..LinkConfig::default() };
    Testbed::on(&link).configure(|config| config.stack.tcp.recv_window_bytes = 64 << 10).hosts()
}

/// A graceful close is not reset as long as the peer acknowledges more of the posted bytes.
#[test]
fn a_close_takes_as_long_as_the_peer_takes_bytes() {
    let mut pair = slow_hosts();
    let c = pair.connect(&ConnParam::default());
    let (from, to) = (pair.a.pd.reg_mr(BYTES, ALL).unwrap(), pair.b.pd.reg_mr(BYTES, ALL).unwrap());
    let remote = RemoteAddr { addr: to.addr(), rkey: to.rkey() };
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote }, from.sge(0, BYTES))).unwrap();
    c.id_a.disconnect();
    let start_us = pair.now_us;
    told!(pair.event_a(), Disconnected { error: None, .. });
    assert!(pair.now_us - start_us > 20_000_000, "the wire is not slow");
    assert_eq!(pair.b.engine.counters().rx_placed_bytes, BYTES as u64);
}

/// As in Full Operation, a close in streaming mode is not reset as long as the peer acknowledges bytes. Bytes
/// that TCP has not accepted yet are also sent.
#[test]
fn a_close_in_streaming_mode_takes_as_long_as_the_peer_takes_bytes() {
    let options = StreamOptions { recv_bytes: BYTES, send_bytes: BYTES };
    let mut pair = slow_hosts();
    let listener = pair.b.context.create_id(&pair.b.channel);
    listener.listen_with(&ListenOptions { streaming: Some(options), ..ListenOptions::new(PORT) }).unwrap();
    pair.poll();
    let id = pair.a.context.create_id(&pair.a.channel);
    id.connect_stream(pair.b.address, options, &ConnParam::default()).unwrap();
    let (_, peer) = (pair.event_a(), pair.event_b().id);
    let bytes = pattern(1, BYTES);
    assert_eq!(id.send_stream(&bytes).unwrap(), bytes.len());
    id.disconnect();
    let mut got: Vec<u8> = Vec::new();
    pair.until(|_| {
        let mut piece = [0; 4096];
        loop {
            match peer.recv_stream(&mut piece).unwrap() {
                StreamRead::Bytes(count) => got.extend(&piece[..count]),
                StreamRead::Empty => return None,
                StreamRead::Ended => return Some(()),
            }
        }
    });
    assert!(got == bytes, "{} bytes of {}", got.len(), bytes.len());
    peer.disconnect();
    told!(pair.event_a(), Disconnected { error: None, .. });
}

/// Only bytes that are acknowledged after the start of a close's timeout extend the timeout. If a peer
/// acknowledges the last bytes and then does not close, the close takes twice the timeout.
#[test]
fn a_close_is_extended_once_for_the_same_bytes() {
    let mut served = Served::new();
    let remote = RemoteAddr { addr: 0, rkey: 1 };
    let region = served.reg_mr(64, ALL);
    served.post(&SendRequest::new(1, SendOp::Write { remote }, region.sge(0, 64)));
    served.id.disconnect();
    let start_us = served.pair.now_us;
    served.run(1_000_000);
    assert!(served.pair.peer_closed, "our FIN is behind the bytes");
    told!(served.event(), Disconnected { error: Some(ConnectionError::CloseTimeout), .. });
    let took_us = served.pair.now_us - start_us;
    assert!((9_900_000..10_100_000).contains(&took_us), "{took_us} us");
}

/// In streaming mode, a peer acknowledges some bytes late and then no more. The close takes twice the
/// timeout.
#[test]
fn a_close_in_streaming_mode_is_extended_once_for_the_same_bytes() {
    const SENT: usize = 16 << 20;
    let options = StreamOptions { recv_bytes: 1000, send_bytes: SENT };
    let mut d = Responder::with(|listen| listen.streaming = Some(options));
    d.open(&[]);
    let id = d.event().id;
    (d.pair.stopped_reading, d.pair.deaf) = (true, true);
    assert_eq!(id.send_stream(&pattern(1, SENT)).unwrap(), SENT);
    id.disconnect();
    let start_us = d.pair.now_us;
    d.pair.until(1_000_000, |_| false);
    d.pair.deaf = false;
    let event = loop {
        let event = d.event();
        if !matches!(event.kind, CmEventKind::StreamWritable | CmEventKind::StreamReadable) {
            break event;
        }
    };
    told!(event, Disconnected { error: Some(ConnectionError::CloseTimeout), .. });
    assert!((1..SENT).contains(&d.pair.inbox.len()), "{} bytes", d.pair.inbox.len());
    let took_us = d.pair.now_us - start_us;
    assert!((9_900_000..10_100_000).contains(&took_us), "{took_us} us");
}

/// A close that waits for the Read Response to a Read counts as the user's close, however long the connection
/// is idle before the answer.
#[test]
fn a_close_that_waits_is_not_reported_as_idle() {
    let mut pair = Pair::new(&LinkConfig::default());
    let idle = ConnParam { idle_timeout: Some(Duration::from_secs(1)), ..ConnParam::default() };
    let c = pair.connect_with(&idle, &ConnParam::default());
    let (to, from) = (pair.a.pd.reg_mr(100, ALL).unwrap(), pair.b.pd.reg_mr(100, ALL).unwrap());
    let remote = RemoteAddr { addr: from.addr(), rkey: from.rkey() };
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Read { remote }, to.sge(0, 100))).unwrap();
    c.id_a.disconnect();
    // The test does not poll B for two seconds.
    let start_us = pair.now_us;
    while pair.now_us - start_us < 2_000_000 {
        pair.a.engine.poll_at(Instant::from_micros(pair.now_us));
        pair.now_us += 10_000;
    }
    told!(pair.event_a(), Disconnected { error: None, .. });
    assert_eq!(pair.wc_a().status, WcStatus::Success);
}

/// Requests that are posted in the `Terminate` state are flushed at once, even while the Terminate cannot be
/// sent.
#[test]
fn what_is_posted_while_a_terminate_waits_is_flushed() {
    let (mut served, _region) = failed();
    served.post(&SendRequest::empty(99, SendOp::Send));
    served.pair.until(10_000, |_| false);
    assert_eq!(served.completions(), [(99, WcStatus::WrFlushError)]);
}
