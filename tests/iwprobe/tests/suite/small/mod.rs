//! A small iWARP endpoint with one selectable flaw, for tests of iwprobe's verdicts. The endpoint listens or
//! connects, with or without a target.
//!
//! | file | what |
//! |---|---|
//! | `flaw` | the flaws |
//! | `startup` | MPA startup frames, in both roles |
//! | `end` | a connection in full operation: received and sent segments |
//! | `judge` | the checks of received segments |
//! | `target` | memory, receives and operations, and the report on them |

mod end;
mod flaw;
mod judge;
mod startup;
mod target;

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

pub(crate) use flaw::Flaw;
use target::Report;

/// Time after which the endpoint gives up a silent connection. Only a connection that hangs is silent for so
/// long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the endpoint connects again.
const PAUSE: Duration = Duration::from_millis(1);

/// Starts an endpoint that listens on a port of its own, without a target, until the process ends.
pub(crate) fn start(flaw: Flaw) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let most = if flaw == Flaw::Dies || flaw == Flaw::Hangs { 2 } else { usize::MAX };
        let mut streams = listener.incoming().flatten();
        for stream in streams.by_ref().take(most) {
            std::thread::spawn(move || end::respond(&stream, flaw, None));
        }
        if flaw == Flaw::Hangs {
            streams.for_each(std::mem::forget);
        }
    });
    address
}

/// Starts an endpoint that listens on a port of its own, with a target, and serves one connection at a time.
pub(crate) fn start_target(flaw: Flaw) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut last = Report::refused();
        for stream in listener.incoming().flatten() {
            end::respond(&stream, flaw, Some(&mut last));
        }
    });
    address
}

/// Starts an endpoint that connects repeatedly, until the probe dismisses it or no probe listens.
pub(crate) fn call(flaw: Flaw, has_target: bool, remote: SocketAddr) {
    std::thread::spawn(move || {
        let mut last = Report::refused();
        while let Ok(stream) = TcpStream::connect(remote) {
            if end::initiate(&stream, flaw, has_target.then_some(&mut last)) == end::Disconnect::Permanent {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    });
}

fn more(mut stream: &TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 1 << 17];
    let length = stream.read(&mut bytes).ok().filter(|length| *length > 0)?;
    bytes.truncate(length);
    Some(bytes)
}

/// Sends FIN, then reads and drops all bytes that still arrive. If bytes were unread at the close, Linux
/// would send RST.
fn hang_up(stream: &TcpStream) -> Option<()> {
    stream.shutdown(Shutdown::Write).ok()?;
    while more(stream).is_some() {}
    Some(())
}
