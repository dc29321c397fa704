//! Tests Terminates that a peer can provoke, above all by the catalogue of attacks: the fault, the bytes of
//! the Terminate, and what the application reads (RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044
//! section 8). Also tests Terminates that the peer sends, and Terminates for a fault of our own.

use crate::common::{ALL, Pair, expect_terminate, read_bytes, remote_addr};
use std::sync::Arc;

use crate::common::catalogue::{Attack, AttackMethod, Echo, Name, Names, Resource, catalogue, tagged};
use crate::common::raw::fpdu;
use crate::common::served::Served;
use crate::common::ulpdu::untagged;
use iwarp::engine::EngineCounters;
use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::rdmap::{BitOrder, Terminate, TerminateError};
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, RecvRequest, RemoteAddr, SendOp, SendRequest, StreamError,
    TerminateOrigin, TerminateReport,
};

/// Returns the expected Terminate, byte for byte, according to the layouts of the RFCs.
fn expected(case: &Attack) -> Vec<u8> {
    let (layer, etype, code) = case.error.codes();
    let bits = match case.echo {
        Echo::Nothing => 0,
        Echo::Header => 0xc0,
        Echo::ReadRequest => 0xe0,
    };
    let mut payload = vec![layer << 4 | etype, code, bits, 0];
    if bits != 0 {
        payload.extend((case.ulpdu.len() as u16).to_be_bytes());
        payload.extend(&case.ulpdu[..if case.ulpdu[0] & 0x80 != 0 { 14 } else { 18 }]);
    }
    if case.echo == Echo::ReadRequest {
        payload.extend(&case.ulpdu[18..46]);
    }
    fpdu(&mut Framer::new(false, true), &untagged([0x41, 0x47], 0, [2, 1, 0], &payload))
}

// Proves SEC-002, SEC-013, SEC-014, SEC-064, MPA-241, RDMAP-171, RDMAP-175, RDMAP-177, RDMAP-178, RDMAP-179,
// RDMAP-180, RDMAP-182, RDMAP-183, RDMAP-184, RDMAP-185: the test compares control word, segment length and
// headers on the wire. The test also compares the layer, type, code, length and headers that the application
// reads from its queue pair and from the event of the end. Between registration and attack, only the engine
// acts. The attacks include each resource of section 2.2, and each `AttackMethod`.
#[test]
fn each_fault_of_a_peer_has_its_terminate() {
    let count = catalogue(&Names::default()).len();
    let (mut resources, mut means) = (Vec::new(), Vec::new());
    for at in 0..count {
        let mut served = Served::new();
        let context = served.context().clone();
        let other_pd = context.alloc_pd().unwrap();
        let others = other_pd.reg_mr(4096, ALL).unwrap();
        let unreadable = served.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        served.qp.post_recv(&RecvRequest::new(1, served.region.sge(0, 64))).unwrap();
        let [mine, others, unreadable] =
            [&served.region, &others, &unreadable].map(|it| Name { stag: it.rkey(), to: it.addr() });
        let case = catalogue(&Names { mine, others, unreadable }).swap_remove(at);
        for ulpdu in &case.before {
            served.send(ulpdu);
        }
        let name = case.name;
        served.pair.inbox.clear();
        let mut bytes = fpdu(&mut served.framer, &case.ulpdu);
        *bytes.last_mut().unwrap() ^= u8::from(case.error == TerminateError::MpaCrc);
        served.pair.send(&bytes);
        assert!(served.pair.until(1_000_000, |pair| pair.peer_closed), "{name}: no FIN");
        assert_eq!(served.pair.inbox, expected(&case), "{name}");
        let (layer, etype, code) = case.error.codes();
        let told = StreamError { layer, etype, code, from_peer: false };
        assert_eq!(served.qp.error(), Some(told), "{name}");
        let report = served.qp.terminate().unwrap();
        assert_eq!(
            (report.origin, report.terminate.error()),
            (TerminateOrigin::Sent, Some(case.error)),
            "{name}"
        );
        let (len, header) = (report.terminate.segment_len, report.terminate.ddp_header.clone());
        let echoes = case.echo != Echo::Nothing;
        assert_eq!(len.map(usize::from), echoes.then_some(case.ulpdu.len()), "{name}");
        assert_eq!(header.is_some(), echoes, "{name}");
        assert!(case.ulpdu.starts_with(&header.unwrap_or_default()), "{name}");
        let request = report.terminate.read_request.map(|request| request.to_bytes().to_vec());
        assert_eq!(request, (case.echo == Echo::ReadRequest).then(|| case.ulpdu[18..].to_vec()), "{name}");
        served.pair.close();
        let ended = loop {
            let event = served.pair.next_event(&served.channel, 30_000_000).unwrap();
            if let CmEventKind::Disconnected { error, terminate } = event.kind {
                break (error, terminate);
            }
        };
        assert_eq!(ended, (Some(ConnectionError::Stream(told)), Some(report)), "{name}");
        resources.push(case.on);
        means.push(case.by);
    }
    assert!(Resource::ALL.iter().all(|it| resources.contains(it)), "{resources:?}");
    assert!(AttackMethod::ALL.iter().all(|it| means.contains(it)), "{means:?}");
}

