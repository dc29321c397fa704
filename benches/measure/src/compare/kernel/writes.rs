//! The work of `kernel-iwarp`: RDMA Writes over the kernel's sockets, as a user without DPDK would write
//! them. The FPDUs are those of [`crate::fpdus`], and the TCP is `std::net::TcpStream`.
//!
//! The sender frames as many FPDUs as fit into its buffer, computes their CRCs, and hands the FPDUs to the
//! kernel with one call. The target reads the FPDUs, checks each CRC, and places the payload into its region
//! within bounds. The program is simpler than iWARP: it has no startup exchange, markers, queue pairs,
//! completions or registered memory.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use benches::latency::Latencies;
use testing::lab::Result;
use testing::{ensure, lab_error};

use super::program::{Received, RoundTrips, accept, spin_write};
use crate::fpdus::{Target, Writer};
use crate::pattern;

/// Number of bytes of the buffers between FPDUs and the kernel. A buffer holds several of the longest FPDUs,
/// and fits into a second-level cache.
const BUFFER_BYTES: usize = 256 << 10;

/// Seed for the bytes of every message.
const SEED: u64 = 5;

/// Sends messages of `size` bytes for `time`, as FPDUs for segments of `emss` bytes. The last message is
/// always complete.
///
/// # Errors
/// Returns the error of a system call that failed.
pub(crate) fn write(address: SocketAddr, size: usize, emss: usize, time: Duration) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut writer = Writer::new(pattern::bytes(SEED, size), emss);
    let mut buffer = vec![0; BUFFER_BYTES];
    writer.resume();
    let started = Instant::now();
    while started.elapsed() < time {
        send(&mut stream, &mut writer, &mut buffer)?;
    }
    writer.stop_at_end();
    while !writer.is_done() {
        send(&mut stream, &mut writer, &mut buffer)?;
    }
    Ok(())
}

/// Sends as many FPDUs as fit into `buffer` with one call.
fn send(stream: &mut TcpStream, writer: &mut Writer, buffer: &mut [u8]) -> Result<()> {
    let framed = frame(writer, buffer);
    Ok(stream.write_all(&buffer[..framed])?)
}

/// Frames as many FPDUs as fit into `buffer`. Returns the number of bytes of these FPDUs.
fn frame(writer: &mut Writer, buffer: &mut [u8]) -> usize {
    let mut framed = 0;
    while let Some(bytes) = writer.next_bytes()
        && let Some(room) = buffer.get_mut(framed..framed + bytes)
    {
        writer.frame(room);
        framed += bytes;
    }
    framed
}

/// Places messages of `size` bytes until the peer closes the connection, and then compares the region with
/// the sent message.
///
/// # Errors
/// Fails if a system call fails, or if an FPDU or a byte is wrong.
pub(crate) fn place(listener: &TcpListener, size: usize) -> Result<Received> {
    let mut end = End::new(accept(listener)?, size);
    if end.receive()? == Some(0) {
        return Ok(Received { bytes: 0, seconds: 0.0 });
    }
    let (started, before) = (Instant::now(), end.target.placed_bytes());
    let mut last = started;
    while end.receive()? != Some(0) {
        last = Instant::now();
    }
    ensure!(end.held == 0, "the peer closed within an FPDU");
    end.compare()?;
    Ok(Received { bytes: end.target.placed_bytes() - before, seconds: (last - started).as_secs_f64() })
}

/// Answers each Write of `size` bytes with a Write until the peer closes the connection.
///
/// # Errors
/// Fails if a system call fails, or if an FPDU or a byte is wrong.
pub(crate) fn pong(listener: &TcpListener, size: usize, emss: usize) -> Result<()> {
    let mut end = End::spinning(accept(listener)?, size)?;
    let mut writer = Writer::new(pattern::bytes(SEED, size), emss);
    let mut buffer = vec![0; BUFFER_BYTES];
    while end.spin_for_write(size)? {
        answer(&mut end.stream, &mut writer, &mut buffer)?;
    }
    end.compare()
}

/// Measures `count` round trips of Writes of `size` bytes. Each round trip begins before the Write is framed,
/// and ends when the answer is placed.
///
/// # Errors
/// Fails if a system call fails, or if an FPDU or a byte is wrong.
pub(crate) fn ping(address: SocketAddr, size: usize, emss: usize, count: u64) -> Result<RoundTrips> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut end = End::spinning(stream, size)?;
    let mut writer = Writer::new(pattern::bytes(SEED, size), emss);
    let (mut buffer, mut latencies) = (vec![0; BUFFER_BYTES], Latencies::new(false));
    // A tenth as many round trips run before the counted round trips, as in the ping-pong without iWARP.
    for number in 0..count + count / 10 {
        let sent = Instant::now();
        answer(&mut end.stream, &mut writer, &mut buffer)?;
        ensure!(end.spin_for_write(size)?, "closed by the peer");
        if number >= count / 10 {
            latencies.record(sent.elapsed().as_nanos() as u64);
        }
    }
    end.compare()?;
    Ok(RoundTrips::of(&latencies, count))
}

