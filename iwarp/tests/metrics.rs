//! The counters and gauges that the crate `metrics` receives. A program can have only one recorder, so this
//! test is a program of its own.
#![cfg(feature = "metrics")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig, EngineCounters, ThreadOptions};
use iwarp::memory::Access;
use iwarp::verbs::{Context, ContextConfig};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// The values by name and labels, and the descriptions by name, as the recorder received them.
#[derive(Clone, Default)]
struct Kept {
    values: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
    descriptions: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Kept {
    fn value(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::clone(self.values.lock().unwrap().entry(name).or_default())
    }

    fn describe(&self, name: &KeyName, description: &SharedString) {
        self.descriptions.lock().unwrap().insert(name.as_str().to_owned(), description.to_string());
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&name, &description);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&name, &description);
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.value(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.value(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn every_counter_is_published_and_described() {
    let kept = Kept::default();
    metrics::set_global_recorder(kept.clone()).unwrap_or_else(|_| panic!("another recorder"));
    let (port, _other) = pair(&LinkConfig::default());
    let name = port.info().name.clone();
    let context = Context::new(ContextConfig::default()).unwrap();
    let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
    let _engine = Engine::new(&context, port, config).unwrap().spawn(ThreadOptions::default()).unwrap();
    let _mr = context.alloc_pd().unwrap().reg_mr(4096, Access::LOCAL_WRITE).unwrap();

    // One poll may answer several status requests, and is counted only at its end.
    let status = (0..1000)
        .map(|_| context.status(Duration::from_secs(10)))
        .find(|status| status.engines[0].counters.polls > 0)
        .expect("a poll that has ended");
    iwarp::metrics::describe();
    iwarp::metrics::publish(&status);
    let counters: EngineCounters = status.engines[0].counters;
    let values = kept.values.lock().unwrap();
    let value = |name: &str| values.get(name).unwrap_or_else(|| panic!("no {name}")).load(Ordering::Relaxed);
    let mut all = 0;
    counters.for_each(&mut |metric| {
        all += 1;
        let published = value(&format!("{}{{engine=0,port={name}}}", metric.name));
        let wanted = if metric.is_total { metric.value } else { (metric.value as f64).to_bits() };
        assert_eq!(published, wanted, "{}", metric.name);
        assert!(!kept.descriptions.lock().unwrap()[metric.name].is_empty(), "{}", metric.name);
    });
    assert!(all > 80, "{all} counters");
    assert!(value(&format!("uwarp_polls_total{{engine=0,port={name}}}")) > 0);
    assert!(
        value(&format!("uwarp_tcp_tx_assertions_total{{engine=0,port={name}}}"))
            == counters.stack.tx_assertions
    );
    assert_eq!(f64::from_bits(value("uwarp_registered_bytes{}")), 4096.0);
    assert_eq!(values.len(), all + 4, "the gauges of the context, and the connections of the engine");
}
