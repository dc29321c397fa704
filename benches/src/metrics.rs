//! `--metrics ADDR`: the counters of all engines of the process, as Prometheus reads them.
//!
//! The text is that of [`iwarp::prometheus`]. The crate `metrics-exporter-prometheus` would bring hyper and a
//! runtime for its endpoint.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use iwarp::prometheus::{self, CONTENT_TYPE};
use iwarp::verbs::{Context, ContextStatus};

use crate::errors::Error;
use crate::shown;

/// How long the engines may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a client may be silent.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// The longest request that is read.
const LONGEST_REQUEST: usize = 8192;

/// Answers at `address` as long as the process lives. Returns the address with its port, if 0 was asked for.
///
/// # Errors
/// [`Error::System`] if the address cannot be used.
pub fn serve(address: SocketAddr) -> Result<SocketAddr, Error> {
    let failed = |source| Error::System { what: format!("--metrics {address}: cannot listen there"), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let run = move || {
        for client in listener.incoming() {
            // A client that has gone gets nothing.
            let _ = client.and_then(answer);
        }
    };
    std::thread::Builder::new().name("iwperf-metrics".into()).spawn(run).map_err(failed)?;
    Ok(address)
}

fn answer(mut client: TcpStream) -> io::Result<()> {
    client.set_read_timeout(Some(CLIENT_PATIENCE))?;
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let request = read_request(&mut client)?;
    let (status, body) = match request.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/metrics" | "/"] => ("200 OK", prometheus::text(&statuses())),
        ["GET", _] => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is possible\n".to_owned()),
    };
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn statuses() -> Vec<(u64, ContextStatus)> {
    let ask = |(number, context): (u64, Context)| (number, context.status(PATIENCE));
    shown::contexts().into_iter().map(ask).collect()
}

/// Reads a request to the end of its header. Returns its first line.
fn read_request(client: &mut impl Read) -> io::Result<String> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = client.read(&mut part)?;
        if count == 0 || request.len() > LONGEST_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.extend_from_slice(&part[..count]);
    }
    Ok(String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_with_its_header_and_is_bounded() {
        let first = |bytes: &[u8]| read_request(&mut &*bytes).ok();
        assert_eq!(first(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").as_deref(), Some("GET / HTTP/1.1"));
        assert_eq!(first(b"GET / HTTP/1.1\r\n"), None);
        assert_eq!(first(&[b'x'; 100_000]), None);
    }
}
