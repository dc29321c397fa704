//! Negotiation during startup: CRC, markers, revision, depths, RTR (RFC 5044 section 7.1.1, RFC 6581). In all
//! cases but one, the endpoint is the responder.

use super::codes::LLP_CRC;
use crate::case::{Case, CaseError, Check, any, deviates, not_applicable, require, responder};
use crate::probe::{Answer, Probe};
use crate::scene::{MAGIC, words};
use crate::session::Session;
use crate::wire::{Depths, Fault, REPLY_KEY, REQUEST_KEY, ReadRequest, Segment, Startup, flag};

fn enhanced(p: &Probe, depths: Depths) -> Result<Startup, CaseError> {
    if p.profile().revision < 2 {
        return not_applicable("the endpoint has no revision 2");
    }
    Ok(Startup::enhanced(REQUEST_KEY, flag::C, depths, MAGIC.as_bytes()))
}

fn client_server(p: &Probe, depths: Depths) -> Result<Startup, CaseError> {
    if p.profile().peer_to_peer {
        return not_applicable("the endpoint takes peer-to-peer connections only");
    }
    enhanced(p, depths)
}

/// Opens a connection by a Request whose flag C is clear.
fn without_crc(p: &Probe) -> Result<Session, CaseError> {
    let request = p.request(MAGIC.as_bytes());
    p.accepted(&Startup { flags: request.flags & !flag::C, ..request })
}

/// Checks that the endpoint sends valid CRCs and checks the probe's CRCs.
pub(super) fn crcs_both_ways(session: &mut Session) -> Check {
    session.ping()?;
    session.expect_well_framed()?;
    session.send_faulty(&Segment::write(0, 0, &[]), Fault { crc_xor: 1, ..Fault::default() });
    session.expect_terminate(&[LLP_CRC]).map(|_| ())
}

/// Checks that the endpoint sends markers: the first marker at the start of its stream, and a marker at each
/// later marker position.
pub(super) fn markers_come(session: &mut Session) -> Check {
    // Each answer is a Read Response of 14 bytes without payload, so its FPDU has 20 bytes, and 30 answers go
    // beyond the second marker.
    for _ in 0..30 {
        session.ping()?;
    }
    session.expect_well_framed()
}

fn agreed(session: &Session) -> Result<Depths, CaseError> {
    session.frame.depths().map_or_else(|| deviates("a Reply without IRD and ORD"), Ok)
}

fn kinds(by_send: bool, by_write: bool, by_read: bool) -> Depths {
    Depths { peer_to_peer: true, by_send, by_write, by_read, ird: 4, ord: 4 }
}

