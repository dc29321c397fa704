//! Tests the counters that an endpoint serves.

use std::time::{Duration, Instant};

use iwarp_tokio::{Connection, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{PORT, SERVER, endpoints};

const PATIENCE: Duration = Duration::from_secs(20);

async fn get(address: std::net::SocketAddr, request: &str) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(crate = "crate::limited")]
async fn prometheus_gets_the_counters() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let (a, b) = tokio::try_join!(Connection::connect(&client, SERVER), listener.accept()).unwrap();
    a.send(b"counted").await.unwrap();
    b.recv().await.unwrap();
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = http.local_addr().unwrap();
    let exporter = tokio::spawn(async move { server.serve_metrics(http).await });
    let begun = Instant::now();
    let answer = loop {
        let answer = get(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        // The answer does not contain an engine that was not polled in time.
        if answer.contains("\nuwarp_port_rx_frames_total{") {
            break answer;
        }
        assert!(begun.elapsed() < PATIENCE, "{answer}");
    };
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nuwarp_tcp_connections{context=\"0\"} 1\n"), "{body}");
    let received = body.lines().find(|line| line.starts_with("uwarp_port_rx_frames_total{")).unwrap();
    assert!(received.rsplit(' ').next().unwrap().parse::<u64>().unwrap() > 3, "{received}");
    assert!(get(address, "GET /x HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
    assert!(get(address, "PUT / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405 "));
    exporter.abort();
    let status = loop {
        let status = client.status().await.unwrap();
        if status.silent.is_empty() {
            break status;
        }
        assert!(begun.elapsed() < 2 * PATIENCE, "{status:?}");
    };
    assert_eq!(status.engines[0].connections.len(), 1);
}
