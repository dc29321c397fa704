//! MPA startup, where the endpoint is the responder (RFC 5044 section 7.1).

use crate::case::{Case, Check, deviates, require, responder};
use crate::conn::End;
use crate::probe::{Answer, Probe};
use crate::scene::MAGIC;
use crate::session::Incoming;
use crate::wire::{Fault, Framer, REPLY_KEY, REQUEST_KEY, ReadRequest, Segment, Startup, flag};

/// Sends an invalid Request. The endpoint has to end the connection without a Reply.
fn refused(p: &Probe, bytes: &[u8], what: &str) -> Check {
    let mut conn = p.tcp()?;
    conn.send(bytes, what);
    match p.answer(&mut conn).0 {
        Answer::End(_, bytes) if bytes.is_empty() => Ok(()),
        other => deviates(format!("expected the connection to be closed without a Reply, got {other}")),
    }
}

fn plain(private: &[u8]) -> Startup {
    Startup::plain(REQUEST_KEY, flag::C, private)
}

/// Sends the Request in pieces of `size` bytes, and checks that the connection works.
fn in_pieces(p: &Probe, request: &Startup, size: usize) -> Check {
    let mut conn = p.tcp()?;
    for piece in request.encode().chunks(size) {
        conn.send(piece, format!("{} bytes of the MPA Request", piece.len()));
        // Without a pause, TCP may join the pieces again.
        conn.pause(std::time::Duration::from_millis(1));
    }
    release(&mut p.heard_reply(conn, request)?)
}

/// Sends the RTR if both sides agreed on an RTR, and checks that the stream works.
fn release(session: &mut crate::session::Session) -> Check {
    if session.frame.depths().is_some_and(|depths| depths.peer_to_peer) {
        session.send(&Segment::write(1, 0, &[]));
    }
    session.ping()
}

