//! The counters of an endpoint, and an exporter for Prometheus.

use std::io;
use std::time::Duration;

use iwarp::prometheus::{self, CONTENT_TYPE};
use iwarp::verbs::ContextStatus;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::error::Result;

/// How long engines may take to answer. They do so between two polls.
const ENGINES: Duration = Duration::from_millis(500);
/// How long a client may take.
const CLIENT: Duration = Duration::from_secs(5);
/// The longest request that is read.
const LONGEST_REQUEST: usize = 8192;

impl Endpoint {
    /// Addresses, connections and counters of its engines, as they are now.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the runtime shuts down.
    pub async fn status(&self) -> Result<ContextStatus> {
        let context = self.context().clone();
        let status = tokio::task::spawn_blocking(move || context.status(ENGINES)).await;
        Ok(status.map_err(io::Error::from)?)
    }

    /// Answers Prometheus with all counters ([`iwarp::prometheus`]), until the future is dropped. A program
    /// with an exporter of its own gives it [`status`](Self::status) by `iwarp::metrics::publish`.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the listener takes no clients any more.
    pub async fn serve_metrics(&self, listener: TcpListener) -> Result<()> {
        loop {
            let (client, _) = listener.accept().await?;
            let endpoint = self.clone();
            // A client that has gone, or is too slow, gets nothing.
            tokio::spawn(async move { timeout(CLIENT, answer(&endpoint, client)).await });
        }
    }
}

async fn answer(endpoint: &Endpoint, mut client: TcpStream) -> Result<()> {
    let request = read_request(&mut client).await?;
    let (status, body) = match request.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/metrics" | "/"] => ("200 OK", prometheus::text(&[(0, endpoint.status().await?)])),
        ["GET", _] => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is possible\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    client.write_all(&[head, body].concat().into_bytes()).await?;
    Ok(client.shutdown().await?)
}

/// Reads a request to the end of its header. Returns its first line.
async fn read_request(client: &mut TcpStream) -> Result<String> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if client.read_buf(&mut request).await? == 0 || request.len() > LONGEST_REQUEST {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        }
    }
    Ok(String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned())
}
