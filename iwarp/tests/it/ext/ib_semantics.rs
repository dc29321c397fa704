//! The agreement on InfiniBand's semantics by private data, and Immediate Data after the agreement: Immediate
//! Data does not change the buffer, and a Send may carry Immediate Data.

use arrayvec::ArrayVec;

use crate::common::raw::ib_request;
use crate::common::served::{Served, Setup};
use crate::common::ulpdu::untagged;
use crate::common::{ALL, Pair, Testbed, agreeing, expect_terminate, read_bytes, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, ConnParam, Extensions, MAX_PRIVATE_DATA, MemoryRegion, QpInit, RecvRequest, SendFlags,
    SendOp, SendRequest, SrqInit, VerbsError, WcOpcode, WcStatus, WorkCompletion,
};

/// Returns a receive request without a buffer.
fn empty_recv(wr_id: u64) -> RecvRequest {
    RecvRequest { wr_id, sg_list: ArrayVec::new() }
}

/// Returns the fields of a receive completion.
fn received(wc: &WorkCompletion) -> (u64, WcStatus, WcOpcode, u32, Option<[u8; 8]>) {
    (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.immediate)
}

fn send_immediate(wr_id: u64, data: [u8; 4], region: &MemoryRegion, len: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::SendImmediate { data }, region.sge(0, len))
}

/// Each peer may ask for InfiniBand's semantics. The semantics apply only if both peers ask. Both users learn
/// whether the semantics apply. Private data of different lengths is delivered unchanged.
#[test]
fn both_ends_have_to_ask() {
    for (a_asks, b_asks) in [(false, false), (true, false), (false, true), (true, true)] {
        for (mpa_revision, most) in [(2, 508), (1, 512)] {
            for len in [0, 3, 8, 12, most - 12] {
                let mut pair = Pair::new(&LinkConfig::default());
                let param = |ib_semantics, bytes: &[u8]| {
                    let peer_to_peer = mpa_revision == 2;
                    let param =
                        ConnParam { ib_semantics, mpa_revision, peer_to_peer, ..ConnParam::default() };
                    param.with_private_data(bytes).unwrap()
                };
                let c = pair.connect_with(&param(a_asks, &vec![1; len]), &param(b_asks, &vec![2; len]));
                let both = a_asks && b_asks;
                for (event, byte) in [(&c.established_a, 2), (&c.established_b, 1)] {
                    let CmEventKind::Established { private_data, ib_semantics, .. } = &event.kind else {
                        panic!("{event:?}")
                    };
                    assert_eq!((*ib_semantics, &private_data[..]), (both, &vec![byte; len][..]));
                }
                assert_eq!(c.qp_a.query().ib_semantics, Some(both));
                assert_eq!(c.qp_b.query().ib_semantics, Some(both));
            }
        }
    }
}

/// At both peers, the twelve bytes of the offer count against the limit of the private data.
#[test]
fn the_offer_takes_twelve_bytes_of_private_data() {
    let (mut pair, _listener) = Pair::listening();
    let id = pair.a.context.create_id(&pair.a.channel);
    let param = |len| agreeing().with_private_data(&vec![1; len]).unwrap();
    let too_long = id.connect(&pair.a.qp(), pair.b.address, &param(497));
    assert!(matches!(too_long, Err(VerbsError::TooLong { got: 497, max: 496 })));
    let qp = pair.a.qp();
    id.connect(&qp, pair.b.address, &param(496)).unwrap();
    let request = pair.event_b();
    let CmEventKind::ConnectRequest { private_data, ib_semantics, .. } = &request.kind else {
        panic!("{request:?}")
    };
    assert_eq!((private_data.len(), *ib_semantics), (496, true));
    let qp_b = pair.b.qp();
    let plain = ConnParam::default().with_private_data(&vec![2; 497]).unwrap();
    assert!(matches!(request.id.accept(&qp_b, &plain), Err(VerbsError::TooLong { got: 497, max: 496 })));
    assert!(ConnParam::default().with_private_data(&vec![2; MAX_PRIVATE_DATA]).is_ok());
    request.id.accept(&qp_b, &param(496)).unwrap();
    let event = pair.event_a();
    assert!(
        matches!(&event.kind, CmEventKind::Established { private_data, ib_semantics: true, .. } if private_data.len() == 496),
        "{event:?}"
    );
}