/// Sends the message once.
fn answer(stream: &mut TcpStream, writer: &mut Writer, buffer: &mut [u8]) -> Result<()> {
    writer.begin_again();
    while !writer.is_done() {
        let framed = frame(writer, buffer);
        spin_write(stream, &buffer[..framed])?;
    }
    Ok(())
}

/// The receiving half of a side.
struct End {
    stream: TcpStream,
    target: Target,
    buffer: Vec<u8>,
    /// Number of bytes at the front of the buffer that belong to an incomplete FPDU.
    held: usize,
}

impl End {
    fn new(stream: TcpStream, size: usize) -> Self {
        Self { stream, target: Target::new(size), buffer: vec![0; BUFFER_BYTES], held: 0 }
    }

    /// Makes a side whose reads do not wait in the kernel.
    fn spinning(stream: TcpStream, size: usize) -> Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self::new(stream, size))
    }

    /// Reads once, and places the complete FPDUs. Returns the number of bytes read, which is 0 if the peer
    /// has closed the connection, or `None` if no bytes have arrived.
    fn receive(&mut self) -> Result<Option<usize>> {
        let read = match self.stream.read(&mut self.buffer[self.held..]) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let held = self.held + read;
        let taken = self.target.take(&self.buffer[..held], false).map_err(|error| lab_error!("{error}"))?;
        self.buffer.copy_within(taken..held, 0);
        self.held = held - taken;
        Ok(Some(read))
    }

    /// Spins until `size` more bytes are placed. Returns false if the peer closed the connection before the
    /// first of these bytes.
    fn spin_for_write(&mut self, size: usize) -> Result<bool> {
        let before = self.target.placed_bytes();
        let whole = before + size as u64;
        while self.target.placed_bytes() < whole {
            match self.receive()? {
                Some(0) if self.held == 0 && self.target.placed_bytes() == before => return Ok(false),
                Some(0) => return Err(lab_error!("the peer closed within a Write")),
                Some(_) => {}
                None => std::hint::spin_loop(),
            }
        }
        Ok(true)
    }

    /// Compares the region with the message that was sent.
    fn compare(&self) -> Result<()> {
        let placed = self.target.placed();
        match pattern::difference(&pattern::bytes(SEED, placed.len()), placed) {
            None => Ok(()),
            Some(at) => Err(lab_error!("byte {at} differs from the byte sent")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Listens on any free port.
    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn what_is_written_is_placed_and_compared() {
        for (size, emss) in [(1 << 20, 1448), (1 << 20, 65_000), (64, 1448)] {
            let (listener, address) = listener();
            let target = thread::spawn(move || place(&listener, size));
            write(address, size, emss, Duration::from_millis(100)).unwrap();
            let placed = target.join().unwrap().unwrap();
            assert!(placed.bytes > 0 && placed.seconds > 0.0, "{size} {emss}: {placed:?}");
        }
    }

    #[test]
    fn a_wrong_byte_on_the_wire_is_an_error() {
        let (listener, address) = listener();
        let target = thread::spawn(move || place(&listener, 1000));
        let mut writer = Writer::new(pattern::bytes(SEED, 1000), 1448);
        writer.begin_again();
        let mut buffer = vec![0; BUFFER_BYTES];
        let framed = frame(&mut writer, &mut buffer);
        buffer[100] ^= 1;
        TcpStream::connect(address).unwrap().write_all(&buffer[..framed]).unwrap();
        assert!(target.join().unwrap().unwrap_err().to_string().contains("CRC"));
    }

    #[test]
    fn another_message_than_the_expected_is_an_error() {
        let (listener, address) = listener();
        let target = thread::spawn(move || place(&listener, 1000));
        let mut writer = Writer::new(pattern::bytes(SEED + 1, 1000), 1448);
        writer.begin_again();
        send(&mut TcpStream::connect(address).unwrap(), &mut writer, &mut vec![0; BUFFER_BYTES]).unwrap();
        assert!(target.join().unwrap().unwrap_err().to_string().contains("differs"));
    }

    #[test]
    fn a_write_goes_there_and_back() {
        let (listener, address) = listener();
        let server = thread::spawn(move || pong(&listener, 64, 1448));
        let trips = ping(address, 64, 1448, 200).unwrap();
        server.join().unwrap().unwrap();
        assert!(trips.count == 200 && trips.median_us > 0.0, "{trips:?}");
    }
}
