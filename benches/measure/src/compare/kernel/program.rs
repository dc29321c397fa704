//! The work of `kernel-tcp`: small messages over the kernel's TCP, as fast as an ordinary program can send
//! them without changes to the kernel. Nagle's algorithm is off. Receivers spin, except a sink with
//! `--block`, which sleeps until bytes arrive.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use benches::latency::{Distribution, Latencies, LatencySummary};
use serde::{Deserialize, Serialize};
use testing::lab::Result;
use testing::lab_error;

/// The line that a listening program prints when it listens.
pub(crate) const READY: &str = "ready";

/// Maximum number of bytes that the sink reads with one call.
const READ_BYTES: usize = 256 << 10;

/// Number of messages between two reads of the clock.
const STRIDE: u64 = 64;

/// The figures of a series of round trips.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RoundTrips {
    pub(crate) count: u64,
    /// Median in microseconds.
    pub(crate) median_us: f64,
    /// 99th percentile in microseconds.
    pub(crate) p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub(crate) p999_us: f64,
    /// Quantiles. Each quantile has the round trip in microseconds that this share of the round trips does
    /// not exceed.
    pub(crate) distribution: Distribution,
}

impl RoundTrips {
    /// Returns the figures of `count` round trips.
    pub(crate) fn of(latencies: &Latencies, count: u64) -> Self {
        let LatencySummary { typical_us, p99_us, p999_us, .. } = latencies.summary(count);
        Self { count, median_us: typical_us, p99_us, p999_us, distribution: latencies.distribution() }
    }
}

/// The figures of a receiving side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    /// Number of bytes after the first call, whose start time is not known.
    pub(crate) bytes: u64,
    /// Seconds from the return of the first call to the return of the last call.
    pub(crate) seconds: f64,
}

/// Listens, and prints [`READY`].
///
/// # Errors
/// Returns the error of a system call that failed.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    println!("{READY}");
    Ok(listener)
}

/// Sends the received bytes back, `size` bytes at a time, until the peer closes the connection.
///
/// # Errors
/// Returns the error of a system call that failed, or an error if the peer closes the connection within a
/// message.
pub(crate) fn pong(listener: &TcpListener, size: usize) -> Result<()> {
    let mut stream = accept(listener)?;
    stream.set_nonblocking(true)?;
    let mut message = vec![0; size];
    while spin_read(&mut stream, &mut message)? {
        spin_write(&mut stream, &message)?;
    }
    Ok(())
}

/// Measures `count` round trips of `size` bytes. Each round trip begins before the call that sends, and ends
/// when the last byte has returned.
///
/// # Errors
/// Returns the error of a system call that failed, or an error if the peer closes the connection too early.
pub(crate) fn ping(address: SocketAddr, size: usize, count: u64) -> Result<RoundTrips> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut latencies = Latencies::new(false);
    let mut message = vec![0x5a; size];
    // A tenth as many round trips run before the counted round trips, to warm up caches, clocks and the
    // congestion window.
    for number in 0..count + count / 10 {
        let sent = Instant::now();
        spin_write(&mut stream, &message)?;
        if !spin_read(&mut stream, &mut message)? {
            return Err(lab_error!("closed by the peer"));
        }
        if number >= count / 10 {
            latencies.record(sent.elapsed().as_nanos() as u64);
        }
    }
    Ok(RoundTrips::of(&latencies, count))
}

/// Reads and counts bytes until the peer closes the connection. If `block` is true and no bytes have arrived,
/// sleeps in the kernel.
///
/// # Errors
/// Returns the error of a system call that failed.
pub(crate) fn sink(listener: &TcpListener, block: bool) -> Result<Received> {
    let mut stream = accept(listener)?;
    stream.set_nonblocking(!block)?;
    let mut room = vec![0; READ_BYTES];
    if !is_open(read(&mut stream, &mut room)?) {
        return Ok(Received { bytes: 0, seconds: 0.0 });
    }
    let started = Instant::now();
    let (mut bytes, mut last) = (0, started);
    loop {
        match read(&mut stream, &mut room)? {
            Some(0) => break,
            Some(n) => (bytes, last) = (bytes + n as u64, Instant::now()),
            None => {}
        }
    }
    Ok(Received { bytes, seconds: (last - started).as_secs_f64() })
}

/// Sends messages of `size` bytes for `time`, with one call for each message.
///
/// # Errors
/// Returns the error of a system call that failed.
pub(crate) fn source(address: SocketAddr, size: usize, time: Duration) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let message = vec![0x5a; size];
    let started = Instant::now();
    while started.elapsed() < time {
        for _ in 0..STRIDE {
            stream.write_all(&message)?;
        }
    }
    Ok(())
}

pub(super) fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let (stream, _peer) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads once. Returns the number of bytes read, or `None` if no bytes have arrived.
fn read(stream: &mut TcpStream, room: &mut [u8]) -> Result<Option<usize>> {
    match stream.read(room) {
        Ok(n) => Ok(Some(n)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_open(read: Option<usize>) -> bool {
    read != Some(0)
}

/// Reads until `message` is full. Returns false if the peer closed the connection before the first byte.
fn spin_read(stream: &mut TcpStream, message: &mut [u8]) -> Result<bool> {
    let mut got = 0;
    while got < message.len() {
        match read(stream, &mut message[got..])? {
            Some(0) if got == 0 => return Ok(false),
            Some(0) => return Err(lab_error!("the peer closed within a message")),
            Some(n) => got += n,
            None => std::hint::spin_loop(),
        }
    }
    Ok(true)
}

pub(super) fn spin_write(stream: &mut TcpStream, message: &[u8]) -> Result<()> {
    let mut put = 0;
    while put < message.len() {
        match stream.write(&message[put..]) {
            Ok(n) => put += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Runs `server` in a thread, and calls `client` with the address of the server's listener.
    fn with_server<S: Send + 'static, C>(
        server: impl FnOnce(&TcpListener) -> Result<S> + Send + 'static,
        client: impl FnOnce(SocketAddr) -> Result<C>,
    ) -> (S, C) {
        // Port 0 means any free port.
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || server(&listener));
        let told = client(address).unwrap();
        (server.join().unwrap().unwrap(), told)
    }

    #[test]
    fn round_trips_are_counted_and_ordered() {
        let ((), trips) = with_server(|listener| pong(listener, 64), |address| ping(address, 64, 200));
        assert_eq!(trips.count, 200);
        assert!(trips.distribution.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{trips:?}");
        let [(_, least), .., (_, most)] = trips.distribution[..] else { panic!("{trips:?}") };
        let figures = [least, trips.median_us, trips.p99_us, trips.p999_us, most];
        assert!(least > 0.0 && figures.is_sorted(), "{trips:?}");
    }

    #[test]
    fn a_sink_counts_what_came_behind_its_first_call() {
        for block in [false, true] {
            let time = Duration::from_millis(100);
            let (taken, ()) =
                with_server(move |listener| sink(listener, block), |address| source(address, 64, time));
            assert!(taken.bytes > 0 && taken.seconds > 0.0, "{taken:?}");
        }
    }

    #[test]
    fn a_peer_that_sends_nothing_is_nothing_taken() {
        let connect = |address| Ok(TcpStream::connect(address)?.local_addr()?);
        let (taken, _closed) = with_server(|listener| sink(listener, true), connect);
        assert_eq!((taken.bytes, taken.seconds), (0, 0.0));
    }
}
