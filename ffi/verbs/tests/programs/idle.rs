//! Tests of the CPU time of waiting programs, of the time until a message wakes them, and of two programs
//! that spin on one processor.

use std::thread::sleep;
use std::time::{Duration, Instant};

use testkit::idle::are_idle;

use crate::interface::Interfaces;
use crate::libs;
use crate::pair::{Pair, Running, is_installed};
use crate::pairs;
use crate::wire::Wire;

type Test = fn() -> Result<(), String>;

/// Maximum of the median round trip in microseconds. Only missed wake-ups exceed this limit, even on a busy
/// machine. On an idle machine a round trip usually takes less than 40 us, with two wake-ups.
const MOST_WAKING_US: f64 = 5000.0;

pub(crate) fn all(has_interfaces: bool) -> Vec<(&'static str, bool, Test)> {
    let has_programs = is_installed("cc") && is_installed("ib_write_bw");
    vec![
        ("idle_programs_take_no_processor", has_programs && has_interfaces, idle),
        ("spinning_programs_on_one_processor_get_on", has_programs && is_installed("taskset"), spinning),
    ]
}

/// Tests a server that waits for a client, and both sides of an idle connection, on a `local` wire and
/// between interfaces.
fn idle() -> Result<(), String> {
    let alone = Wire::new()?;
    let mut waits = Running::start(&alone, "server", "ib_write_bw -R -F")?;
    waits.wait_to_listen(&alone)?;
    let wires = [("local", Wire::new()?), ("packet", Wire::between(Interfaces::hosts()?)?)];
    rest(&wires, vec![("a server without a client".to_owned(), waits)])
}

/// Tests both sides of an idle connection, over DPDK's devices that have a descriptor to wait for.
#[cfg(feature = "dpdk")]
pub(crate) fn over_devices() -> Result<(), String> {
    let sockets = Interfaces::sockets(["vhost:wire.sock", "virtio:wire.sock"]);
    rest(&[("vhost", Wire::between(sockets)?), ("tap", Wire::between(Interfaces::taps()?)?)], Vec::new())
}

/// Connects two programs on each of the wires, and checks how fast a message wakes them. Then measures the
/// CPU time of these programs and of `programs` while all of them are idle.
fn rest(wires: &[(&str, Wire)], mut programs: Vec<(String, Running)>) -> Result<(), String> {
    for (kind, wire) in wires {
        let program = wire.folder().join("hello");
        libs::build(&program, None)?;
        let address = wire.at_server("127.0.0.1");
        let mut server = Running::start(wire, "server", &program.display().to_string())?;
        server.wait_to_listen(wire)?;
        let client = Running::start(wire, "client", &format!("{} {address} 50 60", program.display()))?;
        let begun = Instant::now();
        let usual = loop {
            let output = wire.output("client");
            if let Some(line) = output.lines().find(|line| line.starts_with("us: ")) {
                println!("{kind}: from a message to the answer, of programs that sleep, {line}");
                break line.split(' ').nth(3).and_then(|number| number.parse::<f64>().ok());
            }
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(format!("{kind}: no answer: {output}{}", wire.output("server")));
            }
            sleep(Duration::from_millis(20));
        };
        if usual.is_none_or(|us| us > MOST_WAKING_US) {
            return Err(format!("{kind}: a message wakes a program in {usual:?} us"));
        }
        programs.push((format!("an idle server on {kind}"), server));
        programs.push((format!("an idle client on {kind}"), client));
    }
    // During this pause, connection setup ends.
    sleep(Duration::from_millis(500));
    let ids: Vec<(&str, u32)> = programs.iter().map(|(name, program)| (&**name, program.pid())).collect();
    are_idle(Duration::from_secs(10), &ids)
}

/// Tests two sides that share one processor, and poll all the time or spin on memory.
fn spinning() -> Result<(), String> {
    let tools = ["send_lat_rdmacm", "write_lat_rdmacm"];
    for pair in pairs::all().into_iter().filter(|pair| tools.contains(&pair.name.as_str())) {
        let on_one = |command: &str| format!("taskset -c {} {command}", first_processor());
        // Programs that spin on memory keep the processor for a whole time slice, so each round trip takes
        // two slices.
        let few = |command: &str| on_one(&command.replace("-n 300", "-n 50"));
        let pinned = Pair { server: few(&pair.server), client: few(&pair.client), ..pair };
        let begun = Instant::now();
        pinned.run().map_err(|error| format!("{}: {error}", pinned.name))?;
        println!("{} on one processor: {:?}", pinned.name, begun.elapsed());
    }
    Ok(())
}

/// Returns the first processor on which this process may run.
fn first_processor() -> usize {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return 0 };
    (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| set.is_set(*cpu)).unwrap_or(0)
}
