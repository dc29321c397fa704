//! `--metrics ADDR`: the counters of all engines of the process, as Prometheus reads them.
//!
//! [`iwarp::prometheus`] makes the answers. The crate `metrics-exporter-prometheus` would add hyper and a
//! runtime for its endpoint.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use iwarp::prometheus;
use iwarp::verbs::{Context, ContextStatus};

use crate::errors::Error;
use crate::shown;

/// Maximum time for the engines to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum silence of a client.
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
            // An error only means that the client has gone.
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
