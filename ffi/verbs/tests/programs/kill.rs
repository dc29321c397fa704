//! Kills one side of a connection with `kill -9`. The other side has to notice the kill: it exits, or prints
//! a message. A program that only polls memory does not notice the kill, and has to end by its clock. A side
//! that is only stopped has to keep its connection.

use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::interface::Interfaces;
use crate::pair::{Running, is_installed};
use crate::wire::Wire;

/// Maximum time until the other side notices the kill on a `local` wire, where the system closes the sockets
/// of the killed process. Usually the other side notices in less than a second, even with ten programs on two
/// processors. Detection by silence would take longer than this limit.
const ON_LOCAL: Duration = Duration::from_secs(5);
/// Maximum time until the other side notices the kill between two hosts. There the other side notices only
/// that the peer is silent, after 7 to 8 s.
const BETWEEN_HOSTS: Duration = Duration::from_secs(30);
/// A connection that has moved this many bytes is in use. The setup and the tools' first exchange need fewer
/// bytes.
const IN_USE: u64 = 10_000;
/// A program that has moved this many bytes uses its second connection. perftest's tools exchange their
/// parameters (1,364 bytes) on a first connection. If the client is killed during this exchange, the server
/// waits for the second connection and does not notice the kill.
const SECOND_CONNECTION: u64 = 2_000;
/// The run time of a program that ends by its clock.
const CLOCK: Duration = Duration::from_secs(4);
/// Maximum time that a program which ends by its clock may take to start and to end, in addition to its run
/// time.
const AROUND_CLOCK: Duration = Duration::from_secs(20);