/// A hostile stack, and an application that misuses our stack, cause the same fault. The victim sees no
/// difference between the two causes.
// Proves SEC-003.
#[test]
fn a_hostile_stack_and_a_misused_one_look_the_same_to_the_victim() {
    let seen = |counters: EngineCounters| {
        (
            counters.tx_terminates,
            counters.rx_terminates,
            counters.rx_placed_bytes,
            counters.connections_failed,
        )
    };
    for bound in [false, true] {
        let mut served = Served::new();
        let (stag, to) = (served.region.rkey(), served.region.addr());
        let (mut pair, c) = Pair::connected();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (local, lent) = (pair.a.pd.reg_mr(64, all).unwrap(), pair.b.pd.reg_mr(64, all).unwrap());
        // The access extends beyond the end of the memory, or has an invalid STag.
        let (ulpdu, remote) = if bound {
            let remote = remote_addr(&lent, 60);
            (tagged([0xc1, 0x40], stag, to + 4092, 8), remote)
        } else {
            let remote = RemoteAddr { addr: lent.addr(), rkey: lent.rkey() ^ 0x5a5a_5a00 };
            (tagged([0xc1, 0x40], stag ^ 0x5a5a_5a00, to, 8), remote)
        };
        served.send(&ulpdu);
        assert!(served.pair.until(1_000_000, |pair| pair.peer_closed));
        served.pair.close();
        served.pair.until(100_000, |_| false);
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote }, local.sge(0, 8))).unwrap();
        let code = if bound { 1 } else { 0 };
        expect_terminate(&mut pair, &c, 1, 1, code);
        assert_eq!(served.qp.error(), c.qp_b.error());
        let [mut by_stack, mut by_user] =
            [served.qp.terminate(), c.qp_b.terminate()].map(|it| it.unwrap().terminate.clone());
        // The comparison omits STag and offset, because the two cases use different values.
        for told in [&mut by_stack, &mut by_user] {
            told.ddp_header.as_mut().unwrap().truncate(2);
        }
        assert_eq!(by_stack, by_user);
        assert_eq!(seen(served.pair.engine.counters()), seen(pair.b.engine.counters()));
        assert_eq!(seen(pair.b.engine.counters()), (1, 0, 0, 1), "one Terminate, and nothing placed");
    }
}

// Proves RDMAP-174, RDMAP-176: the user receives the parsed Terminate of the peer, with its bit order, its
// bytes, and the other possible interpretation.
#[test]
fn a_terminate_is_told_with_its_bytes() {
    for (control, codes, order, other) in [
        ([0x20, 0x02, 0, 0], (2, 0, 2), BitOrder::Standard, None),
        ([0x02, 0x02, 0, 0], (2, 0, 2), BitOrder::Siw, None),
        // The code is 2/0/05 by RFC 5040, and 0/2/05 in siw's bit order.
        ([0x20, 0x05, 0, 0], (2, 0, 5), BitOrder::Standard, Some(TerminateError::RdmapVersion)),
        ([0x12, 0x01, 0, 0x55], (1, 2, 1), BitOrder::Standard, None),
        ([0xf7, 0xab, 0, 0], (15, 7, 0xab), BitOrder::Standard, None),
    ] {
        let mut served = Served::new();
        served.send(&untagged([0x41, 0x47], 0, [2, 1, 0], &control));
        served.pair.until(50_000, |_| false);
        let report = served.qp.terminate().unwrap();
        let terminate = &report.terminate;
        assert_eq!((report.origin, terminate.control), (TerminateOrigin::Received, Some(control)));
        assert_eq!((terminate.layer, terminate.etype, terminate.code), codes);
        assert_eq!((terminate.bit_order, terminate.other_reading()), (order, other), "{control:02x?}");
        let (layer, etype, code) = codes;
        assert_eq!(served.qp.error(), Some(StreamError { layer, etype, code, from_peer: true }));
        // The engine does not answer with a Terminate.
        assert_eq!(served.pair.engine.counters().tx_terminates, 0);
    }
}