/// A peer of another implementation, which does not know the offer and only echoes the private data, has not
/// agreed.
#[test]
fn an_echo_of_the_offer_is_no_consent() {
    let (mut pair, _listener) = Pair::listening();
    let (qp, _id) = pair.dial(&agreeing());
    let request = pair.event_b();
    let echo = ConnParam::default().with_private_data(b"uwarp?3\0\0\0\0\x07").unwrap();
    let qp_b = pair.b.qp();
    request.id.accept(&qp_b, &echo).unwrap();
    let event = pair.event_a();
    let CmEventKind::Established { private_data, ib_semantics, .. } = &event.kind else {
        panic!("{event:?}")
    };
    assert_eq!(
        (*ib_semantics, &private_data[..], qp.query().ib_semantics),
        (false, &b"uwarp?3\0\0\0\0\x07"[..], Some(false))
    );
}

/// Immediate Data, alone or behind a Write, completes a receive request without a buffer. If the receive
/// request has a buffer, the buffer does not change. A Send with Immediate causes one completion at each
/// peer. Only messages that were posted as solicited cause solicited events.
#[test]
fn immediate_data_leaves_the_buffer_alone() {
    for shared in [false, true] {
        let (mut pair, _listener) = Pair::listening();
        let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
        let init = QpInit { srq: shared.then_some(&srq), ..QpInit::new(&pair.b.cq) };
        let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
        let c = pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing());
        let (local, remote) = pair.regions(4096);
        local.write_at(0, b"written bytes").unwrap();
        remote.write_at(1024, &[0xee; 256]).unwrap();
        let recvs = [
            empty_recv(0),
            RecvRequest::new(1, remote.sge(1024, 64)),
            empty_recv(2),
            RecvRequest::new(3, remote.sge(1088, 64)),
            empty_recv(4),
            RecvRequest::new(5, remote.sge(1152, 64)),
        ];
        for recv in &recvs {
            if shared { srq.post_recv(recv).unwrap() } else { c.qp_b.post_recv(recv).unwrap() }
        }
        let to = remote_addr(&remote, 0);
        let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
        c.qp_a
            .post_send_list(&[
                SendRequest::empty(0, SendOp::Immediate { data: *b"imm dat\x01" }),
                SendRequest::new(1, SendOp::WriteImmediate { remote: to, data: [7; 8] }, local.sge(0, 13)),
                SendRequest::empty(2, SendOp::WriteImmediate { remote: to, data: [8; 8] }).flags(solicited),
                send_immediate(3, *b"with", &local, 7).flags(solicited),
                send_immediate(4, *b"none", &local, 0),
                SendRequest::new(5, SendOp::Send, local.sge(8, 5)),
            ])
            .unwrap();
        let sent: Vec<_> = (0..6).map(|_| pair.wc_a()).map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
        let kinds = [
            WcOpcode::Immediate,
            WcOpcode::Write,
            WcOpcode::Write,
            WcOpcode::Send,
            WcOpcode::Send,
            WcOpcode::Send,
        ];
        assert!(sent.iter().zip(0..).zip(kinds).all(|((wc, n), kind)| *wc == (n, WcStatus::Success, kind)));
        let got: Vec<_> = (0..6).map(|_| pair.wc_b()).collect();
        let (recv, immediate, ok) = (WcOpcode::Recv, WcOpcode::RecvImmediate, WcStatus::Success);
        let expected = [
            (0, ok, immediate, 0, Some(*b"imm dat\x01")),
            (1, ok, immediate, 0, Some([7; 8])),
            (2, ok, immediate, 0, Some([8; 8])),
            (3, ok, recv, 7, Some(*b"with\0\0\0\0")),
            (4, ok, recv, 0, Some(*b"none\0\0\0\0")),
            (5, ok, recv, 5, None),
        ];
        assert_eq!(got.iter().map(received).collect::<Vec<_>>(), expected);
        assert_eq!(
            got.iter().map(|wc| wc.solicited).collect::<Vec<_>>(),
            [false, false, true, true, false, false]
        );
        assert_eq!(read_bytes(&remote, 0, 13), b"written bytes");
        assert_eq!(read_bytes(&remote, 1024, 64), [0xee; 64]);
        assert_eq!(read_bytes(&remote, 1088, 8), b"written\xee");
        assert_eq!(read_bytes(&remote, 1152, 6), b"bytes\xee");
    }
}

