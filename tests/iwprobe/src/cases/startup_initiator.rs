//! MPA startup, where the endpoint is the initiator (RFC 5044 section 7.1, RFC 6581).

use super::negotiation::{crcs_both_ways, markers_come};
use crate::case::{Case, CaseError, Check, deviates, initiator, not_applicable, require};
use crate::conn::Conn;
use crate::probe::{Answer, Probe};
use crate::scene::{MAGIC, words};
use crate::session::{Incoming, Session};
use crate::wire::{Code, Depths, REPLY_KEY, REQUEST_KEY, Segment, Startup, flag, opcode};

/// Accepts a connection of the endpoint, and sends a valid Reply that `change` has modified.
fn answered(
    p: &Probe,
    change: impl FnOnce(&Startup, Startup) -> Startup,
) -> Result<(Conn, Startup, Startup), CaseError> {
    let mut conn = p.tcp()?;
    let (request, _) = p.heard_request(&mut conn)?;
    let reply = change(&request, p.reply(&request, MAGIC.as_bytes()));
    p.say(&mut conn, &reply);
    Ok((conn, request, reply))
}

/// Sends a bad Reply. The endpoint has to end the connection. A Terminate before the end is tolerated, since
/// siw sends Terminate 2/0/04. No other message is tolerated.
fn refused(p: &Probe, change: impl FnOnce(&Startup, Startup) -> Startup) -> Check {
    let (conn, request, reply) = answered(p, change)?;
    let mut session = Session::new(conn, &reply, request, p.watch().clone(), p.patience());
    match session.receive() {
        Incoming::End(_) => Ok(()),
        Incoming::Segment(segment) if segment.as_terminate().is_some() => session.expect_end().map(|_| ()),
        other => deviates(format!("expected the connection to be closed, got {other}")),
    }
}

/// Opens a session in full operation after a valid Reply that `change` has modified.
fn operating(p: &Probe, change: impl FnOnce(&Startup, Startup) -> Startup) -> Result<Session, CaseError> {
    let (conn, request, reply) = answered(p, change)?;
    Ok(Session::new(conn, &reply, request, p.watch().clone(), p.patience()))
}

fn works(p: &Probe, change: impl FnOnce(&Startup, Startup) -> Startup) -> Check {
    let mut session = operating(p, change)?;
    p.take_first(&mut session)?;
    session.ping()
}

fn with_depths(reply: &Startup, change: impl FnOnce(Depths) -> Depths) -> Startup {
    let Some(depths) = reply.depths() else { return reply.clone() };
    Startup::enhanced(reply.key, reply.flags, change(depths), reply.ulp_data())
}

fn enhanced(p: &Probe) -> Result<(), CaseError> {
    let mut conn = p.tcp()?;
    let (request, _) = p.heard_request(&mut conn)?;
    if request.depths().is_none() {
        return not_applicable("the endpoint's Requests are not enhanced");
    }
    Ok(())
}

fn peer_to_peer(p: &Probe) -> Result<Depths, CaseError> {
    let mut conn = p.tcp()?;
    let (request, _) = p.heard_request(&mut conn)?;
    match request.depths().filter(|depths| depths.peer_to_peer) {
        Some(depths) => Ok(depths),
        None => not_applicable("the endpoint does not ask for peer-to-peer"),
    }
}