/// Ends the connection from the peer's side. Returns the error and the Terminate that the event of the end
/// contains.
fn end(served: &mut Served) -> (Option<ConnectionError>, Option<Arc<TerminateReport>>) {
    served.pair.close();
    loop {
        let event = served.pair.next_event(&served.channel, 30_000_000).unwrap();
        if let CmEventKind::Disconnected { error, terminate } = event.kind {
            return (error, terminate);
        }
    }
}

// Proves RDMAP-141, RDMAP-181, RDMAP-191, RDMAP-324, RDMAP-325: a fault of our own side has layer 0, type 0,
// code 0 and no header, on the wire and for the application.
#[test]
fn a_fault_of_our_own_names_no_message() {
    let mut served = Served::new();
    let lost = served.pd.reg_mr(64, Access::empty()).unwrap();
    served.qp.post_send(&SendRequest::new(1, SendOp::Send, lost.sge(0, 8))).unwrap();
    lost.deregister().unwrap();
    assert!(served.pair.until(1_000_000, |pair| pair.peer_closed), "no FIN");
    let terminate = untagged([0x41, 0x47], 0, [2, 1, 0], &[0, 0, 0, 0]);
    assert_eq!(served.pair.inbox, fpdu(&mut Framer::new(false, true), &terminate));
    let told = StreamError { layer: 0, etype: 0, code: 0, from_peer: false };
    assert_eq!(served.qp.error(), Some(told));
    let report = served.qp.terminate().unwrap();
    assert_eq!(report.origin, TerminateOrigin::Sent);
    let Terminate { segment_len, ddp_header, read_request, .. } = &report.terminate;
    assert_eq!((segment_len, ddp_header, read_request), (&None, &None, &None));
    assert_eq!(end(&mut served), (Some(ConnectionError::Stream(told)), Some(report)));
}

// Proves RDMAP-169, RDMAP-172, RDMAP-195, RDMAP-311: a marker that points to a wrong position, under a
// correct CRC, is reported with layer 2, type 0, code 3. The Terminate contains nothing of the FPDU, and the
// FPDU is not placed.
#[test]
fn a_marker_that_points_elsewhere_is_told() {
    for xor in [0, 4] {
        let mut served = Served::with(ConnParam { markers: true, ..ConnParam::default() });
        let to = served.region.addr();
        served.pair.inbox.clear();
        let write = [&[0xc1, 0x40][..], &served.region.rkey().to_be_bytes(), &to.to_be_bytes(), &[7; 600]];
        // The first marker is before the empty Write; the second marker is at this offset.
        let marker = 512 - served.framer.position() as usize;
        let mut bytes = fpdu(&mut served.framer, &write.concat());
        bytes[marker + 3] ^= xor;
        let crc = bytes.len() - 4;
        let sum = crc32c::crc32c(&bytes[..crc]).to_le_bytes();
        bytes[crc..].copy_from_slice(&sum);
        served.pair.send(&bytes);
        let ended = served.pair.until(1_000_000, |pair| pair.peer_closed);
        let placed = read_bytes(&served.region, 0, 600);
        if xor == 0 {
            assert!(!ended && placed == [7; 600] && served.qp.error().is_none(), "the CRC is good");
            continue;
        }
        assert!(ended, "no FIN");
        let terminate = untagged([0x41, 0x47], 0, [2, 1, 0], &[0x20, 3, 0, 0]);
        assert_eq!(served.pair.inbox, fpdu(&mut Framer::new(false, true), &terminate));
        assert_eq!(placed, [0; 600]);
        let told = StreamError { layer: 2, etype: 0, code: 3, from_peer: false };
        assert_eq!(served.qp.error(), Some(told));
        let report = served.qp.terminate().unwrap();
        assert_eq!(report.terminate.error(), Some(TerminateError::MpaMarker));
        assert_eq!(end(&mut served), (Some(ConnectionError::Stream(told)), Some(report)));
    }
}
