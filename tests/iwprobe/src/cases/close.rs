//! The end of a connection (RFC 5041 section 6.2, RFC 5044 section 7.2).

use crate::case::{Case, any, deviates, require};
use crate::conn::End;
use crate::session::Incoming;
use crate::wire::{Fault, Segment, opcode};

pub(super) const CASES: &[Case] = &[
    any("fin-is-answered", "DDP-153")
        .about("our FIN between FPDUs is answered by the endpoint's, and no Terminate")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            session.finish();
            session.expect_end().map(|_| ())
        }),
    any("fin-is-told", "MPA-225 DDP-040").about("the target is told of our FIN").run(|p| {
        let mut session = p.stage("recv=1x16")?;
        session.ping()?;
        let end = p.report(session)?.end;
        require(end != "open", || "the target saw no end".into())
    }),
    any("fin-behind-a-send", "DDP-131").about("what came before FIN is delivered").run(|p| {
        let mut session = p.stage("recv=2x16")?;
        session.send_message(b"last");
        session.finish();
        p.report(session)?.expect_received(&[b"last"])
    }),
    any("fin-inside-an-fpdu", "MPA-133")
        .about("FIN in the middle of an FPDU: the part is dropped, the connection ends")
        .run(|p| {
            let mut session = p.stage("recv=2x16")?;
            session.ping()?;
            let bytes = session.frame_of(&Segment::send(1, b"cut"), Fault::default());
            session.send_bytes(&bytes[..bytes.len() - 3], "a Send but for its last three bytes");
            session.finish();
            loop {
                match session.receive() {
                    Incoming::End(_) => break,
                    Incoming::Segment(segment) if segment.as_terminate().is_some() => {}
                    other => return deviates(format!("expected the end, got {other}")),
                }
            }
            p.report(session)?.expect_received(&[])
        }),
    any("reset-is-told", "DDP-155")
        .about("a connection that is gone is told to the target, and the next one is served")
        .run(|p| {
            let mut session = p.stage("recv=1x16 mr=4096:r")?;
            let region = session.region(0)?;
            let request = session.read_request(region.stag, region.to, 4096);
            session.send(&request);
            let _ = session.receive();
            // The socket has unread bytes, so Linux closes the connection by RST.
            drop(session);
            let end = p.report_of_last()?.end;
            require(end != "open", || "the target saw no end".into())
        }),
    any("endpoint-closes-after-its-sends", "DDP-148")
        .about("an endpoint that closes sends all that was posted, then FIN")
        .run(|p| {
            let mut session = p.stage("recv=1x16 then=s20000,s4 close")?;
            session.send_message(b"go");
            let mut bytes = 0;
            loop {
                match session.receive() {
                    Incoming::Segment(segment) if segment.opcode() == opcode::SEND => {
                        bytes += segment.payload().len()
                    }
                    Incoming::End(End::Fin) => break,
                    other => return deviates(format!("expected Sends and FIN, got {other}")),
                }
            }
            require(bytes == 20_004, || format!("{bytes} bytes of 20004 came before FIN"))
        }),
    any("many-connections", "")
        .about("twenty connections, one after the other, each closed at once or after a Read, are all served")
        .run(|p| {
            for round in 0..20 {
                let mut session = p.plain()?;
                if round % 2 == 0 {
                    session.ping()?;
                }
            }
            let mut session = p.plain()?;
            session.ping()
        }),
];