pub(super) const CASES: &[Case] = &[
    initiator("request-well-formed", "MPA-148 MPA-163 MPA-167 MPA-172 MPA-174 MPA2-022")
        .about(
            "an initiator speaks first: the Request's key, no reserved flag, as much private data as \
             it says",
        )
        .run(|p| {
            let mut conn = p.tcp()?;
            let (request, rest) = p.heard_request(&mut conn)?;
            let reserved = if request.revision >= 2 { 0x0f } else { 0x1f };
            require(request.flags & reserved == 0, || {
                format!("reserved flags {:02x}", request.flags & reserved)
            })?;
            require(request.length <= 512, || format!("PD_Length {}", request.length))?;
            require(rest.is_empty(), || format!("{} bytes behind the Request", rest.len()))?;
            let said = words(request.ulp_data()).unwrap_or_default();
            require(!p.has_target() || said == ["hello"], || "private data other than the target's".into())
        }),
    initiator("request-r-clear", "MPA-161").about("R is clear in a Request").run(|p| {
        let (request, _) = p.heard_request(&mut p.tcp()?)?;
        require(!request.has(flag::R), || "the Request has R".into())
    }),
    initiator("request-asks-for-crc", "MPA-021 MPA-081")
        .about("an endpoint that nobody told otherwise asks for CRCs")
        .run(|p| {
            let (request, _) = p.heard_request(&mut p.tcp()?)?;
            require(request.has(flag::C), || "the Request does not ask for CRCs".into())
        }),
    initiator("request-enhanced-revision", "MPA2-025 MPA2-029")
        .about("S comes with revision 2 and four bytes at least")
        .run(|p| {
            let (request, _) = p.heard_request(&mut p.tcp()?)?;
            if !request.has(flag::S) {
                return not_applicable("the endpoint's Requests are not enhanced");
            }
            require(request.revision >= 2 && request.length >= 4, || {
                format!("revision {}, PD_Length {}", request.revision, request.length)
            })
        }),
    initiator("request-rtr-kinds", "MPA2-092").about("with A at least one of B, C, D; without A none").run(
        |p| {
            let (request, _) = p.heard_request(&mut p.tcp()?)?;
            let Some(depths) = request.depths() else {
                return not_applicable("the endpoint's Requests are not enhanced");
            };
            let named = depths.by_send || depths.by_write || depths.by_read;
            require(named == depths.peer_to_peer, || format!("the Request has {depths:?}"))
        },
    ),
    initiator("initiator-waits-for-reply", "MPA-188")
        .about("nothing follows the Request until the whole Reply has come")
        .run(|p| {
            let mut conn = p.tcp()?;
            let (request, _) = p.heard_request(&mut conn)?;
            let reply = p.reply(&request, MAGIC.as_bytes());
            let bytes = reply.encode();
            let (last, most) = bytes.split_last().expect("a frame has bytes");
            conn.send(most, "a Reply but for its last byte");
            match conn.receive_within(p.patience().quiet) {
                crate::conn::ReadResult::Nothing => {}
                other => return deviates(format!("expected silence, got {other:02x?}")),
            }
            conn.send(&[*last], "the last byte");
            let mut session = Session::new(conn, &reply, request, p.watch().clone(), p.patience());
            p.take_first(&mut session)?;
            session.ping()
        }),
    initiator("reply-byte-by-byte", "MPA-222").about("a Reply in TCP segments of one byte is taken").run(
        |p| {
            let mut conn = p.tcp()?;
            let (request, _) = p.heard_request(&mut conn)?;
            let reply = p.reply(&request, MAGIC.as_bytes());
            for byte in reply.encode() {
                conn.send(&[byte], "a byte of the Reply");
                conn.pause(std::time::Duration::from_millis(1));
            }
            let mut session = Session::new(conn, &reply, request, p.watch().clone(), p.patience());
            p.take_first(&mut session)?;
            session.ping()
        },
    ),
    initiator("reply-wrong-key", "MPA-151 MPA-189 MPA-196")
        .about("a Reply whose key differs in one byte: closed")
        .run(|p| refused(p, |_, reply| Startup { key: *b"MPA ID Rep FramE", ..reply })),
    initiator("reply-with-request-key", "MPA-151 MPA-200")
        .about("a Request where a Reply is due (two initiators): closed")
        .run(|p| refused(p, |_, reply| Startup { key: REQUEST_KEY, ..reply })),
    initiator("reply-revision-3", "MPA-165 MPA-189")
        .about("a Reply of a revision that nobody has defined: closed")
        .run(|p| refused(p, |_, reply| Startup { revision: 3, ..reply })),
    initiator("reply-length-513", "MPA-169 MPA-189 MPA-202 MPA-205")
        .about("a Reply with PD_Length 513: closed")
        .run(|p| {
            refused(p, |_, reply| {
                let mut private = reply.private;
                private.resize(513, 0);
                Startup { length: 513, private, ..reply }
            })
        }),
    initiator("reply-length-65535", "MPA-169 MPA-202 MPA-205")
        .about("a Reply with PD_Length 65535 and little behind it: closed without waiting for the rest")
        .run(|p| refused(p, |_, reply| Startup { length: 0xffff, ..reply })),
    initiator("reply-private-data-512", "MPA-172 MPA-203")
        .about("a Reply with 512 bytes of private data, the most there may be: taken")
        .run(|p| {
            works(p, |_, reply| {
                let mut private = reply.private;
                private.resize(512, 0);
                Startup { length: 512, private, ..reply }
            })
        }),
    initiator("reply-reserved-bits", "MPA-163 MPA2-023")
        .about("reserved flags of a Reply are not looked at")
        .run(|p| works(p, |_, reply| Startup { flags: reply.flags | 0x0f, ..reply })),
    initiator("reply-rejects", "MPA-190").about("a Reply with R: no FPDU follows").run(|p| {
        let (mut conn, ..) = answered(p, |_, reply| Startup { flags: reply.flags | flag::R, ..reply })?;
        match p.answer(&mut conn).0 {
            Answer::End(_, bytes) | Answer::Silence(bytes) if bytes.is_empty() => Ok(()),
            other => deviates(format!("expected nothing more from MPA, got {other}")),
        }
    }),
    initiator("reply-crc-decides", "MPA-085 MPA-159")
        .about("C in the Reply is enough: good CRCs come, and a bad one is answered by Terminate 2/0/02")
        .run(|p| {
            let mut session = operating(p, |_, reply| Startup { flags: reply.flags | flag::C, ..reply })?;
            p.take_first(&mut session)?;
            crcs_both_ways(&mut session)
        }),
    initiator("reply-asks-for-markers", "MPA-058 MPA-065 MPA-155 MPA-310")
        .about("an initiator sends markers when the Reply asks for them, whatever its own wish")
        .run(|p| {
            let mut session = operating(p, |_, reply| Startup { flags: reply.flags | flag::M, ..reply })?;
            p.take_first(&mut session)?;
            markers_come(&mut session)
        }),
    initiator("initiator-sends-one-rtr", "MPA2-017 MPA2-086")
        .about(
            "in the peer-to-peer model the first FPDU is an RTR of a kind that both named, the \
             second is none",
        )
        .run(|p| {
            peer_to_peer(p)?;
            let mut session = operating(p, |_, reply| reply)?;
            rtr(&mut session, true, true)?;
            match session.receive() {
                Incoming::Segment(segment) if is_rtr(&segment, true, true) => deviates("a second RTR"),
                _ => Ok(()),
            }
        }),
    initiator("initiator-rtr-by-write", "MPA2-086")
        .about("the Reply names the Write alone: the RTR is a Write of no bytes")
        .run(|p| {
            if !peer_to_peer(p)?.by_write {
                return not_applicable("the endpoint does not offer the Write as RTR");
            }
            let only = |d: Depths| Depths { by_send: false, by_write: true, by_read: false, ..d };
            let mut session = operating(p, |_, reply| with_depths(&reply, only))?;
            rtr(&mut session, true, false)
        }),
    initiator("initiator-rtr-by-read", "MPA2-086")
        .about("the Reply names the Read alone: the RTR is a Read of no bytes")
        .run(|p| {
            if !peer_to_peer(p)?.by_read {
                return not_applicable("the endpoint does not offer the Read as RTR");
            }
            let only =
                |d: Depths| Depths { by_send: false, by_write: false, by_read: true, ird: d.ird.max(1), ..d };
            let mut session = operating(p, |_, reply| with_depths(&reply, only))?;
            rtr(&mut session, false, true)
        }),
    initiator("initiator-no-common-rtr", "MPA2-087 MPA2-088")
        .about("no kind of RTR in common: Terminate 2/0/07 instead of it, then the end")
        .run(|p| {
            let asked = peer_to_peer(p)?;
            if asked.by_send && asked.by_write && asked.by_read {
                return not_applicable("the endpoint offers every kind of RTR");
            }
            let others = move |d: Depths| Depths {
                by_send: !asked.by_send,
                by_write: !asked.by_write,
                by_read: !asked.by_read,
                ..d
            };
            let mut session = operating(p, |_, reply| with_depths(&reply, others))?;
            session.expect_terminate(&[Code(2, 0, 7)])?;
            session.finish();
            session.expect_end().map(|_| ())
        }),
    initiator("initiator-lowers-its-ord", "MPA2-065 RDMAP-305")
        .about("the Reply's IRD is 1: never a second Read before the first is answered")
        .run(|p| {
            enhanced(p)?;
            if !p.has_target() {
                return Err(CaseError::NeedsTarget);
            }
            let (conn, request, reply) = answered(p, |request, _| {
                let reply = p.reply(request, b"iwp1 do=r8,r8,r8 peer=77:1000");
                with_depths(&reply, |d| Depths { ird: 1, ..d })
            })?;
            if reply.depths().is_some_and(|depths| depths.ird != 1)
                || request.depths().is_some_and(|d| d.ord == 0)
            {
                return not_applicable("the endpoint wants no Reads");
            }
            let mut session = Session::new(conn, &reply, request, p.watch().clone(), p.patience());
            for _ in 0..3 {
                let read = loop {
                    match session.receive() {
                        Incoming::Segment(segment) if segment.opcode() == opcode::READ_REQUEST => {
                            break segment;
                        }
                        Incoming::Segment(_) => {}
                        other => return deviates(format!("expected a Read Request, got {other}")),
                    }
                };
                let read =
                    read.as_read_request().ok_or(CaseError::Deviates("a short Read Request".into()))?;
                if read.size > 0 {
                    session.expect_silence()?;
                }
                let data = vec![0x5a; read.size as usize];
                session.send(&Segment::tagged(opcode::READ_RESPONSE, read.sink_stag, read.sink_to, &data));
            }
            Ok(())
        }),
    initiator("initiator-short-of-ird", "")
        .about("the Reply's ORD is above the Request's IRD: served all the same, or Terminate 2/0/06")
        .run(|p| {
            enhanced(p)?;
            let mut session = operating(p, |_, reply| with_depths(&reply, |d| Depths { ord: 0x3ffe, ..d }))?;
            match session.receive() {
                Incoming::Segment(segment) if segment.as_terminate().is_some() => {
                    let told = segment.as_terminate().expect("it is one");
                    let code = Code(2, 0, 6);
                    require(told.is_any_of(&[code]), || format!("expected code 2/0/06, got {}", told.code()))
                }
                Incoming::Segment(_) => Ok(()),
                other => deviates(format!("expected a first FPDU or Terminate 2/0/06, got {other}")),
            }
        }),
    initiator("initiator-goes-on-after-bad-replies", "")
        .about("after all these bad Replies a good one is still taken")
        .run(|p| works(p, |_, reply| Startup { key: REPLY_KEY, ..reply })),
];

/// Checks that the first FPDU is an RTR by Write or by Read, whichever is allowed, and answers an RTR by
/// Read.
fn rtr(session: &mut Session, by_write: bool, by_read: bool) -> Check {
    match session.receive() {
        Incoming::Segment(segment) if is_rtr(&segment, by_write, by_read) => {
            if let Some(read) = segment.as_read_request() {
                session.send(&Segment::tagged(opcode::READ_RESPONSE, read.sink_stag, read.sink_to, &[]));
            }
            Ok(())
        }
        other => deviates(format!("expected an RTR of an agreed kind, got {other}")),
    }
}

fn is_rtr(segment: &Segment, by_write: bool, by_read: bool) -> bool {
    match segment.opcode() {
        opcode::WRITE => by_write && segment.payload().is_empty(),
        opcode::READ_REQUEST => by_read && segment.as_read_request().is_some_and(|read| read.size == 0),
        _ => false,
    }
}