/// How a program shows that it has noticed the loss of its peer.
#[derive(Clone, Copy)]
enum LossEvidence {
    /// The program exits.
    End,
    /// The program prints this text. Then it waits for its next client, or for a completion that never
    /// arrives.
    Text(&'static str),
    /// The program only polls memory, as with every device, so it does not notice the loss. The program ends
    /// by its clock.
    Clock,
}

/// A server and its client, and how each of them shows that the other was killed.
struct Victims {
    name: &'static str,
    server: String,
    client: String,
    /// How the client shows that its server was killed.
    client_shows: LossEvidence,
    /// The minimum number of bytes that the connection has moved before the kill.
    bytes: u64,
    /// How the server shows that its client was killed, or `None` if this cannot be tested.
    server_shows: Option<LossEvidence>,
}

impl Victims {
    fn new(name: &'static str, server: &str, client: &str) -> Self {
        let (server, client) = (server.to_owned(), client.to_owned());
        let shows = LossEvidence::End;
        Self { name, server, client, client_shows: shows, bytes: IN_USE, server_shows: Some(shows) }
    }
}

/// Returns pairs of installed programs that connect by rdma_cm. Each pair has more work than it can
/// finish before the kill.
fn victims() -> Vec<Victims> {
    let mut all = vec![
        Victims::new("rping", "rping -s -a 127.0.0.1 -C 1000000", "rping -c -a 127.0.0.1 -v -C 1000000"),
        Victims::new(
            "ucmatose",
            "ucmatose -C 1000 -S 100000000",
            "ucmatose -s 127.0.0.1 -C 1000 -S 100000000",
        ),
        Victims {
            // The server of rdma-core 44 crashes with every device if a connection fails between
            // `rdma_accept` and its establishment. The reason is that the server uses the context of the
            // connection, which is NULL at that time.
            server_shows: None,
            // The client connects, but sends nothing.
            bytes: 0,
            ..Victims::new("cmtime", "cmtime -c 6000", "cmtime -s 127.0.0.1 -c 6000")
        },
        Victims {
            server_shows: Some(LossEvidence::Text("rc_lat failed: ")),
            ..Victims::new("qperf", "qperf", "qperf 127.0.0.1 -cm 1 -t 60 rc_lat")
        },
        Victims {
            // After a completion with an error the client waits for the next event.
            client_shows: LossEvidence::Text("cq completion status"),
            ..Victims::new(
                "fio",
                "fio --name=r --ioengine=rdma --port=7999 --bs=64k --size=100g --iodepth=4 --rw=read",
                "fio --name=s --ioengine=rdma --hostname=127.0.0.1 --port=7999 --verb=write --bs=64k \
                 --size=100g --iodepth=4 --rw=write",
            )
        },
    ];
    for tool in [
        "ib_write_bw",
        "ib_write_lat",
        "ib_read_bw",
        "ib_read_lat",
        "ib_send_bw",
        "ib_send_lat",
        "ib_atomic_bw",
        "ib_atomic_lat",
    ] {
        let seconds = if tool == "ib_write_lat" { CLOCK.as_secs() } else { 60 };
        let command = format!("{tool} -R -F -D {seconds}");
        let mut victims = Victims::new(tool, &command, &format!("{command} 127.0.0.1"));
        if tool == "ib_write_lat" {
            (victims.client_shows, victims.server_shows) = (LossEvidence::Clock, Some(LossEvidence::Clock));
            // On busy processors, the clock may end the program before the program has sent much.
            victims.bytes = SECOND_CONNECTION;
        }
        all.push(victims);
    }
    all.retain(|victims| victims.server.split(' ').next().is_some_and(is_installed));
    all
}

/// Runs each pair on a `local` wire, and kills its server. Then runs each pair again, and kills its client. A
/// few pairs run at the same time.
pub(crate) fn on_local() -> Result<(), String> {
    for is_server in [true, false] {
        for some in victims().chunks(AT_ONCE) {
            at_once(some, &[is_server], ON_LOCAL, Wire::new)?;
        }
    }
    Ok(())
}

/// Kills programs between two interfaces. rping waits for events, ib_send_bw polls for data, and ib_read_lat
/// polls for answers.
pub(crate) fn between_interfaces() -> Result<(), String> {
    let mut victims = victims();
    victims.retain(|victims| ["rping", "ib_send_bw", "ib_read_lat"].contains(&victims.name));
    at_once(&victims, &[true, false], BETWEEN_HOSTS, || Wire::between(Interfaces::new()?))
}

/// Number of pairs that run at the same time. Most programs spin, so each pair needs a part of a processor.
const AT_ONCE: usize = 4;

/// Runs each of `victims` once for each value of `is_server`, all at the same time. Kills the server if the
/// value is true, or else the client.
fn at_once(
    victims: &[Victims],
    is_server: &[bool],
    limit: Duration,
    wire: fn() -> Result<Wire, String>,
) -> Result<(), String> {
    let failures: Vec<String> = scope(|scope| {
        let mut threads = Vec::new();
        for victims in victims {
            for &is_server in is_server {
                threads.push(scope.spawn(move || kill(victims, is_server, limit, &wire()?)));
            }
        }
        let join = |thread: ScopedJoinHandle<'_, Result<(), String>>| {
            thread.join().map_err(|_| "the test panicked".to_owned()).and_then(|result| result).err()
        };
        threads.into_iter().filter_map(join).collect()
    });
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Kills one side of a pair, and waits until the other side shows that it has noticed.
fn kill(victims: &Victims, is_server: bool, limit: Duration, wire: &Wire) -> Result<(), String> {
    let shows = if is_server { Some(victims.client_shows) } else { victims.server_shows };
    let Some(shows) = shows else { return Ok(()) };
    let mut server = Running::start(wire, "server", &wire.at_server(&victims.server))?;
    server.wait_to_listen(wire)?;
    let mut client = Running::start(wire, "client", &wire.at_server(&victims.client))?;
    client.wait_to_connect(wire, victims.bytes)?;
    let (victim, survivor, output) = match is_server {
        true => (&mut server, &mut client, "client"),
        false => (&mut client, &mut server, "server"),
    };
    victim.kill();
    let killed = Instant::now();
    let limit = if matches!(shows, LossEvidence::Clock) { CLOCK + AROUND_CLOCK } else { limit };
    let failed = |what: &str| {
        let victim = if is_server { "server" } else { "client" };
        Err(format!("{}, whose {victim} is killed, {what}:\n{}", victims.name, wire.output(output)))
    };
    match shows {
        LossEvidence::End | LossEvidence::Clock => {
            if survivor.wait(limit).is_err() {
                return failed("goes on");
            }
        }
        LossEvidence::Text(text) => {
            while !wire.output(output).contains(text) {
                if killed.elapsed() > limit {
                    return failed("says nothing");
                }
                sleep(Duration::from_millis(10));
            }
        }
    }
    Ok(())
}

/// Time for which a program is stopped. Between hosts, a connection to a stopped program ends sooner.
const STOPPED: Duration = Duration::from_secs(14);

/// Pairs of programs that exchange messages without an end: by rdma_cm with events, and by GIDs with polling.
const EXCHANGES: [(&str, &str); 2] = [
    ("rping -s -a 127.0.0.1", "rping -c -a 127.0.0.1 -C 100000000"),
    ("ibv_rc_pingpong -g 0 -n 100000000", "ibv_rc_pingpong -g 0 -n 100000000 127.0.0.1"),
];

/// Stops one side of each pair on a `local` wire, as a debugger does. The connection has to outlast the stop:
/// afterwards, the programs exchange further messages.
pub(crate) fn stopped_on_local() -> Result<(), String> {
    scope(|scope| {
        let stop = |(pair, is_server)| scope.spawn(move || stopped(pair, is_server));
        let threads = [(EXCHANGES[0], true), (EXCHANGES[0], false), (EXCHANGES[1], true)].map(stop);
        let join = |thread: ScopedJoinHandle<'_, Result<(), String>>| {
            thread.join().map_err(|_| "the test panicked".to_owned()).and_then(|result| result)
        };
        threads.into_iter().try_for_each(join)
    })
}

