//! A stream over the kernel's TCP.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sockopt};

use super::{Direction, Opener, Report, Sink, Source, Task};
use crate::lab::Result;
use crate::{ensure, lab_error};

/// Size in bytes of the receive buffer if the reader pauses. The buffer is small, so that the window closes.
const RECEIVE_BUFFER: usize = 64 << 10;

/// Distance in bytes between two urgent bytes.
const URGENT: usize = 8192;

/// `MSG_FASTOPEN`, which rustix does not define.
const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);

/// Opens, transfers and closes the stream. Calls `ready` when the socket listens, or before the socket
/// connects.
///
/// # Errors
/// If the kernel's TCP reports an error, if a byte is wrong or missing, or if the time limit has passed.
pub fn run(task: &Task, ready: impl FnOnce()) -> Result<Report> {
    let opened = Instant::now();
    let mut source = Source::new(task);
    let mut stream = open(task, &mut source, ready)?;
    // Our stack uses CUBIC; the default of the kernel may differ.
    sockopt::set_tcp_congestion(&stream, "cubic").map_err(std::io::Error::from)?;
    if let Some(seconds) = task.options.keepalive {
        probe(&stream, Duration::from_secs(seconds)).map_err(std::io::Error::from)?;
    }
    stream.set_read_timeout(Some(task.limit))?;
    stream.set_write_timeout(Some(task.limit))?;
    match task.direction {
        Direction::Send => send(&mut stream, source, task, opened),
        Direction::Receive => receive(&mut stream, task, opened),
    }
}

fn open(task: &Task, source: &mut Source, ready: impl FnOnce()) -> Result<TcpStream> {
    match task.opener {
        Opener::Passive(port) => {
            // The listener also accepts IPv4 connections, with mapped addresses.
            let listener = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
            if task.options.pause().is_some() {
                // Accepted connections inherit the option.
                sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BUFFER)
                    .map_err(std::io::Error::from)?;
            }
            ready();
            Ok(listener.accept()?.0)
        }
        Opener::Active(peer) if task.options.fast_open || task.options.multipath => {
            ready();
            Ok(connect(task, peer, source).map_err(std::io::Error::from)?)
        }
        Opener::Active(peer) => {
            ready();
            Ok(TcpStream::connect_timeout(&peer, task.limit)?)
        }
    }
}

/// Connects with options that the standard library does not support.
fn connect(task: &Task, peer: SocketAddr, source: &mut Source) -> rustix::io::Result<TcpStream> {
    let family = if peer.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let protocol = task.options.multipath.then_some(ipproto::MPTCP);
    let socket = rustix::net::socket(family, SocketType::STREAM, protocol)?;
    if task.options.fast_open {
        let taken = rustix::net::sendto(&socket, source.next(), FAST_OPEN, &peer)?;
        source.take(taken);
    } else {
        rustix::net::connect(&socket, &peer)?;
    }
    Ok(socket.into())
}

fn probe(stream: &TcpStream, every: Duration) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, every)?;
    sockopt::set_tcp_keepintvl(stream, every)?;
    sockopt::set_tcp_keepcnt(stream, 1)
}

fn send(stream: &mut TcpStream, mut source: Source, task: &Task, opened: Instant) -> Result<Report> {
    let mut pause = task.options.pause();
    while !source.next().is_empty() {
        let bytes = if task.options.urgent {
            let next = source.next();
            let chunk = &next[..next.len().min(URGENT)];
            let (urgent, others) = chunk.split_last().ok_or_else(|| lab_error!("the chunk is empty"))?;
            stream.write_all(others)?;
            rustix::net::send(&*stream, &[*urgent], SendFlags::OOB).map_err(std::io::Error::from)?;
            chunk.len()
        } else {
            stream.write(source.next())?
        };
        source.take(bytes);
        if source.is_half() {
            thread::sleep(pause.take().unwrap_or_default());
        }
    }
    stream.shutdown(Shutdown::Write)?;
    let more = stream.read(&mut [0u8; 1])?;
    ensure!(more == 0, "the peer sent bytes although it has none to send");
    Ok(source.report(opened.elapsed()))
}

fn receive(stream: &mut TcpStream, task: &Task, opened: Instant) -> Result<Report> {
    let mut sink = Sink::new(task);
    let mut buffer = vec![0u8; 1 << 16];
    let mut offset = 0;
    let mut pause = task.options.pause();
    loop {
        if sink.is_half() {
            thread::sleep(pause.take().unwrap_or_default());
        }
        let bytes = stream.read(&mut buffer)?;
        if bytes == 0 {
            break;
        }
        sink.put(offset, &buffer[..bytes])?;
        offset += bytes as u64;
        ensure!(opened.elapsed() < task.limit, "{offset} bytes in {:?}", task.limit);
    }
    stream.shutdown(Shutdown::Write)?;
    sink.report(opened.elapsed())
}
