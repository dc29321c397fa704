//! Every Terminate that a peer can provoke: what it has to send for it, the octets it gets back, and what the
//! application reads (RFC 5040 section 4.8, RFC 5041 section 8.2, RFC 5044 section 8).

mod common;

use common::raw::fpdu;
use common::served::Served;
use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::rdmap::{BitOrder, TerminateError};
use iwarp::verbs::{CmEventKind, ConnectionError, RecvRequest, StreamError, TerminateOrigin};

/// What of the failing message comes back.
#[derive(Clone, Copy, PartialEq)]
enum Echo {
    Nothing,
    Header,
    ReadRequest,
}

struct Case {
    name: &'static str,
    error: TerminateError,
    echo: Echo,
    ulpdu: Vec<u8>,
}

fn tagged(control: [u8; 2], stag: u32, to: u64, len: usize) -> Vec<u8> {
    [&control[..], &stag.to_be_bytes(), &to.to_be_bytes(), &vec![7; len]].concat()
}

fn untagged(control: [u8; 2], stag: u32, queue: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let [qn, msn, mo] = queue.map(u32::to_be_bytes);
    [&control[..], &stag.to_be_bytes(), &qn, &msn, &mo, payload].concat()
}

/// Reads `size` octets at `to` of `stag`.
fn read(stag: u32, to: u64, size: u32) -> Vec<u8> {
    let payload = [
        &9_u32.to_be_bytes()[..],
        &0_u64.to_be_bytes(),
        &size.to_be_bytes(),
        &stag.to_be_bytes(),
        &to.to_be_bytes(),
    ]
    .concat();
    untagged([0x41, 0x41], 0, [1, 1, 0], &payload)
}

/// The messages, against a stream that has lent `mine` (at `to`, 4096 octets, every right) and posted a receive of 64 octets,
/// whose host has lent `others` to somebody else and `unreadable` for writing only.
fn cases(mine: u32, to: u64, others: u32, unreadable: u32) -> Vec<Case> {
    use Echo::{Header, Nothing, ReadRequest};
    use TerminateError as E;
    let case = |name, error, echo, ulpdu| Case { name, error, echo, ulpdu };
    let unknown = mine ^ 0x5a5a_5a00;
    vec![
        case("a CRC that is wrong", E::MpaCrc, Nothing, tagged([0xc1, 0x40], mine, to, 4)),
        case("Write, unknown STag", E::DdpInvalidStag, Header, tagged([0xc1, 0x40], unknown, to, 4)),
        case("Write beyond the end", E::DdpBounds, Header, tagged([0xc1, 0x40], mine, to + 4095, 2)),
        case("Write to another's STag", E::DdpNotAssociated, Header, tagged([0xc1, 0x40], others, to, 4)),
        case("Write that wraps", E::DdpToWrap, Header, tagged([0xc1, 0x40], mine, u64::MAX - 1, 4)),
        case("tagged DDP version", E::DdpTaggedVersion, Header, tagged([0xc2, 0x40], mine, to, 4)),
        case("queue 9", E::DdpInvalidQn, Header, untagged([0x41, 0x43], 0, [9, 1, 0], b"")),
        case(
            "second Send for one buffer",
            E::DdpNoBuffer,
            Header,
            untagged([0x41, 0x43], 0, [0, 2, 0], b"x"),
        ),
        case("message number 0", E::DdpMsnRange, Header, untagged([0x41, 0x43], 0, [0, 0, 0], b"x")),
        case(
            "offset behind the buffer",
            E::DdpInvalidMo,
            Header,
            untagged([0x41, 0x43], 0, [0, 1, 65], b"x"),
        ),
        case("too long a Send", E::DdpTooLong, Header, untagged([0x41, 0x43], 0, [0, 1, 0], &[1; 65])),
        case(
            "untagged DDP version",
            E::DdpUntaggedVersion,
            Header,
            untagged([0x42, 0x43], 0, [0, 1, 0], b"x"),
        ),
        case("Read, unknown STag", E::ReadInvalidStag, ReadRequest, read(unknown, to, 4)),
        case("Read beyond the end", E::ReadBounds, ReadRequest, read(mine, to + 4095, 2)),
        case("Read of what is not readable", E::ReadAccessRights, ReadRequest, read(unreadable, to, 4)),
        case("Read of another's STag", E::ReadNotAssociated, ReadRequest, read(others, to, 4)),
        case("Read that wraps", E::ReadToWrap, ReadRequest, read(mine, u64::MAX - 1, 4)),
        case(
            "invalidates another's STag",
            E::CannotInvalidate,
            Header,
            untagged([0x41, 0x44], others, [0, 1, 0], b""),
        ),
        case("RDMAP version", E::RdmapVersion, Header, untagged([0x41, 0x83], 0, [0, 1, 0], b"x")),
        case(
            "Send in the queue of Reads",
            E::UnexpectedOpcode,
            Header,
            untagged([0x41, 0x43], 0, [1, 1, 0], &[0; 28]),
        ),
        case(
            "a Read Response nobody waits for",
            E::UnexpectedOpcode,
            Header,
            tagged([0xc1, 0x42], mine, to, 4),
        ),
        case(
            "a short Read Request",
            E::OperationUnspecified,
            Header,
            untagged([0x41, 0x41], 0, [1, 1, 0], &[0; 27]),
        ),
    ]
}

