//! `--metrics ADDR`: the counters of all engines of the process, as Prometheus reads them.
//!
//! The engines list their counters themselves ([`EngineCounters::for_each`](iwarp::engine::EngineCounters)),
//! so the text is a loop over them. The crate `metrics-exporter-prometheus` would bring hyper and a runtime
//! for its endpoint, and without that it has the loop alone, behind a registry that nothing here needs.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use dp::Metric;
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
        ["GET", "/metrics" | "/"] => ("200 OK", text(&shown::contexts())),
        ["GET", _] => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is possible\n".to_owned()),
    };
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
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

/// The metrics of the contexts, in Prometheus' text format.
fn text(contexts: &[(u64, Context)]) -> String {
    let statuses: Vec<(u64, ContextStatus)> =
        contexts.iter().map(|(number, context)| (*number, context.status(PATIENCE))).collect();
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&ContextStatus) -> u64| {
        header(&mut text, name, help, "gauge");
        for (context, status) in &statuses {
            add(&mut text, format_args!("{name}{{context=\"{context}\"}} {}", value(status)));
        }
    };
    gauge("uwarp_queue_pairs", "Queue pairs, connected or not.", &|status| status.usage.qp.used as u64);
    gauge("uwarp_memory_regions", "Registered memory regions.", &|status| status.usage.mr.used as u64);
    gauge("uwarp_registered_bytes", "Bytes of registered memory.", &|status| status.registered_bytes);
    gauge("uwarp_connections", "TCP connections of all engines.", &|status| {
        status.engines.iter().map(|engine| engine.connections.len() as u64).sum()
    });
    let mut engines = Vec::new();
    for (context, status) in &statuses {
        for engine in &status.engines {
            let mut metrics = Vec::new();
            engine.counters.for_each(&mut |metric| metrics.push(metric));
            engines.push((format!("{{context=\"{context}\",engine=\"{}\"}}", engine.index), metrics));
        }
    }
    let Some((_, first)) = engines.first() else { return text };
    // Each engine lists the same metrics in the same order.
    for (index, Metric { name, is_total, .. }) in first.iter().enumerate() {
        header(&mut text, name, &first[index].help(), if *is_total { "counter" } else { "gauge" });
        for (labels, metrics) in &engines {
            add(&mut text, format_args!("{name}{labels} {}", metrics[index].value));
        }
    }
    text
}

fn header(text: &mut String, name: &str, help: &str, kind: &str) {
    add(text, format_args!("# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n")));
    add(text, format_args!("# TYPE {name} {kind}"));
}

fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a `String` does not fail.
    let _ = writeln!(text, "{line}");
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

    #[test]
    fn a_context_without_engines_has_its_gauges() {
        let context = Context::new(Default::default()).unwrap();
        let text = text(&[(3, context)]);
        assert!(text.contains("\nuwarp_registered_bytes{context=\"3\"} 0\n"), "{text}");
        assert!(text.contains("# TYPE uwarp_queue_pairs gauge\n"), "{text}");
    }
}
