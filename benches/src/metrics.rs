//! `--metrics ADDR`: the counters of all engines of the process, as Prometheus reads them.
//!
//! The answers are those of [`iwarp::prometheus`]. The crate `metrics-exporter-prometheus` would bring hyper
//! and a runtime for its endpoint.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use iwarp::prometheus;
use iwarp::verbs::{Context, ContextStatus};

use crate::errors::Error;
use crate::shown;

/// How long the engines may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a client may be silent.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

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
    let mut request = Vec::new();
    let mut part = [0; 1024];
    let line = loop {
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