/// Sends, Sends with Immediate, and Immediate Data are sent over a wire that loses and reorders frames, with
/// markers and without. Each completion has the Immediate Data of its own message.
#[test]
fn immediate_data_stays_with_its_message_on_a_bad_wire() {
    const COUNT: u64 = 300;
    for (seed, markers) in [(1, false), (2, true), (3, true)] {
        let link = LinkConfig {
            a_to_b: LinkPlan {
                drop_ppm: 30_000,
                reorder_ppm: 60_000,
                reorder_us: 300,
                ..LinkPlan::default()
            },
            seed,
            ..LinkConfig::default()
        };
        let mut pair = Pair::new(&link);
        let param = ConnParam { markers, ..agreeing() };
        let c = pair.connect(&param);
        let (local, remote) = pair.regions(1 << 16);
        for wr_id in 0..COUNT {
            c.qp_b
                .post_recv(&RecvRequest::new(wr_id, remote.sge((wr_id as usize % 8) * 4096, 4096)))
                .unwrap();
            let len = 1 + (wr_id as usize * 37) % 4000;
            let [_, _, _, _, data @ ..] = wr_id.to_be_bytes();
            let request = match wr_id % 3 {
                0 => SendRequest::new(wr_id, SendOp::Send, local.sge(0, len)),
                1 => send_immediate(wr_id, data, &local, len),
                _ => SendRequest::empty(wr_id, SendOp::Immediate { data: wr_id.to_be_bytes() }),
            };
            c.qp_a.post_send(&request).unwrap();
        }
        for wr_id in 0..COUNT {
            let wc = pair.wc_b();
            let len = 1 + (wr_id as u32 * 37) % 4000;
            let [_, _, _, _, a, b, c, d] = wr_id.to_be_bytes();
            let (opcode, len, immediate) = match wr_id % 3 {
                0 => (WcOpcode::Recv, len, None),
                1 => (WcOpcode::Recv, len, Some([a, b, c, d, 0, 0, 0, 0])),
                _ => (WcOpcode::RecvImmediate, 0, Some(wr_id.to_be_bytes())),
            };
            assert_eq!(received(&wc), (wr_id, WcStatus::Success, opcode, len, immediate), "{seed}");
        }
    }
}

