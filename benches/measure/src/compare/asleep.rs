//! The rows of processes that sleep until a frame arrives. The processes are connected by a local wire, by
//! vhost-user, or by packet sockets at the two ends of a veth pair. The baseline is a Unix socket.
//!
//! A round trip needs two wake-ups.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use testing::lab::{Namespace, Result, Run, Scratch, Wire, veth};

use crate::compare::over_local::round_trip;
use crate::compare::session::{Session, Tally};

/// Number of round trips.
const WAKES: &str = "500";

const DEV: &str = "v0";

/// A row, and the function that measures the row with its two processes on the given cores. The figure is the
/// median round trip of 64 bytes in us.
type Wake = (&'static str, fn(&Session, [usize; 2]) -> Result<f64>);

const ROWS: [Wake; 3] =
    [("local_wake", local), ("vhost_wake", over_vhost), ("af_packet_wake", over_packet_sockets)];

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    let wanted: Vec<Wake> = ROWS.into_iter().filter(|(id, _)| session.options.wants(id)).collect();
    for _ in 0..session.pace.pairs {
        for (id, ours) in &wanted {
            let ours = || ours(session, session.cpus);
            tally.add(id, "both", session.pair(ours, || over_socket(session.cpus)));
        }
    }
    // With both processes on one core, no other core has to be woken from its idle state.
    let one_core = [session.cpus[0]; 2];
    for (id, ours) in &wanted {
        note(tally, id, "one_core_us", ours(session, one_core));
        note(tally, id, "one_core_socket_us", over_socket(one_core));
    }
    match cpus_stay_awake() {
        Ok(_held) => {
            for (id, ours) in &wanted {
                note(tally, id, "awake_us", ours(session, session.cpus));
                note(tally, id, "awake_socket_us", over_socket(session.cpus));
            }
        }
        Err(error) => wanted.iter().for_each(|(id, _)| tally.note(id, "awake_error", error.to_string())),
    }
}

fn note(tally: &mut Tally, id: &'static str, name: &str, figure: Result<f64>) {
    match figure {
        Ok(whole) => tally.note(id, name, whole),
        Err(error) => tally.note(id, &format!("{name}_error"), error.to_string()),
    }
}

/// Makes idle processors poll instead of sleeping, for as long as the returned file is open (Linux's PM QoS).
fn cpus_stay_awake() -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
    file.write_all(&0_i32.to_ne_bytes())?;
    Ok(file)
}

fn local(_: &Session, cpus: [usize; 2]) -> Result<f64> {
    let scratch = Scratch::new()?;
    at_place(cpus, ["local-pong", "local-ping"], &scratch.file("wire"))
}

/// Measures the round trip over a Unix socket with blocking reads.
fn over_socket(cpus: [usize; 2]) -> Result<f64> {
    let scratch = Scratch::new()?;
    at_place(cpus, ["socket-pong", "socket-ping"], &scratch.file("socket"))
}

fn at_place(cpus: [usize; 2], [pong, ping]: [&str; 2], place: &Path) -> Result<f64> {
    let end = |what: &str| Session::part("wake").map(|run| run.arg(what).arg(place));
    round_trip(cpus, end(pong)?, end(ping)?.arg(WAKES))
}

fn over_vhost(session: &Session, cpus: [usize; 2]) -> Result<f64> {
    let scratch = Scratch::new()?;
    let socket = scratch.file("wire.sock").display().to_string();
    let pong =
        device(session, Session::part("wake")?, cpus[0], "pong", &format!("net_vhost0,iface={socket}"));
    let ping =
        device(session, Session::part("wake")?, cpus[1], "ping", &format!("net_virtio_user0,path={socket}"));
    round_trip(cpus, pong, ping.arg(WAKES))
}

fn over_packet_sockets(session: &Session, cpus: [usize; 2]) -> Result<f64> {
    let hosts = [Namespace::new()?, Namespace::new()?];
    let [left, right] = hosts.each_ref().map(|host| Wire { namespace: host, dev: DEV });
    veth(left, right, 1500)?;
    let program = std::env::current_exe()?;
    let end = |at: usize, what: &str| {
        let run = hosts[at].run(&program).arg("wake");
        device(session, run, cpus[at], what, &format!("net_af_packet0,iface={DEV}"))
    };
    round_trip(cpus, end(0, "pong"), end(1, "ping").arg(WAKES))
}

fn device(session: &Session, run: Run, cpu: usize, what: &str, vdev: &str) -> Run {
    let run = run.arg(format!("device-{what}")).args(["--vdev", vdev, "--mtu", "1500", "--cpu"]);
    let run = run.arg(cpu.to_string());
    if session.no_huge { run.arg("--no-huge") } else { run }
}
