//! Tests of wires that lose and delay frames on purpose: programs get all their data, in order and late.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::interface::Interfaces;
use crate::pair::{Pair, Running, is_installed};
use crate::wire::Wire;

type Test = fn() -> Result<(), String>;

/// Maximum time until some frames are lost and sent again.
const WITHIN: Duration = Duration::from_secs(60);

/// The delay of the wires in microseconds.
const DELAY_US: f64 = 1000.0;

/// The keys of the wires.
const KEYS: &str = "loss=1%,delay=1ms,seed=7";
const ON_LOCAL: &str = "local,loss=1%,delay=1ms,seed=7";

pub(crate) fn all(has_interfaces: bool) -> Vec<(&'static str, bool, Test)> {
    let has_rping = is_installed("rping");
    let has_perftest = is_installed("ib_send_lat");
    vec![
        ("lossy_rping", has_rping, rping),
        ("lossy_send_lat", has_perftest, send_lat),
        ("lossy_without_thread", has_rping, without_thread),
        ("lossy_status", has_rping, status),
        ("lossy_seed_is_told", is_installed("ibv_rc_pingpong"), seed),
        ("hosts_lossy_rping", has_rping && has_interfaces, rping_between_hosts),
        ("hosts_lossy_status", has_rping && has_interfaces, status_between_hosts),
        ("interface_lossy_rping", has_rping && has_interfaces, rping_between_interfaces),
    ]
}

fn local() -> Result<Wire, String> {
    Ok(Wire::new()?.with("UWARP_NET", ON_LOCAL))
}

/// Both ends of rping compare all bytes.
fn rping_on(wire: &Wire) -> Result<(), String> {
    let server = "rping -s -a 127.0.0.1 -V -C 100 -S 20000";
    let client = "rping -c -a 127.0.0.1 -v -V -C 100 -S 20000";
    Pair { limit: 120, ..Pair::of_test("lossy_rping", server, client) }.shows("rdma-ping-99: ").run_over(wire)
}

fn rping() -> Result<(), String> {
    rping_on(&local()?)
}

/// A waiting call is woken when a held frame is due.
fn without_thread() -> Result<(), String> {
    let server = "env UWARP_THREAD=caller rping -s -a 127.0.0.1 -V -C 50";
    let client = "env UWARP_THREAD=caller rping -c -a 127.0.0.1 -v -V -C 50";
    Pair { limit: 120, ..Pair::of_test("lossy_without_thread", server, client) }
        .shows("rdma-ping-49: ")
        .run_over(&local()?)
}

fn rping_between_hosts() -> Result<(), String> {
    rping_on(&Wire::between(Interfaces::hosts()?.with_keys(KEYS))?)
}

fn rping_between_interfaces() -> Result<(), String> {
    rping_on(&Wire::between(Interfaces::new()?.with_keys(KEYS))?)
}

/// The minimum latency, which `ib_send_lat` prints as half of a round trip, is at least the delay.
fn send_lat() -> Result<(), String> {
    let wire = local()?;
    let command = "ib_send_lat -F -n 200";
    let pair = Pair::of_test("lossy_send_lat", command, &format!("{command} 127.0.0.1"));
    Pair { limit: 120, ..pair }.shows("#bytes").run_over(&wire)?;
    let output = wire.output("client");
    let numbers = output.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1);
    // The columns are bytes, iterations, and the minimum.
    let least: Option<f64> = numbers.and_then(|line| line.split_whitespace().nth(2)?.parse().ok());
    match least {
        // The program estimates the frequency of its clock, so the number may be a little too small.
        Some(least) if least > 0.95 * DELAY_US => Ok(()),
        _ => Err(format!("a minimum of {least:?} us: {output}")),
    }
}

fn status() -> Result<(), String> {
    status_on(&local()?)
}

fn status_between_hosts() -> Result<(), String> {
    status_on(&Wire::between(Interfaces::hosts()?.with_keys(KEYS))?)
}

/// `uwarp status` shows lost frames, retransmitted segments, and a round trip of two delays.
fn status_on(wire: &Wire) -> Result<(), String> {
    let start = |end: &str, command: &str| Running::start(wire, end, &wire.at_server(command));
    let mut server = start("server", "rping -s -P -a 127.0.0.1 -C 100000000")?;
    server.wait_to_listen(wire)?;
    let _client = start("client", "rping -c -a 127.0.0.1 -C 100000000")?;
    let begun = Instant::now();
    let is_lossy = |process: &Value| {
        let engine = &process["engines"][0];
        let connection = &engine["connections"][0];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        number(&engine["counters"]["uwarp_port_tx_lost_total"]) > 0
            && number(&connection["retransmits"]) > 0
            && number(&connection["rtt_us"]) as f64 >= 2.0 * DELAY_US
    };
    loop {
        let processes = wire.processes()?;
        if processes.len() == 2 && processes.iter().all(is_lossy) {
            break;
        }
        if begun.elapsed() > WITHIN {
            return Err(format!("not after {WITHIN:?}: {processes:#?}"));
        }
        sleep(Duration::from_millis(100));
    }
    let text = wire.status(&[])?;
    if text.matches("  lost on purpose ").count() == 2 { Ok(()) } else { Err(text) }
}

/// The line about the seed names a wire with a seed: the chosen one, or that of the user. Without chance
/// there is no such line.
fn seed() -> Result<(), String> {
    const TOLD: &str = "uwarp: frames are lost or delayed at random: UWARP_NET=local:default,";
    let lines = |net: &'static str| -> Result<Vec<String>, String> {
        let wire = Wire::new()?.with("UWARP_NET", net);
        let command = "ibv_rc_pingpong -g 0 -n 10";
        Pair::of_test("lossy_seed", command, &format!("{command} 127.0.0.1")).run_over(&wire)?;
        let output = wire.output("client");
        Ok(output.lines().filter_map(|line| line.strip_prefix(TOLD)).map(str::to_owned).collect())
    };
    let given = lines("local,loss=0.5%,delay=1ms,seed=7")?;
    if given != ["loss=0.005,delay=1ms,seed=7 does the same again"] {
        return Err(format!("{given:?}"));
    }
    let chosen = lines("local,loss=0.5%")?;
    let seed = chosen.first().and_then(|line| line.strip_prefix("loss=0.005,seed=")?.split(' ').next());
    if chosen.len() != 1 || seed.is_none_or(|seed| seed.parse::<u64>().is_err()) {
        return Err(format!("{chosen:?}"));
    }
    match lines("local,delay=1ms")?.is_empty() {
        true => Ok(()),
        false => Err("a line without chance".into()),
    }
}