/// Without an agreement, Send with Immediate is refused, and nothing is posted. With an agreement, separate
/// Immediate Data is refused if a peer could mistake it for the first part of a Send with Immediate.
#[test]
fn what_the_ends_have_not_agreed_to_is_refused() {
    let marked = [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff];
    for agreed in [false, true] {
        let mut pair = Testbed::new().hosts();
        let c = pair.connect(&ConnParam { ib_semantics: agreed, ..ConnParam::default() });
        let (local, remote) = pair.regions(64);
        c.qp_b.post_recv(&RecvRequest::new(1, remote.sge(0, 64))).unwrap();
        let write = SendOp::WriteImmediate { remote: remote_addr(&remote, 0), data: marked };
        let refused = match agreed {
            false => vec![send_immediate(1, *b"none", &local, 8)],
            true => vec![
                SendRequest::empty(1, SendOp::Immediate { data: marked }),
                SendRequest::new(1, write, local.sge(0, 8)),
            ],
        };
        for request in refused {
            assert!(matches!(c.qp_a.post_send(&request), Err(VerbsError::Invalid(_))));
        }
        assert_eq!(c.qp_a.query().send_open, 0);
        if !agreed {
            c.qp_a.post_send(&SendRequest::empty(2, SendOp::Immediate { data: marked })).unwrap();
            assert_eq!(pair.wc_b().immediate, Some(marked));
        }
    }
    // Before the connection is established, it is unknown whether the peers agree.
    for (agreed, request) in [
        (false, SendRequest::empty(1, SendOp::SendImmediate { data: *b"none" })),
        (true, SendRequest::empty(1, SendOp::Immediate { data: marked })),
    ] {
        let (mut pair, _listener) = Pair::listening();
        let early = QpInit { early_sends: true, ..QpInit::new(&pair.a.cq) };
        let (qp_a, qp_b) = (pair.a.pd.create_qp(&early).unwrap(), pair.b.qp());
        qp_a.post_send(&request).unwrap();
        assert_eq!(qp_a.query().ib_semantics, None);
        let param = ConnParam { ib_semantics: agreed, ..ConnParam::default() };
        let c = pair.connect_qps(qp_a, qp_b, &param, &param);
        let event = pair.event_a();
        assert!(matches!(event.kind, CmEventKind::Disconnected { error: Some(_), .. }), "{event:?}");
        assert_eq!(pair.wc_a().status, WcStatus::LocalQpOperationError);
        assert!(c.qp_a.error().is_some());
    }
    // A queue pair without the extension for Immediate Data also refuses a Send with Immediate, because this
    // request contains Immediate Data.
    let (mut pair, _listener) = Pair::listening();
    let init = QpInit { extensions: Extensions::ATOMICS, ..QpInit::new(&pair.a.cq) };
    let (qp_a, qp_b) = (pair.a.pd.create_qp(&init).unwrap(), pair.b.qp());
    let c = pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing());
    let request = SendRequest::empty(1, SendOp::SendImmediate { data: *b"none" });
    assert!(matches!(c.qp_a.post_send(&request), Err(VerbsError::Invalid(_))));
}

/// A Send with Immediate that is posted before the connection is established is sent as soon as the
/// connection is established. Like any Send, a Send with Immediate may have inline bytes, a fence behind a
/// Read, several elements, and bytes that are not copied.
#[test]
fn a_send_with_immediate_has_every_form_of_a_send() {
    let (mut pair, _listener) = Pair::listening();
    let early = QpInit { early_sends: true, ..QpInit::new(&pair.a.cq) };
    let (qp_a, qp_b) = (pair.a.pd.create_qp(&early).unwrap(), pair.b.qp());
    let (local, remote) = pair.regions(6 * 20_000);
    let bytes = crate::common::pattern(3, 20_000);
    local.write_at(0, &bytes).unwrap();
    remote.write_at(100_000, b"read").unwrap();
    let immediate = |data: &[u8; 4]| SendOp::SendImmediate { data: *data };
    let mut two = SendRequest::new(3, immediate(b"two "), local.sge(100, 50));
    two.sg_list.push(local.sge(1000, 50));
    let signaled = SendFlags::SIGNALED;
    let requests = [
        SendRequest::new(0, immediate(b"inli"), local.sge(0, 100)).flags(signaled | SendFlags::INLINE),
        SendRequest::new(1, SendOp::Read { remote: remote_addr(&remote, 100_000) }, local.sge(30_000, 4)),
        SendRequest::new(2, immediate(b"fenc"), local.sge(30_000, 4)).flags(signaled | SendFlags::FENCE),
        two,
        SendRequest::new(4, immediate(b"zero"), local.sge(0, 20_000)).flags(signaled | SendFlags::ZERO_COPY),
        SendRequest::new(5, immediate(b"none"), local.sge(0, 3)).flags(SendFlags::empty()),
    ];
    qp_a.post_send_list(&requests).unwrap();
    for wr_id in 0..5 {
        qp_b.post_recv(&RecvRequest::new(wr_id, remote.sge(20_000 * wr_id as usize, 20_000))).unwrap();
    }
    let c = pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing());
    let expected = [
        (*b"inli", bytes[..100].to_vec()),
        (*b"fenc", b"read".to_vec()),
        (*b"two ", [&bytes[100..150], &bytes[1000..1050]].concat()),
        (*b"zero", bytes.clone()),
        (*b"none", bytes[..3].to_vec()),
    ];
    for ([a, b, c, d], content) in expected {
        let wc = pair.wc_b();
        assert_eq!((wc.status, wc.immediate), (WcStatus::Success, Some([a, b, c, d, 0, 0, 0, 0])));
        assert_eq!(wc.byte_len as usize, content.len());
        assert_eq!(read_bytes(&remote, 20_000 * wc.wr_id as usize, content.len()), content);
    }
    let done: Vec<_> = (0..5).map(|_| pair.wc_a().wr_id).collect();
    assert_eq!((done, c.qp_a.error()), (vec![0, 1, 2, 3, 4], None));
}

