//! The events of `tracing`: which events occur, in which order, and with which fields.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};

use dp::link::LinkConfig;
use dp::{Burst, Port};
use iwarp::verbs::{ConnParam, RemoteAddr, SendOp, SendRequest};
use tcp_lite::AddressProbing;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::common::hooked::Hooks;
use crate::common::{Pair, Testbed, remote_addr};

/// An event: its level, its message, and its other fields as text.
#[derive(Clone, Debug)]
struct Seen {
    level: Level,
    message: String,
    fields: BTreeMap<&'static str, String>,
}

impl Seen {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            name => drop(self.fields.insert(name, text)),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// A subscriber that keeps all events of this project, or with `None` no events.
struct Collector(Option<Arc<Mutex<Vec<Seen>>>>);

impl Subscriber for Collector {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // `tracing` then asks the subscriber of the thread about each event.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.is_some() && ["dp", "tcp_lite", "iwarp"].iter().any(|name| metadata.target().starts_with(name))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = *event.metadata().level();
        let mut seen = Seen { level, message: String::new(), fields: BTreeMap::new() };
        event.record(&mut seen);
        if let Some(all) = &self.0 {
            all.lock().unwrap().push(seen);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns the events that `act` causes on this thread.
fn collect(act: impl FnOnce()) -> Vec<Seen> {
    // All other threads get a subscriber that takes no event. Without it, if another test caused the first
    // event of a kind while the subscriber of this thread is set, `tracing` could remember that nobody takes
    // events of this kind.
    static OTHERS: Once = Once::new();
    OTHERS.call_once(|| tracing::subscriber::set_global_default(Collector(None)).expect("no other default"));
    let seen = Arc::<Mutex<Vec<Seen>>>::default();
    tracing::subscriber::with_default(Collector(Some(Arc::clone(&seen))), act);
    let seen = seen.lock().unwrap();
    seen.clone()
}

fn messages(seen: &[Seen]) -> Vec<&str> {
    seen.iter().map(|seen| seen.message.as_str()).collect()
}

fn only<'a>(seen: &'a [Seen], message: &str) -> &'a Seen {
    let found: Vec<_> = seen.iter().filter(|seen| seen.message == message).collect();
    assert_eq!(found.len(), 1, "{message}: {:?}", messages(seen));
    found[0]
}

#[test]
fn a_connection_is_told_from_its_syn_to_its_end() {
    let mut qp_nums = None;
    let seen = collect(|| {
        let (mut pair, c) = Pair::connected();
        qp_nums = Some([c.qp_a.qp_num(), c.qp_b.qp_num()].map(|number| number.to_string()));
        c.id_a.disconnect();
        pair.event_a();
        pair.event_b();
    });
    let qp_nums = qp_nums.unwrap();
    assert_eq!(
        messages(&seen),
        [
            "engine started",
            "engine started",
            "SYN sent",
            "SYN received",
            "TCP established",
            "MPA Request sent",
            "TCP established",
            "MPA Request received",
            "MPA Reply sent",
            "MPA Reply received",
            "connection established",
            "connection established",
            "connection ended",
            "connection ended",
            "engine ended",
            "engine ended",
        ]
    );
    let started = &seen[0];
    assert!(started.field("addresses").contains("10.0.0.1"), "{started:?}");
    assert_eq!((started.field("engine"), started.field("mtu")), ("0", "1500"));
    let (syn, arrived) = (only(&seen, "SYN sent"), only(&seen, "SYN received"));
    assert!(syn.field("local").starts_with("10.0.0.1:"));
    assert_eq!(syn.field("remote"), arrived.field("local"));
    let request = only(&seen, "MPA Request received");
    assert_eq!(["revision", "markers", "crc"].map(|name| request.field(name)), ["2", "false", "true"]);
    let reply = only(&seen, "MPA Reply received");
    assert_eq!((reply.field("revision"), reply.field("crc"), reply.level), ("2", "true", Level::DEBUG));
    let established = seen.iter().filter(|seen| seen.message == "connection established");
    let mut numbers: Vec<&str> = established.map(|seen| seen.field("qp_num")).collect();
    numbers.sort_unstable();
    let mut wanted = qp_nums.each_ref().map(String::as_str);
    wanted.sort_unstable();
    assert_eq!(numbers, wanted);
    for ended in seen.iter().filter(|seen| seen.message == "connection ended") {
        assert_eq!(ended.level, Level::INFO);
        assert!(!ended.fields.contains_key("error") && ended.fields.contains_key("remote"), "{ended:?}");
    }
}

#[test]
fn a_terminate_is_told_at_both_ends_with_its_codes() {
    let seen = collect(|| {
        let (mut pair, c) = Pair::connected();
        let (local, remote) = pair.regions(64);
        let remote = RemoteAddr { addr: remote.addr(), rkey: remote.rkey().wrapping_add(1) };
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote }, local.sge(0, 8))).unwrap();
        pair.event_a();
        pair.event_b();
    });
    for message in ["Terminate sent", "Terminate received"] {
        let told = only(&seen, message);
        // RFC 5041 section 7.2: layer DDP, type tagged buffer error, code invalid STag.
        assert_eq!(["layer", "etype", "code"].map(|name| told.field(name)), ["1", "1", "0"], "{told:?}");
        assert_eq!(told.level, Level::WARN);
    }
    let ended: Vec<_> = seen.iter().filter(|seen| seen.message == "connection ended").collect();
    assert!(ended.iter().all(|ended| ended.field("error").contains("terminated")), "{ended:?}");
}

