//! A stream over the TCP of the system this runs on.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use super::{Opener, Report, Sink, Source, Task, Way};
use crate::ensure;
use crate::lab::Result;

/// Opens, moves and closes the stream. `ready` is called once the peer may connect.
///
/// # Errors
/// When the system's TCP reports one, an octet is wrong or missing, or the limit has passed.
pub fn run(task: &Task, ready: impl FnOnce()) -> Result<Report> {
    let opened = Instant::now();
    let mut stream = open(task, ready)?;
    // Ours is the same, and the system's default may be anything.
    rustix::net::sockopt::set_tcp_congestion(&stream, "cubic").map_err(std::io::Error::from)?;
    stream.set_read_timeout(Some(task.limit))?;
    stream.set_write_timeout(Some(task.limit))?;
    match task.way {
        Way::Send => send(&mut stream, task, opened),
        Way::Receive => receive(&mut stream, task, opened),
    }
}

fn open(task: &Task, ready: impl FnOnce()) -> Result<TcpStream> {
    match task.opener {
        Opener::Passive(port) => {
            // IPv4 arrives there as well, as mapped addresses.
            let listener = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
            ready();
            Ok(listener.accept()?.0)
        }
        Opener::Active(peer) => {
            ready();
            Ok(TcpStream::connect_timeout(&peer, task.limit)?)
        }
    }
}

fn send(stream: &mut TcpStream, task: &Task, opened: Instant) -> Result<Report> {
    let mut source = Source::new(task);
    loop {
        let octets = stream.write(source.next())?;
        source.take(octets);
        if source.next().is_empty() {
            break;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    let more = stream.read(&mut [0u8; 1])?;
    ensure!(more == 0, "octets from a peer that had none to send");
    Ok(source.report(opened.elapsed()))
}

fn receive(stream: &mut TcpStream, task: &Task, opened: Instant) -> Result<Report> {
    let mut sink = Sink::new(task);
    let mut buffer = vec![0u8; 1 << 16];
    let mut offset = 0;
    loop {
        let octets = stream.read(&mut buffer)?;
        if octets == 0 {
            break;
        }
        sink.put(offset, &buffer[..octets])?;
        offset += octets as u64;
        ensure!(opened.elapsed() < task.limit, "{offset} octets in {:?}", task.limit);
    }
    stream.shutdown(Shutdown::Write)?;
    sink.report(opened.elapsed())
}