/// As with any Send, a Send with Immediate ends the stream if it does not fit its buffer or if its local
/// memory is gone. The request of such a Send fails, and the receive request for the message completes once.
#[test]
fn a_send_with_immediate_fails_as_a_send() {
    let (mut pair, c) = Pair::agreeing();
    let (local, remote) = pair.regions(64);
    c.qp_b.post_recv(&RecvRequest::new(7, remote.sge(0, 8))).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(8, remote.sge(0, 8))).unwrap();
    c.qp_a.post_send(&send_immediate(1, *b"long", &local, 9)).unwrap();
    expect_terminate(&mut pair, &c, 1, 2, 5);
    let ended = [pair.wc_b(), pair.wc_b()].map(|wc| (wc.wr_id, wc.status));
    assert_eq!(ended, [(7, WcStatus::LocalLengthError), (8, WcStatus::WrFlushError)]);

    let (mut pair, c) = Pair::agreeing();
    let remote = pair.b.pd.reg_mr(64, ALL).unwrap();
    let source = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(7, remote.sge(0, 8))).unwrap();
    c.qp_a.post_send(&send_immediate(1, *b"gone", &source, 8)).unwrap();
    drop(source);
    let wc = pair.wc_a();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalProtectionError));
    let wc = pair.wc_b();
    assert_eq!((wc.wr_id, wc.status, wc.immediate), (7, WcStatus::WrFlushError, None));
}

/// Connects an engine, which agrees on InfiniBand's semantics, and a bare peer, whose offer these tests write
/// themselves.
fn agreed_with_a_raw_peer() -> Served {
    let served = Setup { request: ib_request(), accept: agreeing(), ..Setup::default() }.ready();
    assert!(served.reply.ends_with(b"uwarp!3\x07"), "{:?}", served.reply);
    served
}

/// If a FIN arrives behind a message that waits for a receive request, the connection ends without an error:
/// the peer has given up the message.
#[test]
fn a_message_in_front_of_a_fin_waits_no_longer() {
    let mut served = agreed_with_a_raw_peer();
    served.send(&untagged([0x41, 0x43], 0, [0, 1, 0], b"message"));
    served.run(100_000);
    served.pair.close();
    let event = served.ended().expect("it waits for a receive");
    assert!(matches!(event.kind, CmEventKind::Disconnected { error: None, .. }), "{event:?}");
    assert!(served.completions().is_empty());
}

fn raw_immediate(msn: u32, data: &[u8]) -> Vec<u8> {
    untagged([0x41, 0x48], 0, [0, msn, 0], data)
}

const JOINED: &[u8] = b"data\xff\xff\xff\xff";

