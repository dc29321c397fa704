//! `stream_64`, `stream_1k`, `stream_64k`: a stream of `iwarp-tokio`, compared with a stream of the kernel's
//! TCP over loopback.
//!
//! Both streams are in this process, and have equal tasks: one task writes pieces, and another task reads the
//! pieces through a buffer, as programs do. The wire is the local wire between processes of one host. All
//! settings are defaults: no thread is pinned, engines sleep when no data move, and TCP joins short writes
//! (no TCP_NODELAY). Only `stream_64` sets TCP_NODELAY on the kernel's stream.

use std::time::{Duration, Instant};

use benches::errors::Error;
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, Listener};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::pair::alternate::{Comparison, Rate, alternate};

/// Maximum number of bytes that the reader reads at once.
const READ: usize = 64 << 10;

/// Number of bytes of a request.
const REQUEST: usize = 64;

/// Values of the first byte of a piece. `MORE` means that more pieces follow at once. `ANSWER` means that the
/// reader has to answer.
const MORE: u8 = 0;
const ANSWER: u8 = 1;

/// Moves pieces of `bytes` bytes over each stream.
///
/// # Errors
/// Returns the error of an endpoint or of a socket.
pub(crate) fn measure(bytes: usize, time: Duration) -> Result<Comparison, Error> {
    // One thread of the runtime reads, and this thread writes.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut ours = PieceWriter::new(&runtime, bytes, runtime.block_on(over_rdma())?);
    let mut theirs = PieceWriter::new(&runtime, bytes, runtime.block_on(over_tcp())?);
    let rates = alternate(
        time,
        [&mut |slice| runtime.block_on(ours.turn(slice)), &mut |slice| runtime.block_on(theirs.turn(slice))],
    )?;
    let [ours, theirs] = rates.map(|rate| rate.gigabytes_per_s());
    Ok(Comparison { ours, theirs, unit: "GB/s" })
}

/// Sends requests of 64 bytes over each stream, one at a time, and reads an answer of one byte to each
/// request.
///
/// # Errors
/// Returns the error of an endpoint or of a socket.
pub(crate) fn measure_trips(time: Duration) -> Result<Comparison, Error> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let over_tcp = runtime.block_on(over_tcp())?;
    for end in [&over_tcp.writer, &over_tcp.reader] {
        end.set_nodelay(true)?;
    }
    let mut ours = PieceWriter::new(&runtime, REQUEST, runtime.block_on(over_rdma())?);
    let mut theirs = PieceWriter::new(&runtime, REQUEST, over_tcp);
    let rates = alternate(
        time,
        [&mut |slice| runtime.block_on(ours.trips(slice)), &mut |slice| {
            runtime.block_on(theirs.trips(slice))
        }],
    )?;
    let [ours, theirs] = rates.map(|rate| rate.time.as_secs_f64() * 1e6 * REQUEST as f64 / rate.bytes as f64);
    Ok(Comparison { ours, theirs, unit: "us" })
}

/// A stream, and the endpoints that it needs.
struct StreamPair<S> {
    writer: S,
    reader: S,
}

async fn over_rdma() -> Result<StreamPair<iwarp_tokio::Stream>, Error> {
    let wire = format!("local:measure-{}", std::process::id());
    let (a, b) = (Endpoint::open(&wire).await.map_err(failed)?, Endpoint::open(&wire).await.map_err(failed)?);
    let listener = Listener::bind(&b, 1).map_err(failed)?;
    let accept = async {
        let accepted = listener.request().await?.accept(&ConnectionOptions::default()).await?;
        accepted.into_stream().await
    };
    let connect = async { Connection::connect(&a, (b.addresses()[0], 1)).await?.into_stream().await };
    let (writer, reader) = tokio::try_join!(connect, accept).map_err(failed)?;
    Ok(StreamPair { writer, reader })
}

async fn over_tcp() -> Result<StreamPair<TcpStream>, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let connect = TcpStream::connect(listener.local_addr()?);
    let (writer, (reader, _)) = tokio::try_join!(connect, listener.accept())?;
    Ok(StreamPair { writer, reader })
}

struct PieceWriter<S> {
    stream: S,
    piece: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> PieceWriter<S> {
    fn new(runtime: &Runtime, bytes: usize, pair: StreamPair<S>) -> Self {
        // The task ends when the stream ends.
        runtime.spawn(read(pair.reader, bytes));
        Self { stream: pair.writer, piece: vec![MORE; bytes] }
    }

    /// Writes for a slice, and waits until the reader has read all pieces.
    async fn turn(&mut self, slice: Duration) -> Result<Rate, Error> {
        let start = Instant::now();
        let mut pieces = 1;
        while start.elapsed() < slice {
            self.stream.write_all(&self.piece).await?;
            pieces += 1;
        }
        self.trip().await?;
        Ok(Rate { bytes: pieces * self.piece.len() as u64, time: start.elapsed() })
    }

    /// Writes pieces one at a time for a slice, and waits for the answer to each piece.
    async fn trips(&mut self, slice: Duration) -> Result<Rate, Error> {
        let start = Instant::now();
        let mut pieces = 0;
        while start.elapsed() < slice {
            self.trip().await?;
            pieces += 1;
        }
        Ok(Rate { bytes: pieces * self.piece.len() as u64, time: start.elapsed() })
    }

    /// Writes a piece that requests an answer, and reads the answer.
    async fn trip(&mut self) -> Result<(), Error> {
        self.piece[0] = ANSWER;
        self.stream.write_all(&self.piece).await?;
        self.piece[0] = MORE;
        self.stream.flush().await?;
        self.stream.read_u8().await?;
        Ok(())
    }
}

/// Reads pieces, and answers the pieces that request an answer.
async fn read<S: AsyncRead + AsyncWrite + Unpin>(stream: S, bytes: usize) -> std::io::Result<()> {
    let mut stream = BufReader::with_capacity(READ, stream);
    let mut piece = vec![0; bytes];
    loop {
        stream.read_exact(&mut piece).await?;
        if piece[0] == ANSWER {
            stream.write_u8(ANSWER).await?;
            stream.flush().await?;
        }
    }
}

fn failed(error: iwarp_tokio::Error) -> Error {
    std::io::Error::from(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_move_bytes() {
        for bytes in [1 << 10, 64 << 10] {
            let Comparison { ours, theirs, unit } = measure(bytes, Duration::from_millis(50)).unwrap();
            assert!(ours > 0.0 && theirs > 0.0 && unit == "GB/s");
        }
    }

    #[test]
    fn both_answer_requests() {
        let Comparison { ours, theirs, unit } = measure_trips(Duration::from_millis(50)).unwrap();
        assert!(ours.is_finite() && theirs.is_finite() && unit == "us");
    }
}
