//! Publishes all counters through the facade `metrics` (feature `metrics`). The facade passes the counters to
//! the exporter that the program has installed.
//!
//! The data path does no extra work for this, since [`publish`] publishes a snapshot of counters that exist
//! already. Call `publish` periodically, for example before each scrape:
//!
//! ```
//! # use std::time::Duration;
//! # use iwarp::verbs::{Context, ContextConfig};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new(ContextConfig::default())?;
//! iwarp::metrics::describe();
//! iwarp::metrics::publish(&context.status(Duration::from_millis(100)));
//! # Ok(())
//! # }
//! ```
//!
//! The name of a metric is the prefix of a layer and the name of a field: `uwarp_` ([`EngineCounters`]),
//! `uwarp_tcp_` ([`StackCounters`](tcp_lite::StackCounters)), `uwarp_port_`
//! ([`PortCounters`](dp::PortCounters)). The names of counters end in `_total`:
//! `uwarp_tcp_tx_retransmits_total`. The labels of these metrics are the index of the engine and the name of
//! its port. The memory and the queue pairs of the context are gauges without labels.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use crate::verbs::{ContextStatus, EngineCounters};

/// Describes each metric, for exporters that show descriptions. One call per process is enough.
pub fn describe() {
    EngineCounters::default().for_each(&mut |metric| match metric.is_total {
        true => describe_counter!(metric.name, metric.help()),
        false => describe_gauge!(metric.name, metric.help()),
    });
    describe_gauge!("uwarp_queue_pairs", "Queue pairs, connected or not.");
    describe_gauge!("uwarp_memory_regions", "Registered memory regions.");
    describe_gauge!("uwarp_registered_bytes", "Bytes of registered memory.");
    describe_gauge!("uwarp_tcp_connections", "TCP connections that the engine carries.");
}

/// Publishes the status of a context and its engines. The metrics of an engine that has not answered keep
/// their last values.
pub fn publish(status: &ContextStatus) {
    gauge!("uwarp_queue_pairs").set(status.usage.qp.used as f64);
    gauge!("uwarp_memory_regions").set(status.usage.mr.used as f64);
    gauge!("uwarp_registered_bytes").set(status.registered_bytes as f64);
    for engine in &status.engines {
        let labels = [("engine", engine.index.to_string()), ("port", engine.port.clone())];
        gauge!("uwarp_tcp_connections", &labels).set(engine.connections.len() as f64);
        publish_counters(&engine.counters, &labels);
    }
}

/// Publishes the counters of an engine with labels of the caller's choice. Use this function in a program
/// that gets the counters from [`EngineThread::counters`](crate::engine::EngineThread::counters).
pub fn publish_counters(counters: &EngineCounters, labels: &[(&'static str, String)]) {
    counters.for_each(&mut |metric| match metric.is_total {
        true => counter!(metric.name, labels).absolute(metric.value),
        false => gauge!(metric.name, labels).set(metric.value as f64),
    });
}
