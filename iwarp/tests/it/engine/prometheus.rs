//! The text for Prometheus: the text's format (version 0.0.4), and Prometheus' rules for names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig, EngineThread, ThreadOptions};
use iwarp::prometheus;
use iwarp::verbs::{Context, ContextConfig};

/// A metric of the text.
#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    samples: usize,
}

/// Returns the metrics of a text. Checks that the text follows the format: help and type precede the samples,
/// the lines of a metric are together, and no sample occurs twice.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut families = BTreeMap::<String, Family>::new();
    let mut samples = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(is_name(name), "{line}");
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} comes twice");
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            let family = families.get_mut(name).expect(line);
            assert!(name == current && family.kind.is_empty() && family.samples == 0, "{line}");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            family.kind = kind.to_owned();
        } else {
            let (sample, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = sample.split_once('{').expect(line);
            let labels = labels.strip_suffix('}').expect(line);
            for label in labels.split(',') {
                let (label, value) = label.split_once('=').expect(line);
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).expect(line);
                assert!(is_name(label) && !value.contains(['"', '\\']), "{line}");
            }
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            assert!(samples.insert(sample), "{sample} comes twice");
            let family = families.get_mut(name).expect(line);
            assert!(name == current && !family.kind.is_empty(), "{line}");
            family.samples += 1;
        }
    }
    families
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Returns a context with an engine that runs in a thread.
fn host(address: &str) -> (Context, EngineThread) {
    let (port, _other) = pair(&LinkConfig::default());
    let context = Context::new(ContextConfig::default()).unwrap();
    let config = EngineConfig::new(&*port, &[address]).unwrap();
    let thread = Engine::new(&context, port, config).unwrap().spawn(ThreadOptions::default()).unwrap();
    (context, thread)
}

#[test]
fn the_text_follows_its_format_and_the_rules_for_names() {
    let hosts = [host("10.0.0.1/24"), host("10.0.0.2/24")];
    let statuses: Vec<_> = (7..)
        .zip(&hosts)
        .map(|(number, (context, _))| (number, context.status(Duration::from_secs(10))))
        .collect();
    let families = parse(&prometheus::text(&statuses));
    assert!(families.len() > 80, "{} metrics", families.len());
    for (name, family) in &families {
        assert!(name.starts_with("uwarp_"), "{name} has no prefix of the program");
        assert_eq!(family.samples, 2, "{name}: one for each engine or context");
        assert!(family.help.ends_with('.') && family.help.len() > 5, "{name}: {}", family.help);
        // The name of a metric ends in `_total` if the metric is a counter, and only then.
        let base = name.strip_suffix("_total");
        assert_eq!(family.kind == "counter", base.is_some(), "{name} is a {}", family.kind);
        // In OpenMetrics, the family of a counter has the name without `_total`, so no gauge may have this
        // name.
        assert!(base.is_none_or(|base| !families.contains_key(base)), "{name} has the name of a gauge");
        // The endings below are reserved for parts of histograms and summaries.
        let base = base.unwrap_or(name);
        let is_part = ["_count", "_sum", "_bucket", "_info"].iter().any(|part| base.ends_with(part));
        assert!(!is_part, "{name} ends as a part of another metric");
        // The name of a metric ends in `_bytes` if the metric counts bytes, and only then. A help text that
        // refers to another metric does not name the unit, and is not checked.
        let counted = family.help.strip_prefix("Number of ").unwrap_or(&family.help);
        let mut words = counted.split([' ', ',']).take_while(|&word| word != "of" && word != "that");
        let counts_bytes = words.any(|word| word.eq_ignore_ascii_case("bytes"));
        let refers = ["Those among them", "The largest value of"].iter().any(|w| family.help.starts_with(w));
        assert!(refers || counts_bytes == base.ends_with("_bytes"), "{name}: {}", family.help);
        let units = ["_kb", "_kib", "_mb", "_ms", "_us", "_ns", "_percent", "_bits"];
        assert!(units.iter().all(|unit| !base.ends_with(unit)), "{name} is in no base unit");
    }
}
