//! The counters of an endpoint, and an exporter for Prometheus.

use std::io;
use std::time::Duration;

use iwarp::prometheus;
use iwarp::verbs::ContextStatus;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::error::Result;

/// How long engines may take to answer. An engine answers between two polls.
const ENGINES: Duration = Duration::from_millis(500);
/// How long a client of the exporter may take.
const CLIENT: Duration = Duration::from_secs(5);

impl Endpoint {
    /// The present addresses, connections and counters of its engines.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the runtime shuts down.
    pub async fn status(&self) -> Result<ContextStatus> {
        let context = self.context().clone();
        let status = tokio::task::spawn_blocking(move || context.status(ENGINES)).await;
        Ok(status.map_err(io::Error::from)?)
    }

    /// Serves all counters to Prometheus ([`iwarp::prometheus`]) until the future is dropped. A program with
    /// its own exporter passes [`status`](Self::status) to `iwarp::metrics::publish` instead.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the listener takes no clients any more.
    pub async fn serve_metrics(&self, listener: TcpListener) -> Result<()> {
        loop {
            let (client, _) = listener.accept().await?;
            let endpoint = self.clone();
            // A client that has gone or is too slow gets no answer.
            tokio::spawn(async move { timeout(CLIENT, answer(&endpoint, client)).await });
        }
    }
}

async fn answer(endpoint: &Endpoint, mut client: TcpStream) -> Result<()> {
    let mut request = Vec::new();
    let line = loop {
        if client.read_buf(&mut request).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if let Some(line) = prometheus::request_line(&request)? {
            break line;
        }
    };
    let context = endpoint.context().clone();
    let answer = move || prometheus::response(&line, || vec![(0, context.status(ENGINES))]);
    let response = tokio::task::spawn_blocking(answer).await.map_err(io::Error::from)?;
    client.write_all(response.as_bytes()).await?;
    Ok(client.shutdown().await?)
}
