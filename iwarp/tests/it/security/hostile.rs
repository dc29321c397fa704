//! Hostile or faulty peers, which send invalid startup frames, FPDUs or Terminates, or nothing. Random
//! streams are in `tests/fuzz`. The worst effect is the end of the peer's own connection.

use crate::common::{ALL, Testbed, read_bytes, remote_addr};
use std::time::Duration;

use crate::common::hooked::Hooks;
use crate::common::raw::{EMPTY_WRITE, fpdu, request};
use crate::common::responder::Responder;
use crate::common::served::{Served, Setup};
use dp::{Burst, Checksum, Port};
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, MemoryRegion, QueuePair, RecvRequest, SendOp, SendRequest,
    StreamError, WcStatus,
};

/// Returns a connection with four receives of 100 bytes.
fn accepted(request: Vec<u8>) -> Served {
    let prepare = |qp: &QueuePair, region: &MemoryRegion| {
        for wr_id in 0..4 {
            qp.post_recv(&RecvRequest::new(wr_id, region.sge(wr_id as usize * 100, 100))).unwrap();
        }
    };
    Setup { request, prepare: &prepare, ..Setup::default() }.accepted()
}

/// Invalid startup frames close the connection, and the application receives no event.
#[test]
fn a_bad_request_closes_the_connection() {
    let mut door = Responder::new();
    let mut bad_key = request(true);
    bad_key[0] = b'X';
    let mut bad_revision = request(true);
    bad_revision[17] = 3;
    let mut too_long = request(true);
    too_long[18..20].copy_from_slice(&513_u16.to_be_bytes());
    let mut early = request(true);
    early.push(0);
    for bytes in [bad_key, bad_revision, too_long, early] {
        door.open(&bytes);
        assert!(door.pair.until(1_000_000, |pair| pair.closed.is_some() || pair.peer_closed), "{bytes:02x?}");
        assert_eq!(door.pair.inbox.len(), 0, "no Reply");
        let event = door.channel.poll();
        assert!(event.is_none(), "{event:?}");
    }
}

/// If a peer connects and sends nothing, its connection ends after the listener's timeout.
#[test]
fn a_silent_initiator_is_let_go() {
    let five_seconds = Duration::from_secs(5);
    let Responder { mut pair, listener: _listener, .. } =
        Responder::with(|options| options.responder.startup_timeout = five_seconds);
    pair.connect();
    let start = pair.now_us;
    assert!(pair.until(10_000_000, |pair| pair.closed.is_some()));
    let after = pair.now_us - start;
    assert!((4_900_000..5_200_000).contains(&after), "{after} us");
}

/// A wrong CRC is answered with its Terminate, byte for byte, followed by a FIN.
// Proves DDP-156, DDP-158, DDP-160, DDP-162, MPA-228, MPA-239, MPA-240, MPA-241, RDMAP-137, RDMAP-171,
// RDMAP-195, RDMAP-311.
#[test]
fn a_bad_crc_is_answered_with_its_terminate() {
    // After a valid first FPDU the responder may send.
    let mut served = accepted(request(true));
    let Served { pair, framer, qp, .. } = &mut served;
    let ready = fpdu(framer, &EMPTY_WRITE);
    let mut bad = fpdu(framer, &EMPTY_WRITE);
    *bad.last_mut().unwrap() ^= 1;
    pair.send(&ready);
    pair.send(&bad);
    assert!(pair.until(1_000_000, |pair| pair.peer_closed), "no FIN");
    let expected = [0x00, 0x16, 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 0x02, 0, 0];
    assert_eq!(pair.inbox[..expected.len()], expected);
    assert_eq!(pair.inbox.len(), expected.len() + 4);
    assert_eq!(qp.error(), Some(StreamError { layer: 2, etype: 0, code: 2, from_peer: false }));
}

