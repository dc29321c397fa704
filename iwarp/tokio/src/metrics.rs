//! The counters of an endpoint, and an exporter for Prometheus.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use iwarp::prometheus;
use iwarp::verbs::ContextStatus;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::error::Result;

/// Maximum time for engines to answer. An engine answers in its next poll.
const ENGINES: Duration = Duration::from_millis(500);
/// Maximum time for which the exporter serves a client.
const CLIENT: Duration = Duration::from_secs(5);
/// Maximum number of clients of the exporter at a time. Further clients wait in the queue of the listener.
const MAX_CLIENTS: usize = 64;

impl Endpoint {
    /// Returns the current addresses, connections and counters of the endpoint's engines.
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
    /// [`Error::System`](crate::Error::System) if the listener fails to accept clients.
    pub async fn serve_metrics(&self, listener: TcpListener) -> Result<()> {
        let serve = |client| {
            let endpoint = self.clone();
            // A client that has gone or is too slow receives no answer.
            async move { drop(timeout(CLIENT, answer(&endpoint, client)).await) }
        };
        accept(listener, MAX_CLIENTS, serve).await
    }
}

/// Gives each client to a task that serves it, with at most `max_clients` tasks at a time.
async fn accept<F>(listener: TcpListener, max_clients: usize, serve: impl Fn(TcpStream) -> F) -> Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(max_clients));
    loop {
        // This cannot fail, since no code closes the semaphore.
        let place = places.clone().acquire_owned().await;
        let (client, _) = listener.accept().await?;
        let served = serve(client);
        tokio::spawn(async move {
            served.await;
            drop(place);
        });
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn clients_beyond_the_limit_wait() {
        const CLIENTS: usize = 6;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let serve = {
            let counts = counts.clone();
            move |_client| {
                let counts = counts.clone();
                async move {
                    let [now, most, done] = &*counts;
                    most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    // Without a limit, the other clients would be accepted during this loop.
                    for _ in 0..1000 {
                        tokio::task::yield_now().await;
                    }
                    now.fetch_sub(1, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let accepting = tokio::spawn(accept(listener, 2, serve));
        let [_, most, done] = &*counts;
        let all = async {
            while done.load(Ordering::Relaxed) < CLIENTS {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), all).await.expect("each client gets its turn");
        accepting.abort();
        assert_eq!(most.load(Ordering::Relaxed), 2);
    }
}