#[test]
fn a_link_that_is_lost_and_back_is_told_by_each_engine() {
    let seen = collect(|| {
        let (bed, control) = Testbed::with_control(&LinkConfig::default());
        let mut pair = bed.hosts();
        control.set_up(false);
        pair.run_us(200_000);
        control.set_up(true);
        pair.run_us(200_000);
    });
    let changes = seen.iter().filter(|seen| seen.message == "link changed");
    let changes: Vec<_> = changes.map(|seen| (seen.level, seen.field("state"))).collect();
    let (down, up) = ((Level::WARN, "Down"), (Level::INFO, "Up"));
    assert_eq!(changes, [down, down, up, up]);
}

/// While the flag is set, every frame that is sent is lost.
struct Lossy(Arc<AtomicBool>);

impl Hooks for Lossy {
    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        if !self.0.load(Ordering::Relaxed) {
            return port.tx_burst(now_us, frames);
        }
        let count = frames.len();
        frames.clear();
        count
    }
}

#[test]
fn what_is_not_acknowledged_in_time_is_told_with_the_figures_of_tcp() {
    let seen = collect(|| {
        let loses = Arc::new(AtomicBool::new(false));
        let mut pair = Testbed::new().hook_a(Lossy(Arc::clone(&loses))).hosts();
        let c = pair.connect(&ConnParam::default());
        let (local, remote) = pair.regions(64);
        loses.store(true, Ordering::Relaxed);
        let write = SendOp::Write { remote: remote_addr(&remote, 0) };
        c.qp_a.post_send(&SendRequest::new(1, write, local.sge(0, 8))).unwrap();
        pair.run_us(3_000_000);
        assert!(pair.a.engine.counters().stack.rto_expired >= 2);
    });
    let timeouts: Vec<_> = seen.iter().filter(|seen| seen.message == "retransmission timeout").collect();
    assert!(timeouts.len() >= 2, "{:?}", messages(&seen));
    let number = |seen: &Seen, name: &str| seen.field(name).parse::<u64>().unwrap();
    assert!(number(timeouts[1], "rto_us") > number(timeouts[0], "rto_us"), "it backs off: {timeouts:?}");
    for timeout in timeouts {
        assert!(timeout.field("remote").starts_with("10.0.0.2:"), "{timeout:?}");
        assert!(number(timeout, "cwnd") > 0 && number(timeout, "unacknowledged") > 0, "{timeout:?}");
    }
}

#[test]
fn a_conflict_over_an_address_is_told() {
    let seen = collect(|| {
        let bed = Testbed::new().configure(|config| {
            config.stack.address_probing = AddressProbing::Announce;
            config.stack.addresses = ["10.0.0.7/24".parse().unwrap()].into_iter().collect();
        });
        bed.hosts().run_us(100_000);
    });
    let conflicts: Vec<_> = seen.iter().filter(|seen| seen.message == "address conflict").collect();
    assert_eq!(conflicts.len(), 2, "{:?}", messages(&seen));
    for conflict in conflicts {
        assert_eq!((conflict.field("address"), conflict.field("lost")), ("10.0.0.7", "false"));
        assert_eq!(conflict.field("mac").split(':').count(), 6);
        assert_eq!(conflict.level, Level::WARN);
    }
}

#[test]
fn an_engine_tells_its_addresses_as_users_write_them() {
    let seen = collect(|| {
        let bed = Testbed::new().configure(|config| {
            let addresses = ["10.0.0.7/24", "2001:db8::7/64"].map(|text| text.parse().unwrap());
            config.stack.addresses = addresses.into_iter().collect();
        });
        drop(bed.hosts());
    });
    let started = seen.iter().find(|seen| seen.message == "engine started").unwrap();
    assert_eq!(started.field("addresses"), "10.0.0.7/24,2001:db8::7/64");
    let mac: Vec<_> = started.field("mac").split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    assert!(mac.len() == 6 && mac.iter().all(Result::is_ok), "{started:?}");
}

#[test]
fn a_connection_that_nobody_takes_is_told() {
    let seen = collect(|| {
        let mut pair = Testbed::new().hosts();
        let _dialled = pair.dial(&ConnParam::default());
        pair.event_a();
    });
    let ended = only(&seen, "connection ended");
    assert!(!ended.field("error").is_empty() && ended.field("mpa_code") == "1", "{ended:?}");
}

#[test]
fn a_rejected_request_is_told_at_both_ends() {
    let seen = collect(|| {
        let (mut pair, _listener) = Pair::listening();
        let _dialled = pair.dial(&ConnParam::default());
        pair.event_b().id.reject(b"no").unwrap();
        pair.event_a();
    });
    assert_eq!(only(&seen, "MPA Reply sent that rejects").field("why"), "by the user");
    let rejected = only(&seen, "MPA Reply received that rejects");
    assert_eq!((rejected.field("revision"), rejected.field("private_data")), ("2", "2"));
}

#[test]
fn data_makes_no_event() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(4096);
    let seen = collect(|| {
        for wr_id in 0..1000 {
            let write = SendOp::Write { remote: remote_addr(&remote, 0) };
            c.qp_a.post_send(&SendRequest::new(wr_id, write, local.sge(0, 4096))).unwrap();
            assert_eq!(pair.wc_a().wr_id, wr_id);
        }
    });
    assert!(seen.is_empty(), "{seen:?}");
}