/// If a Terminate is in siw's bit order, the application receives the layer, type and code that siw meant.
#[test]
fn a_terminate_of_siw_is_understood() {
    let mut served = accepted(request(false));
    // To a Write with an invalid STag, siw answers with 11 00 03 00, and with the payload length in place of
    // the segment length.
    let mut ulpdu = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    ulpdu.extend([0x11, 0x00, 0x03, 0x00, 0, 8]);
    ulpdu.extend([0xc1, 0x40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
    served.send(&ulpdu);
    let mut event = None;
    served.pair.close();
    assert!(served.pair.until(1_000_000, |_| {
        event = event.take().or_else(|| served.channel.poll().filter(is_disconnected));
        event.is_some()
    }));
    let told = StreamError { layer: 1, etype: 1, code: 0, from_peer: true };
    assert_eq!(served.qp.error(), Some(told));
    told!(event.unwrap(), Disconnected { error: Some(ConnectionError::Stream(error)), .. } if error == told);
    // The receives of the queue pair were flushed.
    let completions = served.completions();
    assert_eq!(completions.iter().filter(|(_, status)| *status == WcStatus::WrFlushError).count(), 4);
}

fn is_disconnected(event: &iwarp::verbs::CmEvent) -> bool {
    matches!(event.kind, CmEventKind::Disconnected { .. })
}

/// If a peer never completes its close, the connection is reset after the close timeout.
#[test]
fn a_close_that_hangs_ends_in_a_reset() {
    let mut served = accepted(request(true));
    served.send(&EMPTY_WRITE);
    let Served { pair, id, .. } = &mut served;
    pair.until(10_000, |_| false);
    let start = pair.now_us;
    id.disconnect();
    assert!(pair.until(10_000_000, |pair| pair.closed.is_some()), "no reset");
    let after = pair.now_us - start;
    assert!((4_900_000..5_300_000).contains(&after), "{after} us");
}

/// An attacker on the path, who changes bytes of the payload of FPDUs and corrects checksums.
#[derive(Clone, Copy, Debug)]
struct OnPath {
    /// Whether the attacker corrects MPA's CRC as well as TCP's checksum.
    sees_to_crc: bool,
}

impl Hooks for OnPath {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        let count = port.rx_burst(now_us, frames);
        for frame in &mut frames[before..] {
            let Some(mut copy) = frame.deep_copy(port.mempool()) else { continue };
            let Some(bytes) = copy.head_mut() else { continue };
            let Some(at) = bytes.windows(11).position(|bytes| bytes == b"pay 10 euro") else { continue };
            bytes[at..at + 11].copy_from_slice(b"pay 99 euro");
            if self.sees_to_crc {
                // The frame ends with the FPDU: length, DDP header of a Write, payload, pad, CRC.
                let (start, end) = (at - 14 - 2, bytes.len() - 4);
                let crc = crc32c::crc32c(&bytes[start..end]).to_le_bytes();
                bytes[end..].copy_from_slice(&crc);
            }
            copy.set_rx_checksum(Checksum::Good);
            *frame = copy;
        }
        count
    }
}

// Proves SEC-066: a CRC is no protection against an attacker on the path. If the attacker changes bytes of a
// Write and corrects the CRC, the bytes are placed without an error. If the attacker does not correct the
// CRC, the engine detects the change.
#[test]
fn a_rewrite_on_the_path_is_taken_where_its_crc_is_right() {
    for sees_to_crc in [false, true] {
        let mut pair = Testbed::new().hook_b(OnPath { sees_to_crc }).hosts();
        let c = pair.connect(&ConnParam::default());
        let (from, to) = (pair.a.pd.reg_mr(64, ALL).unwrap(), pair.b.pd.reg_mr(64, ALL).unwrap());
        from.write_at(0, b"pay 10 euro").unwrap();
        let remote = remote_addr(&to, 0);
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote }, from.sge(0, 11))).unwrap();
        pair.run_us(100_000);
        let placed = read_bytes(&to, 0, 11);
        if sees_to_crc {
            assert_eq!(&placed, b"pay 99 euro");
            assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None));
        } else {
            assert_eq!(placed, [0; 11]);
            assert_eq!(c.qp_b.error().map(|error| (error.layer, error.code)), Some((2, 2)));
        }
    }
}
