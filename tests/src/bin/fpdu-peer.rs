//! Plays one side of an iWARP connection over the kernel's TCP, byte by byte, with unusual TCP behaviour. The
//! peer is `iwprobe-target listen` over our stack.
//!
//! If the peer does not handle this behaviour, prints one line and exits with status 1.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use iwprobe::case::{CaseError, Check, deviates};
use iwprobe::probe::Probe;
use iwprobe::session::{Patience, Session};
use iwprobe::socket::Mode;
use iwprobe::wire::{Code, Fault, Segment};
use rustix::net::{SendFlags, sockopt};

/// Maximum time to wait for an answer of the peer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a connection is idle. During this time, two keepalives are sent.
const IDLE: Duration = Duration::from_millis(2500);
/// Time from the last byte to the first keepalive, and from an unanswered keepalive to the end of the
/// connection.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Payload of a Write whose FPDU has 64 bytes: length field, header, payload, CRC.
const PAYLOAD: usize = 44;
/// Number of bytes of the FPDU, and number of Writes: in each Write a different byte of the FPDU is urgent.
const PLACES: usize = 64;
/// The code for "LLP, MPA, CRC" (RFC 5044 section 8).
const MPA_CRC: Code = Code(2, 0, 0x02);

/// Plays one side of an iWARP connection, with unusual TCP behaviour.
#[derive(Parser)]
struct Options {
    /// Address of the listener.
    connect: SocketAddr,
    /// Ask for markers.
    #[arg(long)]
    markers: bool,
    behaviour: Behaviour,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Behaviour {
    /// Is idle for a while, but sends a keepalive each second, which the peer has to answer. Then continues.
    Idle,
    /// Sends Writes, in each of which a different byte is urgent, and reads the written bytes.
    Urgent,
    /// Sends an urgent byte that is not part of an FPDU.
    UrgentBetween,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("fpdu-peer: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let patience = Patience { timeout: TIMEOUT, quiet: IDLE };
    let mut probe = Probe::new(Mode::Connect(vec![options.connect]), patience, options.markers);
    probe.meet(TIMEOUT)?;
    let done = match options.behaviour {
        Behaviour::Idle => idle(&probe),
        Behaviour::Urgent => urgent(&probe),
        Behaviour::UrgentBetween => urgent_between(&probe),
    };
    done.map_err(|stop| match stop {
        CaseError::Deviates(reason) | CaseError::NotApplicable(reason) => reason,
        CaseError::NeedsTarget => "the other end is not a target".to_owned(),
    })
}

fn idle(probe: &Probe) -> Check {
    let mut session = probe.stage("recv=2x64")?;
    session.send_message(b"before");
    session.ping()?;
    keepalive(&session)?;
    session.expect_silence()?;
    session.send_message(b"behind");
    session.ping()?;
    probe.report(session)?.expect_received(&[b"before", b"behind"])
}

fn keepalive(session: &Session) -> Check {
    let socket = session.conn().socket().expect("a socket");
    let set = || {
        sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(socket, 1)?;
        sockopt::set_socket_keepalive(socket, true)
    };
    set().or_else(|error| deviates(format!("no keepalives: {error}")))
}

fn urgent(probe: &Probe) -> Check {
    let mut session = probe.stage(&format!("mr={}:rw", PLACES * PAYLOAD))?;
    session.ping()?;
    let region = session.region(0)?;
    let bytes: Vec<u8> = (0..PLACES * PAYLOAD).map(|at| (at * 31 + at / 256) as u8).collect();
    for (place, payload) in bytes.chunks(PAYLOAD).enumerate() {
        let to = region.to + (place * PAYLOAD) as u64;
        let fpdu = session.frame_of(&Segment::write(region.stag, to, payload), Fault::default());
        send_urgent(&session, &fpdu, place)?;
        // Without an answer in between, TCP would put the next FPDU into the same segment.
        session.ping()?;
    }
    let back = session.read(region.stag, region.to, bytes.len() as u32)?;
    match back.iter().zip(&bytes).position(|(back, sent)| back != sent) {
        None => Ok(()),
        Some(at) => deviates(format!("byte {at} is {:02x}, {:02x} was written", back[at], bytes[at])),
    }
}

/// Sends bytes, of which the byte at `place` is urgent.
fn send_urgent(session: &Session, bytes: &[u8], place: usize) -> Check {
    let mut socket = session.conn().socket().expect("a socket");
    let mut send = || {
        socket.write_all(&bytes[..place])?;
        rustix::net::send(socket, &bytes[place..=place], SendFlags::OOB)?;
        socket.write_all(&bytes[place + 1..])
    };
    send().or_else(|error| deviates(format!("an urgent byte was not sent: {error}")))
}

/// The urgent byte is part of TCP's stream (RFC 6093 section 3.2). Here the peer reads this byte, which is 0,
/// as the first byte of a length field, so the CRC of that FPDU is wrong.
fn urgent_between(probe: &Probe) -> Check {
    let mut session = probe.plain()?;
    session.ping()?;
    send_urgent(&session, &[0], 0)?;
    session.send_message(b"behind");
    session.expect_terminate(&[MPA_CRC]).map(drop)
}

#[cfg(test)]
mod command_line {
    use clap::CommandFactory;

    #[test]
    fn it_is_consistent() {
        super::Options::command().debug_assert();
    }
}