/// Each Send has the limit in its header, also the Send after Immediate Data. The limit is the MSN up to
/// which each message to queue 0 finds a receive request.
#[test]
fn a_send_with_immediate_reports_the_limit() {
    let mut served = agreed_with_a_raw_peer();
    for wr_id in 0..3 {
        served.qp.post_recv(&empty_recv(wr_id)).unwrap();
    }
    let send = SendRequest::new(2, SendOp::Send, served.region.sge(0, 5));
    let requests = [send_immediate(1, *b"data", &served.region, 5), send];
    for request in requests {
        served.post(&request);
    }
    let sent = served.received(10_000);
    // The last byte of the control field is RDMAP's, with the opcode, and the next four bytes are the field.
    let limits: Vec<_> = sent
        .iter()
        .filter(|ulpdu| ulpdu[0] & 0x80 == 0 && ulpdu[1] & 0xf == 3)
        .map(|ulpdu| u32::from_be_bytes(*ulpdu[2..].first_chunk().unwrap()))
        .collect();
    assert_eq!(limits, [3, 3], "{sent:02x?}");
}

/// On the wire, a Send with Immediate is Immediate Data with a mark, which consumes no receive request,
/// followed by a Send. Immediate Data of eight bytes without the mark consumes a receive request. Each
/// message may have several segments.
#[test]
fn immediate_data_in_front_of_a_send_takes_no_receive() {
    let mut served = agreed_with_a_raw_peer();
    for wr_id in 0..3 {
        let buffer = served.region.sge(64 * wr_id as usize, 16);
        served.qp.post_recv(&RecvRequest::new(wr_id, buffer)).unwrap();
    }
    served.region.write_at(0, &[0xee; 192]).unwrap();
    served.send(&raw_immediate(1, JOINED));
    served.run(1000);
    assert_eq!((served.qp.query().recv_in_process, served.completions().len()), (1, 0));
    served.send(&untagged([0x41, 0x43], 0, [0, 2, 0], b"first"));
    served.send(&raw_immediate(3, b"8 bytes!"));
    // Each of the next two messages has two segments.
    served.send(&untagged([0x01, 0x48], 0, [0, 4, 0], &JOINED[..3]));
    served.send(&untagged([0x41, 0x48], 0, [0, 4, 3], &JOINED[3..]));
    served.send(&untagged([0x01, 0x43], 0, [0, 5, 0], b"se"));
    served.send(&untagged([0x41, 0x43], 0, [0, 5, 2], b"cond"));
    served.run(10_000);
    let got: Vec<_> = std::iter::from_fn(|| served.cq.poll_one()).map(|wc| received(&wc)).collect();
    let ok = WcStatus::Success;
    let data = Some(*b"data\0\0\0\0");
    let expected = [
        (0, ok, WcOpcode::Recv, 5, data),
        (1, ok, WcOpcode::RecvImmediate, 0, Some(*b"8 bytes!")),
        (2, ok, WcOpcode::Recv, 6, data),
    ];
    assert_eq!(got, expected);
    let bytes = read_bytes(&served.region, 0, 192);
    assert_eq!(
        (&bytes[..6], &bytes[64..80], &bytes[128..135]),
        (&b"first\xee"[..], &[0xee; 16][..], &b"second\xee"[..])
    );
    assert_eq!(served.qp.error(), None);
}

/// Immediate Data that belongs to a Send must be followed by this Send. Immediate Data whose length is not
/// eight bytes is refused, however large the receive buffer is.
#[test]
fn immediate_data_without_its_send_ends_the_stream() {
    let second = |data: &[u8]| vec![raw_immediate(1, JOINED), raw_immediate(2, data)];
    for (ulpdus, room) in [
        (second(JOINED), 64),
        (second(b"8 bytes!"), 64),
        (vec![raw_immediate(1, b"9 bytes!!")], 64),
        (vec![raw_immediate(1, b"7 bytes")], 0),
    ] {
        let mut served = agreed_with_a_raw_peer();
        for wr_id in 0..2 {
            served.qp.post_recv(&RecvRequest::new(wr_id, served.region.sge(0, room))).unwrap();
        }
        ulpdus.iter().for_each(|ulpdu| served.send(ulpdu));
        served.run(10_000);
        let error = served.qp.error().map(|error| (error.layer, error.etype, error.code));
        assert_eq!(error, Some((0, 2, 0xff)));
        let flushed = WcStatus::WrFlushError;
        assert_eq!(served.completions(), [(0, flushed), (1, flushed)]);
    }
}