/// What has to come back, octet for octet, from the layouts of the documents.
fn expected(case: &Case) -> Vec<u8> {
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

// Proves SEC-064, MPA-241, RDMAP-171, RDMAP-175, RDMAP-177, RDMAP-178, RDMAP-179, RDMAP-180, RDMAP-182, RDMAP-183, RDMAP-184, RDMAP-185: control word, segment length and headers on the wire; and layer, type, code, length and
// headers for the application, by its queue pair and by the event of the end.
#[test]
fn each_fault_of_a_peer_has_its_terminate() {
    let count = cases(0, 0, 0, 0).len();
    for at in 0..count {
        let mut served = Served::new();
        let context = served.context().clone();
        let (mine, to) = (served.region.rkey(), served.region.addr());
        let other_pd = context.alloc_pd().unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let others = other_pd.reg_mr(4096, all).unwrap();
        let unreadable = served.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        served.qp.post_recv(&RecvRequest::new(1, served.region.sge(0, 64))).unwrap();
        let mut case = cases(mine, to, others.rkey(), unreadable.rkey()).swap_remove(at);
        match case.error {
            TerminateError::ReadAccessRights => case.ulpdu = read(unreadable.rkey(), unreadable.addr(), 4),
            TerminateError::ReadNotAssociated => case.ulpdu = read(others.rkey(), others.addr(), 4),
            TerminateError::DdpNotAssociated => {
                case.ulpdu = tagged([0xc1, 0x40], others.rkey(), others.addr(), 4);
            }
            TerminateError::DdpNoBuffer => {
                served.say(&untagged([0x41, 0x43], 0, [0, 1, 0], b"takes the buffer"));
            }
            _ => {}
        }
        let name = case.name;
        served.pair.inbox.clear();
        let mut octets = fpdu(&mut served.framer, &case.ulpdu);
        *octets.last_mut().unwrap() ^= u8::from(case.error == TerminateError::MpaCrc);
        served.pair.send(&octets);
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
    }
}

// Proves RDMAP-174, RDMAP-176: a Terminate of the peer is told as it was read: in which bit order, from which octets, and what else
// these might have meant.
#[test]
fn a_terminate_is_told_with_its_octets() {
    for (control, codes, order, other) in [
        ([0x20, 0x02, 0, 0], (2, 0, 2), BitOrder::Standard, None),
        ([0x02, 0x02, 0, 0], (2, 0, 2), BitOrder::Siw, None),
        // By the document 2/0/05, by siw 0/2/05.
        ([0x20, 0x05, 0, 0], (2, 0, 5), BitOrder::Standard, Some(TerminateError::RdmapVersion)),
        ([0x12, 0x01, 0, 0x55], (1, 2, 1), BitOrder::Standard, None),
        ([0xf7, 0xab, 0, 0], (15, 7, 0xab), BitOrder::Standard, None),
    ] {
        let mut served = Served::new();
        served.say(&untagged([0x41, 0x47], 0, [2, 1, 0], &control));
        served.pair.until(50_000, |_| false);
        let report = served.qp.terminate().unwrap();
        let terminate = &report.terminate;
        assert_eq!((report.origin, terminate.control), (TerminateOrigin::Received, Some(control)));
        assert_eq!((terminate.layer, terminate.etype, terminate.code), codes);
        assert_eq!((terminate.bit_order, terminate.other_reading()), (order, other), "{control:02x?}");
        let (layer, etype, code) = codes;
        assert_eq!(served.qp.error(), Some(StreamError { layer, etype, code, from_peer: true }));
        // Never answered by another one.
        assert_eq!(served.pair.engine.counters().tx_terminates, 0);
    }
}
