//! The metrics of contexts in Prometheus's text format, version 0.0.4, and the HTTP responses of an exporter.
//!
//! When a client requests the text, the text is made from a snapshot. Exporter crates have many dependencies:
//! `prometheus_exporter` 0.8 brings 57 crates and `metrics-exporter-prometheus` 0.18 brings 66. Both have a
//! registry, which a timer would have to fill. Both answer requests for any path and method, and never
//! disconnect a silent client. A program with its own exporter uses `iwarp::metrics` (feature `metrics`).

mod http;

pub use http::{request_line, response};

use std::fmt::Write as _;

use dp::Metric;

use crate::verbs::ContextStatus;

/// The content type of [`text`] in HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics of several contexts as text. The program chooses a number for each context, which is
/// the value of the label `context`.
///
/// The names of the counters are those of [`EngineCounters`](crate::engine::EngineCounters), as in
/// `iwarp::metrics` (feature `metrics`).
pub fn text(statuses: &[(u64, ContextStatus)]) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&ContextStatus) -> u64| {
        header(&mut text, name, help, "gauge");
        for (context, status) in statuses {
            add(&mut text, format_args!("{name}{{context=\"{context}\"}} {}", value(status)));
        }
    };
    gauge("uwarp_queue_pairs", "Queue pairs, connected or not.", &|status| status.usage.qp.used as u64);
    gauge("uwarp_memory_regions", "Registered memory regions.", &|status| status.usage.mr.used as u64);
    gauge("uwarp_registered_bytes", "Bytes of registered memory.", &|status| status.registered_bytes);
    gauge("uwarp_tcp_connections", "TCP connections of all engines.", &|status| {
        status.engines.iter().map(|engine| engine.connections.len() as u64).sum()
    });
    let mut engines = Vec::new();
    for (context, status) in statuses {
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
    use std::time::Duration;

    use super::*;
    use crate::verbs::{Context, ContextConfig};

    #[test]
    fn a_context_without_engines_has_its_gauges() {
        let context = Context::new(ContextConfig::default()).unwrap();
        let text = text(&[(3, context.status(Duration::ZERO))]);
        assert!(text.contains("\nuwarp_registered_bytes{context=\"3\"} 0\n"), "{text}");
        assert!(text.contains("# TYPE uwarp_queue_pairs gauge\n"), "{text}");
    }
}