pub(super) const CASES: &[Case] = &[
    responder("request-wrong-key", "MPA-149 MPA-177 MPA-196")
        .about("a Request whose key differs in its first byte: closed, no Reply")
        .run(|p| {
            let mut request = plain(b"");
            request.key[0] ^= 1;
            refused(p, &request.encode(), "a Request whose key is wrong in its first byte")
        }),
    responder("request-wrong-key-end", "MPA-149 MPA-177 MPA-196")
        .about("a Request whose key differs in its last byte: closed, no Reply")
        .run(|p| {
            let mut request = plain(b"");
            request.key[15] ^= 1;
            refused(p, &request.encode(), "a Request whose key is wrong in its last byte")
        }),
    responder("request-with-reply-key", "MPA-149 MPA-196")
        .about("a Reply where a Request is due: closed, no Reply")
        .run(|p| {
            refused(p, &Startup::plain(REPLY_KEY, flag::C, b"").encode(), "a Reply instead of a Request")
        }),
    responder("request-garbage", "MPA-177")
        .about("a request line of HTTP instead of MPA's: closed, no Reply")
        .run(|p| refused(p, b"GET / HTTP/1.0\r\nHost: nowhere\r\n\r\n", "GET / HTTP/1.0")),
    responder("request-revision-3", "MPA-165 MPA-177")
        .about("a revision that nobody has defined: closed, no Reply")
        .run(|p| refused(p, &Startup { revision: 3, ..plain(b"") }.encode(), "a Request of revision 3")),
    responder("request-revision-255", "MPA-165 MPA-177")
        .about("the largest revision: closed, no Reply")
        .run(|p| refused(p, &Startup { revision: 255, ..plain(b"") }.encode(), "a Request of revision 255")),
    responder("request-length-513", "MPA-169 MPA-177 MPA-202 MPA-205")
        .about("PD_Length 513, all bytes there: closed, no Reply")
        .run(|p| refused(p, &plain(&[0; 513]).encode(), "a Request with 513 bytes of private data")),
    responder("request-length-65535", "MPA-169 MPA-202 MPA-205")
        .about("PD_Length 65535 and nothing behind it: closed, no Reply, without waiting for the rest")
        .run(|p| {
            let request = Startup { length: 0xffff, ..plain(b"") };
            refused(p, &request.encode(), "a Request with PD_Length 65535")
        }),
    responder("request-cut-by-fin", "MPA-169")
        .about("FIN in the middle of the private data: closed, no Reply")
        .run(|p| {
            let mut conn = p.tcp()?;
            let request = plain(&[0; 100]).encode();
            conn.send(&request[..70], "a Request but for its last 50 bytes");
            conn.finish();
            match p.answer(&mut conn).0 {
                Answer::End(_, bytes) if bytes.is_empty() => Ok(()),
                other => deviates(format!("expected no Reply, got {other}")),
            }
        }),
    responder("request-private-data-512", "MPA-172 MPA-203")
        .about("512 bytes of private data, the most there may be: accepted")
        .run(|p| {
            let mut private = MAGIC.as_bytes().to_vec();
            private.resize(512, 0);
            release(&mut p.accepted(&plain(&private))?)
        }),
    responder("request-private-data-none", "MPA-172")
        .about("no private data at all: accepted (or rejected by the application, by a Reply)")
        .run(|p| {
            let mut conn = p.tcp()?;
            p.say(&mut conn, &plain(b""));
            match p.answer(&mut conn).0 {
                Answer::Frame(frame) if frame.key == REPLY_KEY => Ok(()),
                other => deviates(format!("expected a Reply, got {other}")),
            }
        }),
    responder("request-byte-by-byte", "MPA-222")
        .about("the Request comes in TCP segments of one byte: accepted when it is whole")
        .run(|p| in_pieces(p, &p.request(MAGIC.as_bytes()), 1)),
    responder("request-in-two-segments", "MPA-222")
        .about("the Request's header and private data come apart: accepted")
        .run(|p| in_pieces(p, &p.request(MAGIC.as_bytes()), 20)),
    responder("request-unfinished-no-reply", "MPA-176")
        .about("nothing is answered while a byte of the Request is missing")
        .run(|p| {
            let mut conn = p.tcp()?;
            let (request, quiet) = (p.request(MAGIC.as_bytes()), p.patience().quiet);
            let bytes = request.encode();
            let (last, most) = bytes.split_last().expect("a frame has bytes");
            conn.send(most, "a Request but for its last byte");
            match conn.receive_within(quiet) {
                crate::conn::ReadResult::Nothing => {}
                other => return deviates(format!("expected silence, got {other:02x?}")),
            }
            conn.send(&[*last], "the last byte");
            release(&mut p.heard_reply(conn, &request)?)
        }),
    responder("request-reserved-bits", "MPA-163 MPA2-023")
        .about("reserved flags of a Request are not looked at")
        .run(|p| {
            let request = p.request(MAGIC.as_bytes());
            release(&mut p.accepted(&Startup { flags: request.flags | 0x0f, ..request })?)
        }),
    responder("request-reject-flag", "MPA-161").about("R in a Request is not looked at").run(|p| {
        let request = p.request(MAGIC.as_bytes());
        release(&mut p.accepted(&Startup { flags: request.flags | flag::R, ..request })?)
    }),
    responder("reply-well-formed", "MPA-150 MPA-163 MPA-167 MPA-172 MPA2-022")
        .about("a Reply has the Reply's key, no reserved flag, and as much private data as it says")
        .run(|p| {
            let mut session = p.accepted(&p.request(MAGIC.as_bytes()))?;
            let frame = session.frame.clone();
            require(frame.key == REPLY_KEY, || "wrong key".into())?;
            let reserved = if frame.revision >= 2 { 0x0f } else { 0x1f };
            require(frame.flags & reserved == 0, || {
                format!("reserved flags {:02x}", frame.flags & reserved)
            })?;
            require(frame.length <= 512, || format!("PD_Length {}", frame.length))?;
            // If the endpoint ignored PD_Length, it would read the bytes beyond the private data as an FPDU.
            release(&mut session)
        }),
    responder("reply-nothing-behind", "MPA-193")
        .about("a responder is silent from its Reply until the first FPDU has come")
        .run(|p| {
            let request = p.request(MAGIC.as_bytes());
            let mut session = p.accepted(&request)?;
            session.expect_silence()?;
            release(&mut session)
        }),
    responder("responder-holds-its-sends", "MPA-193 MPA-185")
        .about("a Send that the responder's application posts at once leaves only after our first FPDU")
        .run(|p| {
            let request = p.request(b"iwp1 recv=1x16 do=s10");
            if !p.has_target() {
                return Err(crate::case::CaseError::NeedsTarget);
            }
            let mut session = p.accepted(&request)?;
            session.expect_silence()?;
            session.send(&Segment::write(1, 0, &[]));
            let send = session.expect(crate::wire::opcode::SEND)?;
            require(send.payload().len() == 10, || format!("a Send of {} bytes", send.payload().len()))
        }),
    responder("first-fpdu-right-behind-reply", "MPA-185")
        .about("an FPDU that follows the Reply at once is taken")
        .run(|p| release(&mut p.accepted(&p.request(MAGIC.as_bytes()))?)),
    responder("first-fpdu-bad-crc", "MPA-193 MPA-126")
        .about("an invalid first FPDU does not let the responder speak: the connection ends without any FPDU")
        .run(|p| {
            let mut session = p.accepted(&p.request(MAGIC.as_bytes()))?;
            if !session.uses_crc() {
                return crate::case::not_applicable("no CRCs on this connection");
            }
            session.send_faulty(&Segment::write(1, 0, &[]), Fault { crc_xor: 1, ..Fault::default() });
            match session.receive() {
                Incoming::End(_) => Ok(()),
                other => deviates(format!("expected the end without any FPDU, got {other}")),
            }
        }),
    responder("fpdu-before-reply", "")
        .about("bytes right behind the Request, which no initiator sends: ended, or taken for the first FPDU")
        .run(|p| {
            let request = p.request(MAGIC.as_bytes());
            let mut conn = p.tcp()?;
            let read = Segment::read_request(1, &ReadRequest::default());
            let fpdu = Framer::new(false, true).frame(&read.bytes, Fault::default());
            conn.send(&[request.encode(), fpdu].concat(), "a Request and an FPDU in one piece");
            match p.answer(&mut conn).0 {
                Answer::Silence(bytes) => {
                    deviates(format!("neither an end nor a Reply, but {} bytes", bytes.len()))
                }
                Answer::End(..) | Answer::Frame(_) => Ok(()),
            }
        }),
    responder("reject-is-a-reply", "MPA-178 MPA-198 MPA2-029 MPA2-096")
        .about("what the application rejects is answered by a Reply with R, of the Request's kind")
        .run(|p| {
            if !p.has_target() {
                return Err(crate::case::CaseError::NeedsTarget);
            }
            let mut conn = p.tcp()?;
            let request = p.request(b"iwp1 reject");
            p.say(&mut conn, &request);
            match p.answer(&mut conn).0 {
                Answer::Frame(frame) if frame.key == REPLY_KEY && frame.has(flag::R) => {
                    let kind = |frame: &Startup| (frame.revision, frame.has(flag::S));
                    require(kind(&frame) == kind(&request), || {
                        "revision and S are not those of the Request".into()
                    })?;
                    require(!frame.has(flag::S) || frame.depths().is_some(), || {
                        "S without IRD and ORD".into()
                    })?;
                    require(frame.ulp_data().starts_with(b"iwp1 no"), || "without its private data".into())
                }
                other => deviates(format!("expected a rejecting Reply, got {other}")),
            }
        }),
    responder("reset-during-startup", "")
        .about(
            "a peer that goes away in the middle of its Request takes nothing along: the next one is \
             served",
        )
        .run(|p| {
            for _ in 0..3 {
                let mut conn = p.tcp()?;
                conn.send(&plain(b"").encode()[..9], "9 bytes of a Request");
            }
            release(&mut p.accepted(&p.request(MAGIC.as_bytes()))?)
        }),
    responder("fin-instead-of-request", "MPA-176").about("FIN at once: closed, no Reply").run(|p| {
        let mut conn = p.tcp()?;
        conn.finish();
        match p.answer(&mut conn).0 {
            Answer::End(End::Fin | End::Reset, bytes) if bytes.is_empty() => Ok(()),
            other => deviates(format!("expected the end, got {other}")),
        }
    }),
];