pub(super) const CASES: &[Case] = &[
    any("crc-asked-for", "MPA-077 MPA-085 MPA-159")
        .about("CRC asked for by us: good ones come, and a bad one is answered by Terminate 2/0/02")
        .run(|p| crcs_both_ways(&mut p.plain()?)),
    responder("crc-asked-for-by-the-endpoint", "MPA-077 MPA-159")
        .about("CRC asked for by the Reply alone: used both ways")
        .run(|p| {
            let mut session = without_crc(p)?;
            if !session.uses_crc() {
                return not_applicable("the endpoint does not ask for CRCs");
            }
            session.send(&Segment::write(1, 0, &[]));
            crcs_both_ways(&mut session)
        }),
    responder("crc-not-asked-for", "MPA-045 MPA-086 MPA-158 MPA-160")
        .about("CRC asked for by neither: whatever is in its field is taken")
        .run(|p| {
            let mut session = without_crc(p)?;
            if session.uses_crc() {
                return not_applicable("the endpoint asks for CRCs");
            }
            // Without CRCs, the probe fills the CRC field with bytes that are not the CRC.
            session.send(&Segment::write(1, 0, &[]));
            session.ping()
        }),
    responder("crc-default-is-on", "MPA-021 MPA-081")
        .about("an endpoint asks for CRCs by default")
        .run(|p| require(without_crc(p)?.frame.has(flag::C), || "the Reply does not ask for CRCs".into())),
    responder("markers-asked-for", "MPA-058 MPA-065 MPA-155 MPA-309")
        .about("a responder sends markers when the Request asks for them, whatever its own wish")
        .run(|p| {
            let request = p.request(MAGIC.as_bytes());
            let mut session = p.accepted(&Startup { flags: request.flags | flag::M, ..request })?;
            session.send(&Segment::write(1, 0, &[]));
            markers_come(&mut session)
        }),
    responder("revision-1-accepted", "MPA2-027 MPA2-098 MPA2-100")
        .about("a Request of revision 1 is accepted and answered without revision 2's bytes")
        .run(|p| {
            let request = Startup::plain(REQUEST_KEY, flag::C, MAGIC.as_bytes());
            let mut session = p.accepted(&request)?;
            let frame = &session.frame;
            require(frame.revision == 1 && !frame.has(flag::S), || {
                format!("Reply of revision {}, flags {:02x}", frame.revision, frame.flags)
            })?;
            require(!p.has_target() || words(&frame.private).is_some(), || {
                "the private data does not begin with the application's".into()
            })?;
            session.send(&Segment::write(1, 0, &[]));
            session.ping()
        }),
    responder("revision-2-unenhanced", "MPA2-098 MPA2-103")
        .about(
            "a Request of revision 2 without S is answered without S (or refused by what has no \
             revision 2)",
        )
        .run(|p| {
            if p.profile().revision < 2 {
                return not_applicable("the endpoint has no revision 2");
            }
            let request = Startup { revision: 2, ..Startup::plain(REQUEST_KEY, flag::C, MAGIC.as_bytes()) };
            let session = p.accepted(&request)?;
            require(!session.frame.has(flag::S), || "the Reply has S".into())
        }),
    responder("revision-2-enhanced", "MPA2-025 MPA2-029 MPA2-047 MPA2-096 MPA2-102")
        .about("an enhanced Request is answered by an enhanced Reply with its four bytes, in network order")
        .run(|p| {
            let asked = p.depths();
            let session = p.accepted(&enhanced(p, asked)?)?;
            let frame = &session.frame;
            require(frame.revision >= 2 && frame.has(flag::S) && frame.length >= 4, || {
                format!(
                    "Reply of revision {}, flags {:02x}, PD_Length {}",
                    frame.revision, frame.flags, frame.length
                )
            })?;
            // If the endpoint swapped the bytes, flag A would be clear, and a depth of 16 would be 4096.
            let told = agreed(&session)?;
            require((told.peer_to_peer, told.ord <= asked.ird) == (asked.peer_to_peer, true), || {
                format!("we said {asked:?}, the Reply {told:?}")
            })
        }),
    responder("enhanced-data-missing", "")
        .about("S with fewer than four bytes of private data: no accepting Reply")
        .run(|p| {
            if p.profile().revision < 2 {
                return not_applicable("the endpoint has no revision 2");
            }
            let mut conn = p.tcp()?;
            let request = Startup::plain(REQUEST_KEY, flag::C | flag::S, &[0, 1, 0]);
            p.say(&mut conn, &Startup { revision: 2, ..request });
            match p.answer(&mut conn).0 {
                Answer::Frame(frame) if frame.key == REPLY_KEY && frame.has(flag::R) => Ok(()),
                Answer::End(_, bytes) if bytes.is_empty() => Ok(()),
                other => deviates(format!("expected the end or a rejecting Reply, got {other}")),
            }
        }),
    responder("client-server-model", "MPA2-091 MPA2-092 MPA2-093")
        .about("A clear, B, C and D set: the latter are not looked at, and clear in the Reply as A is")
        .run(|p| {
            let depths = Depths { by_send: true, by_write: true, by_read: true, ..Depths::new(4, 4) };
            let mut session = p.accepted(&client_server(p, depths)?)?;
            let told = agreed(&session)?;
            require(!(told.peer_to_peer || told.by_send || told.by_write || told.by_read), || {
                format!("the Reply has {told:?}")
            })?;
            session.ping()
        }),
    responder("peer-to-peer-model", "MPA2-080 MPA2-083")
        .about("A set, C and D offered: A and at least one kind of RTR in the Reply")
        .run(|p| {
            let told = agreed(&p.accepted(&enhanced(p, kinds(false, true, true))?)?)?;
            require(told.peer_to_peer, || "the Reply has A clear".into())?;
            require(told.by_send || told.by_write || told.by_read, || "the Reply names no kind of RTR".into())
        }),
    responder("rtr-by-write", "DDP-120").about("a zero-length Write to anywhere is taken as RTR").run(|p| {
        let mut session = p.accepted(&enhanced(p, kinds(false, true, false))?)?;
        if !agreed(&session)?.by_write {
            return not_applicable("the endpoint takes no Write as RTR");
        }
        session.expect_silence()?;
        session.send(&Segment::write(0xffff_ffff, u64::MAX, &[]));
        session.ping()
    }),
    responder("rtr-by-read", "RDMAP-222").about("a zero-length Read is taken as RTR and answered").run(|p| {
        let mut session = p.accepted(&enhanced(p, kinds(false, false, true))?)?;
        if !agreed(&session)?.by_read {
            return not_applicable("the endpoint takes no Read as RTR");
        }
        session.expect_silence()?;
        session.ping()?;
        session.ping()
    }),
    responder("rtr-read-with-ord-0", "")
        .about("an RTR by Read with ORD 0: where D is agreed on, the Reply's IRD allows it")
        .run(|p| {
            let depths = Depths { ord: 0, ..kinds(false, false, true) };
            let mut session = p.accepted(&enhanced(p, depths)?)?;
            let told = agreed(&session)?;
            if !told.by_read || told.ird == 0 {
                return not_applicable("the endpoint did not take up Read as RTR");
            }
            session.ping()
        }),
    responder("rtr-by-send-only", "MPA2-085")
        .about("only B offered: the Reply names a kind all the same")
        .run(|p| {
            let told = agreed(&p.accepted(&enhanced(p, kinds(true, false, false))?)?)?;
            require(told.by_send || told.by_write || told.by_read, || "the Reply names no kind of RTR".into())
        }),
    responder("rtr-in-one-piece-with-more", "MPA-075")
        .about("the RTR and the next FPDU in one TCP segment are both taken")
        .run(|p| {
            let mut session = p.accepted(&enhanced(p, kinds(false, true, false))?)?;
            if !agreed(&session)?.by_write {
                return not_applicable("the endpoint takes no Write as RTR");
            }
            let msn = session.next_msn(1);
            let read =
                ReadRequest { sink_stag: 0x5049_4e47, sink_to: u64::from(msn), ..ReadRequest::default() };
            session.send_together(&[Segment::write(1, 0, &[]), Segment::read_request(msn, &read)]);
            session.expect_pong(msn)
        }),
    responder("ord-within-our-ird", "MPA2-059 MPA2-061")
        .about("we serve one Read: the Reply's ORD is at most 1")
        .run(|p| {
            let told = agreed(&p.accepted(&enhanced(p, Depths { ird: 1, ..p.depths() })?)?)?;
            require(told.ord <= 1, || format!("the Reply's ORD is {}", told.ord))
        }),
    responder("ord-with-our-ird-0", "MPA2-059 MPA2-061")
        .about("we serve no Reads: the Reply's ORD is 0")
        .run(|p| {
            let told = agreed(&p.accepted(&client_server(p, Depths::new(0, 4))?)?)?;
            require(told.ord == 0, || format!("the Reply's ORD is {}", told.ord))
        }),
    responder("largest-depths", "")
        .about("16382 Reads both ways asked for: less is granted, or all of it, but the connection works")
        .run(|p| {
            let depths = Depths { ird: 0x3ffe, ord: 0x3ffe, ..p.depths() };
            let mut session = p.accepted(&enhanced(p, depths)?)?;
            session.send(&Segment::write(1, 0, &[]));
            session.ping()
        }),
    responder("ord-left-to-the-application", "MPA2-071")
        .about("our ORD is 3fff: the Reply's IRD is 3fff")
        .run(|p| {
            let told = agreed(&p.accepted(&enhanced(p, Depths { ord: Depths::UNSAID, ..p.depths() })?)?)?;
            require(told.ird == Depths::UNSAID, || format!("the Reply's IRD is {}", told.ird))
        }),
    responder("ird-left-to-the-application", "MPA2-073")
        .about("our IRD is 3fff: the Reply's ORD is 3fff")
        .run(|p| {
            let told = agreed(&p.accepted(&enhanced(p, Depths { ird: Depths::UNSAID, ..p.depths() })?)?)?;
            require(told.ord == Depths::UNSAID, || format!("the Reply's ORD is {}", told.ord))
        }),
    responder("ird-as-asked", "RDMAP-301 RDMAP-226")
        .about("as many Reads at once as the Reply's IRD says are all served")
        .run(|p| {
            let mut session = p.plain()?;
            burst(&mut session)
        }),
];

/// Sends as many empty Reads at once as the endpoint serves, but at most 64. The endpoint has to answer all
/// of them in order.
fn burst(session: &mut Session) -> Check {
    let Some(ird) = session.peer_ird.filter(|ird| *ird > 0) else {
        return not_applicable("the endpoint did not say how many Reads it serves");
    };
    let msns: Vec<u32> = (0..ird.min(64)).map(|_| session.next_msn(1)).collect();
    let read = |msn: &u32| ReadRequest {
        sink_stag: 0x5049_4e47,
        sink_to: u64::from(*msn),
        ..ReadRequest::default()
    };
    let reads: Vec<Segment> = msns.iter().map(|msn| Segment::read_request(*msn, &read(msn))).collect();
    session.send_together(&reads);
    msns.iter().try_for_each(|msn| session.expect_pong(*msn))
}
