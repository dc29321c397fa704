//! Checks that the doc comments of configuration fields state the defaults. A field that users must set has
//! no default.

use std::path::Path;

/// The configurations that users set. Each has a list of its fields without a default, which users must set.
const CONFIGURATIONS: &[(&str, &str, &[&str])] = &[
    ("iwarp/src/verbs/cm/param.rs", "ConnParam", &[]),
    ("iwarp/src/verbs/cm/param.rs", "ResponderOptions", &[]),
    ("iwarp/src/verbs/cm/param.rs", "StreamOptions", &[]),
    ("iwarp/src/verbs/cm/param.rs", "ListenOptions", &["port"]),
    ("iwarp/src/queues/qp_init.rs", "QpInit", &["send_cq", "recv_cq"]),
    ("iwarp/src/queues/cq.rs", "CqOptions", &["cqe"]),
    ("iwarp/src/queues/srq.rs", "SrqInit", &[]),
    ("iwarp/src/verbs/mr.rs", "MrOptions", &[]),
    ("iwarp/src/verbs/fast.rs", "FastOptions", &[]),
    ("iwarp/src/verbs/context.rs", "ContextConfig", &[]),
    ("iwarp/src/queues/resources.rs", "ContextLimits", &[]),
    ("iwarp/src/engine/config.rs", "EngineConfig", &["stack"]),
    ("iwarp/src/engine/thread.rs", "ThreadOptions", &[]),
    ("iwarp/src/engine/shared_engine.rs", "SharedOptions", &[]),
    ("tcp-lite/src/config.rs", "TcpConfig", &[]),
    ("tcp-lite/src/config.rs", "Limits", &[]),
    ("tcp-lite/src/config.rs", "Pacing", &[]),
    ("tcp-lite/src/config.rs", "PathMtuConfig", &[]),
    ("dp/src/eal/config.rs", "EalConfig", &[]),
    ("dp/src/dpdk/config.rs", "DeviceConfig", &[]),
    ("dp/src/packet/config.rs", "PacketConfig", &["interface", "addresses"]),
    ("dp/src/local/config.rs", "LocalConfig", &["folder"]),
    ("dp/src/link/config.rs", "LinkConfig", &[]),
];

/// Returns the fields of a struct whose doc comments state no default.
fn silent_fields<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
    let begins = |line: &&str| {
        let rest = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with([' ', '<']))
    };
    let body = source.lines().skip_while(|line| !begins(line)).skip(1).take_while(|line| *line != "}");
    let (mut silent, mut says, mut fields) = (Vec::new(), false, 0);
    for line in body.map(str::trim) {
        if let Some(field) = line.strip_prefix("pub ").and_then(|rest| rest.split(':').next()) {
            fields += 1;
            if !std::mem::take(&mut says) {
                silent.push(field);
            }
        } else {
            says |= line.starts_with("///") && line.contains("Default:");
        }
    }
    assert!(fields > 0, "{name} has no fields");
    silent
}

#[test]
fn each_field_of_a_configuration_says_its_default() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for (file, name, given) in CONFIGURATIONS {
        let source =
            std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(silent_fields(&source, name), *given, "{name} in {file}");
    }
}

#[test]
fn a_field_without_a_default_is_found() {
    let source =
        "pub struct A {\n    /// One. Default: 1.\n    pub one: u8,\n    /// Two.\n    pub two: u8,\n}\n";
    assert_eq!(silent_fields(source, "A"), ["two"]);
}
