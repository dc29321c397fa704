//! `--metrics ADDR`: the counters of all engines of the process, in Prometheus's text format.
//!
//! [`iwarp::prometheus`] makes the responses.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use iwarp::prometheus;
use iwarp::verbs::{Context, ContextStatus};

use crate::errors::Error;
use crate::shown;

/// Maximum time that the engines may take to report their counters.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum time of a client for its request, and again for the response. During this time the next client
/// waits.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// Answers requests at `address` until the process ends. Returns the address. If the port is 0, the system
/// chooses a port, which is in the returned address.
///
/// # Errors
/// Returns [`Error::System`] if the address cannot be used, or if no thread can be created.
pub fn serve(address: SocketAddr) -> Result<SocketAddr, Error> {
    let failed = |source| Error::System { what: format!("--metrics {address}: cannot listen there"), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let run = move || {
        for client in listener.incoming() {
            // An error concerns only this client, for example if the client has gone.
            let _ = client.and_then(|client| answer(client, CLIENT_PATIENCE));
        }
    };
    std::thread::Builder::new().name("iwperf-metrics".into()).spawn(run).map_err(failed)?;
    Ok(address)
}

fn answer(mut client: TcpStream, patience: Duration) -> io::Result<()> {
    let begun = Instant::now();
    client.set_write_timeout(Some(patience))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    let line = loop {
        // One time limit covers all parts of the request, so the limit also ends a client that sends a byte
        // now and then.
        let left = patience.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => request.extend_from_slice(&part[..count]),
        }
        if let Some(line) = prometheus::request_line(&request)? {
            break line;
        }
    };
    client.write_all(prometheus::response(&line, statuses).as_bytes())
}

fn statuses() -> Vec<(u64, ContextStatus)> {
    let ask = |(number, context): (u64, Context)| (number, context.status(PATIENCE));
    shown::contexts().into_iter().map(ask).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_sends_a_byte_now_and_then_does_not_hold_up_the_next() {
        const LIMIT: Duration = Duration::from_secs(30);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let answered = scope.spawn(move || answer(server, Duration::from_millis(200)));
            // This client never finishes the header, and is never silent for long.
            while !answered.is_finished() && begun.elapsed() < LIMIT {
                // An error is ignored, since the server may have closed the connection.
                let _ = client.write_all(b"x");
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(client);
            let error = answered.join().unwrap().expect_err("no request came");
            assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        });
    }
}
