//! Our user revokes memory while an honest peer uses it: the source of a Read Response, the word of an
//! atomic, or the buffer of a receive. The error does not blame the peer.

use iwarp::memory::Access;
use iwarp::rdmap::{AtomicOp, AtomicRequest};
use iwarp::verbs::{AsyncEventKind, ConnParam, RecvRequest, StreamError};

use super::peer::{of_segment, read_header, read_request, send, served_with, untagged};
use crate::common::ALL;
use crate::common::ext::atomic_request;
use crate::common::served::{Served, Setup};

/// Returns the kind of the only asynchronous event, and the stream's error.
fn verdict(peer: &Served) -> (AsyncEventKind, Option<StreamError>) {
    let events = peer.events();
    let [event] = events[..] else { panic!("{events:?}") };
    assert_eq!(event.cause, peer.qp.cause());
    (event.kind, peer.qp.error())
}

fn here(layer: u8, etype: u8, code: u8) -> (AsyncEventKind, Option<StreamError>) {
    (AsyncEventKind::QpFatal, Some(StreamError { layer, etype, code, from_peer: false }))
}

/// Revokes the source of a Read whose response is under way. The Terminate reports an invalid STag, for the
/// range of the Read that was not answered yet.
#[test]
fn the_source_of_a_read_response() {
    const BYTES: usize = 1 << 20;
    let mut peer = served_with(ConnParam::default(), 0);
    let lent = peer.pd.reg_mr(BYTES, Access::REMOTE_READ).unwrap();
    let (sink, source) = ((9, 0x1000), (lent.rkey(), lent.addr()));
    let request = read_request(1, sink, BYTES as u32, source);
    peer.send(&request);
    assert!(peer.pair.until(1_000_000, |pair| pair.inbox.len() > 10_000), "no response");
    lent.deregister().unwrap();
    let mut heard = peer.received(100_000);
    let terminate = heard.pop().unwrap();
    let answered: usize = heard.iter().map(|segment| segment.len() - 14).sum();
    assert!(answered < BYTES);
    let mut payload = of_segment(0x01, 0, &request);
    payload[2] = 0xe0;
    payload.extend(read_header(
        (sink.0, sink.1 + answered as u64),
        (BYTES - answered) as u32,
        (source.0, source.1 + answered as u64),
    ));
    assert_eq!(terminate, untagged(0x41, 0x47, 0, 2, 1, 0, &payload));
    assert_eq!(verdict(&peer), here(0, 1, 0));
}

/// Revokes the word of an atomic that waits behind a Read Response.
#[test]
fn the_word_of_an_atomic_that_waits() {
    const BYTES: usize = 1 << 20;
    let mut peer = Setup { region: BYTES, ..Setup::default() }.ready();
    let words = peer.pd.reg_mr(8, ALL).unwrap();
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let request = AtomicRequest { id: 1, stag: iwarp::memory::Stag(words.rkey()), to: words.addr(), op };
    let read = read_request(1, (9, 0), BYTES as u32, (peer.region.rkey(), peer.to(0)));
    peer.send_all(&[read, atomic_request(2, &request)]);
    assert!(peer.pair.until(1_000_000, |pair| pair.inbox.len() > 10_000), "no response");
    words.deregister().unwrap();
    let heard = peer.received(100_000);
    assert_eq!(heard.last().unwrap()[18..], of_segment(0x01, 0, &atomic_request(2, &request)));
    assert_eq!(verdict(&peer), here(0, 1, 0));
}

#[test]
fn the_buffer_of_a_receive() {
    let mut peer = served_with(ConnParam::default(), 0);
    let buffer = peer.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    peer.qp.post_recv(&RecvRequest::new(1, buffer.sge(0, 8))).unwrap();
    buffer.deregister().unwrap();
    peer.send_and_run(&[send(1, b"message")]);
    let heard = peer.received(20_000);
    assert_eq!(heard, [untagged(0x41, 0x47, 0, 2, 1, 0, &[0; 4])]);
    assert_eq!(verdict(&peer), here(0, 0, 0));
}
