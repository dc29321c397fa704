//! Load at a given rate is an open loop: if messages wait because the target stalls, their latencies include
//! the wait.

use std::cell::RefCell;
use std::thread::sleep;
use std::time::Duration;

use benches::driver::Interrupt;
use benches::local::{Wire, run_between};
use benches::params::{Params, Test};
use benches::rate::Rate;
use benches::runs::{LoadFigures, Row};
use benches::table::Unit;
use clap::Parser;
use dp::link::{self, LinkConfig};
use dp::{Burst, Port};
use hosts::hooked::{Hooks, hooked};

/// Makes a port sleep once, after it has received some frames. So the port's whole engine stalls.
struct Stalling {
    frames_before: u64,
    stall: Option<Duration>,
}

impl Hooks for Stalling {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        if port.counters().rx_frames >= self.frames_before
            && let Some(stall) = self.stall.take()
        {
            sleep(stall);
        }
        port.rx_burst(now_us, frames)
    }
}

/// Messages per second. The rate is low enough for a busy machine.
const RATE: u64 = 4_000;

fn params(test: Test, options: &str) -> Params {
    let line = format!("iwperf local {} -s 64 --rate_units p --rate_limit {RATE} {options}", test.name());
    let benches::cli::Command::Local(args) =
        benches::cli::Cli::try_parse_from(line.split_whitespace()).unwrap().command
    else {
        unreachable!("the command line has `local`")
    };
    args.args.params(test).unwrap()
}

/// Runs `params` against a target that stalls once for `stall`.
fn load(params: &Params, stall: Duration) -> (Row, LoadFigures) {
    let (client, server) = link::pair(&LinkConfig { checksum_offload: true, ..LinkConfig::default() });
    let server = hooked(server, Stalling { frames_before: 300, stall: Some(stall) });
    let wire = Wire {
        ipv6: false,
        mtu: 1500,
        drop_ppm: 0,
        tos: 0,
        pcap: None,
        timeout: Duration::from_secs(10),
        profile: false,
        keeps_samples: false,
        port: 18515,
        core: None,
    };
    let rows = RefCell::new(Vec::new());
    let (interrupt, unit) = (Interrupt::default(), Unit::default());
    let ports = (client, server);
    let mut keep = |row: &Row| rows.borrow_mut().push(row.clone());
    run_between(ports, &wire, params, unit, &interrupt, &mut keep).unwrap();
    let row = rows.borrow_mut().remove(0);
    let load = row.load.clone().expect("the client was the source of a load");
    (row, load)
}

#[test]
fn a_stall_is_charged_to_every_message_that_was_due_meanwhile() {
    assert_eq!(params(Test::WriteBw, "").rate, Some(Rate::Messages(RATE)));
    for test in [Test::WriteBw, Test::ReadBw, Test::SendBw] {
        // About a quarter of the messages are due during the stall, and wait 200 ms on average. Few of these
        // messages can be posted during the stall.
        let (row, load) = load(&params(test, "-n 6000 -t 16"), Duration::from_millis(400));
        let l = &load.latency;
        assert_eq!((row.messages, l.iterations, load.confirmed), (6000, 6000, true), "{test:?}");
        // In a closed loop only 16 messages would wait, which would not affect the 99th percentile.
        assert!(l.p99_us > 350_000.0 && l.p9999_us > 380_000.0, "{test:?}: {l:?}");
        // The stall adds nothing to the latency of earlier messages. The limit is high, since a busy machine
        // has stalls of its own.
        assert!(l.min_us < 200_000.0, "{test:?}: {l:?}");
    }
}

#[test]
fn what_could_not_even_be_posted_is_charged_too() {
    // There is one message at a time, and the stall lasts until the end of the test.
    let params = params(Test::WriteBw, "-D 1 -t 1");
    let (_, load) = load(&params, Duration::from_millis(1500));
    assert!(load.unsent > RATE / 4, "{load:?}");
    assert!(load.latency.p99_us > 300_000.0, "{load:?}");
}