fn stopped((server, client): (&str, &str), is_server: bool) -> Result<(), String> {
    let wire = Wire::new()?;
    let mut server = Running::start(&wire, "server", server)?;
    server.wait_to_listen(&wire)?;
    let mut client = Running::start(&wire, "client", client)?;
    client.wait_to_connect(&wire, IN_USE)?;
    let of_victim = if is_server { server.pid() } else { client.pid() };
    let signal = |signal| {
        let victim = Pid::from_raw(of_victim as i32).ok_or("no process ID")?;
        kill_process(victim, signal).map_err(|error| error.to_string())
    };
    signal(Signal::STOP)?;
    let survivor = if is_server { &mut client } else { &mut server };
    let survives = survivor.wait(STOPPED).is_err();
    let before = most_moved(&wire)?;
    signal(Signal::CONT)?;
    let failed = |what: &str| {
        let outputs = ["server", "client"].map(|output| wire.output(output)).join("\n");
        Err(format!("pid {of_victim} was stopped: {what}:\n{outputs}"))
    };
    if !survives {
        return failed("the other side has ended");
    }
    match client.wait_to_connect(&wire, before + IN_USE) {
        Ok(()) => Ok(()),
        Err(error) => failed(&error),
    }
}

/// The number of bytes that the busiest connection on the wire has moved.
fn most_moved(wire: &Wire) -> Result<u64, String> {
    let processes = wire.processes()?;
    let lists = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let engines = processes.iter().flat_map(|process| lists(process, "engines"));
    let connections = engines.flat_map(|engine| lists(&engine, "connections"));
    let bytes = |connection: &Value| ["tx_bytes", "rx_bytes"].map(|name| connection[name].as_u64());
    let most = connections.map(|connection| bytes(&connection).iter().flatten().sum()).max();
    most.ok_or_else(|| "no process of the wire answers".to_owned())
}
