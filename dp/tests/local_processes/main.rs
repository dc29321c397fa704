//! Tests of a local wire between processes. For example, the processes are killed, restart, compete for
//! stations, sleep or fork.
//!
//! The other processes run this test program itself. Each process is started with the name of one ignored
//! test.
#![cfg(target_os = "linux")]

mod descriptors;
mod forks;
mod namespaces;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use dp::local::{self, LocalConfig, LocalError, LocalPort};
use dp::{Burst, Clock, Link, LinkState, Mbuf, Port, Sleep, Statistics};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use testkit::folder::Folder;
use testkit::idle::are_idle;
use testkit::process::waits;

/// Environment variables of the other processes: the folder of the wire, and the station.
const FOLDER: &str = "DP_TEST_FOLDER";
const STATION: &str = "DP_TEST_STATION";

/// The folder of a wire for one test.
struct Wire(Folder);

impl Wire {
    fn new() -> Self {
        Self(Folder::absent("dp-processes"))
    }

    fn open(&self, station: u16) -> LocalPort {
        open(&self.0, Some(station)).unwrap()
    }

    /// Starts another process, which runs the ignored test `name`.
    fn start(&self, name: &str, station: u16) -> Process {
        self.start_by(Command::new(std::env::current_exe().unwrap()), name, station)
    }

    /// Starts another process like [`start`](Self::start). `command` runs this program.
    fn start_by(&self, mut command: Command, name: &str, station: u16) -> Process {
        let mut child = command
            .args(["--ignored", "--exact", name, "--nocapture"])
            .env(FOLDER, &*self.0)
            .env(STATION, station.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Process { child, said }
    }
}

struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    /// Reads the process's next line that contains `word`. Returns the text after `word`.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            // The test harness may have printed the beginning of the line.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the process has ended and has not said {word}");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills the process by SIGKILL, so that it cannot clean up.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(folder: &Path, station: Option<u16>) -> Result<LocalPort, LocalError> {
    let config = LocalConfig { mbufs: 256, bulk_mbufs: 16, ..LocalConfig::new(folder.to_owned()) };
    local::open(&LocalConfig { station, ..config })
}

/// Returns the folder and the station of this process, if a test has started the process. Returns `None` if a
/// user runs the ignored tests.
fn duty() -> Option<(PathBuf, u16)> {
    Some((std::env::var_os(FOLDER)?.into(), std::env::var(STATION).ok()?.parse().ok()?))
}

/// Maximum time for each step, even while other programs use the processors.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `step` until it returns a value.
///
/// # Panics
/// If `step` returns no value within [`PATIENCE`].
fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = step() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long: {what}");
        std::thread::yield_now();
    }
}

fn frame(port: &LocalPort, to: u16, number: u32, bytes: usize) -> Mbuf {
    let mut frame = port.mempool().alloc().unwrap();
    let [high, low] = to.to_be_bytes();
    assert!(frame.append_slice(&[2, 0, 0x64, 0x40, high, low]) && frame.append_slice(&port.info().mac));
    assert!(frame.append_slice(&number.to_be_bytes()));
    frame.append(bytes - 16).unwrap().fill(number as u8);
    frame
}

fn number(frame: &Mbuf) -> u32 {
    u32::from_be_bytes(frame.head()[12..16].try_into().unwrap())
}

fn send(port: &mut LocalPort, clock: &Clock, frame: Mbuf) {
    let mut burst: Burst = [frame].into_iter().collect();
    until("the port takes a frame", || {
        port.tx_burst(clock.now_us(), &mut burst);
        burst.is_empty().then_some(())
    });
}

/// Receives the next frame, and returns its number.
fn receive(port: &mut LocalPort, clock: &Clock) -> u32 {
    let mut burst = Burst::new();
    until("a frame arrives", || {
        port.rx_burst(clock.now_us(), &mut burst);
        burst.pop().map(|frame| number(&frame))
    })
}

/// Sends frames to an echoing station until one echo arrives. While the station does not exist, frames are
/// dropped.
fn round_trip(port: &mut LocalPort, clock: &Clock, to: u16, number_sent: u32) {
    let mut burst = Burst::new();
    let mut again_at = Instant::now();
    until("a frame comes back", || {
        if Instant::now() >= again_at {
            let sent = frame(port, to, number_sent, 600);
            send(port, clock, sent);
            again_at = Instant::now() + Duration::from_millis(50);
        }
        while port.next_departed().is_some() {}
        port.rx_burst(clock.now_us(), &mut burst);
        burst.drain(..).any(|frame| number(&frame) == number_sent).then_some(())
    });
}

/// Sleeps unless a frame waits. Returns whether a frame or an event arrived within `limit`.
fn sleep(port: &mut LocalPort, limit: Duration) -> bool {
    let woken = !port.arm_wakeup() || {
        let fd = port.poll_fd().unwrap();
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    port.disarm_wakeup();
    woken
}

/// Sleeps and polls until the port reports that a station has ended. The end of the station wakes the port.
fn departure(port: &mut LocalPort, clock: &Clock) -> u16 {
    until("a station departs", || {
        port.rx_burst(clock.now_us(), &mut Burst::new());
        if let Some([2, 0, 0x64, 0x40, high, low]) = port.next_departed() {
            return Some(u16::from_be_bytes([high, low]));
        }
        assert!(sleep(port, PATIENCE), "nobody tells it");
        None
    })
}

#[test]
#[ignore = "another process: echoes everything, asleep while nothing comes"]
fn process_that_echoes() {
    let Some((folder, station)) = duty() else { return };
    let mut port = open(&folder, Some(station)).unwrap();
    println!("ready {}", port.station());
    let clock = Clock::new();
    let first = std::os::unix::process::parent_id();
    let mut burst = Burst::new();
    while std::os::unix::process::parent_id() == first {
        if port.rx_burst(clock.now_us(), &mut burst) == 0 {
            while port.next_departed().is_some() {}
            // Only a frame or an event ends the sleep, since the limit is longer than a test waits.
            sleep(&mut port, 2 * PATIENCE);
        }
        for frame in &mut burst {
            let bytes = frame.head_mut().unwrap();
            bytes.copy_within(6..12, 0);
            bytes[6..12].copy_from_slice(&port.info().mac);
        }
        while !burst.is_empty() {
            port.tx_burst(clock.now_us(), &mut burst);
        }
    }
}

#[test]
fn a_killed_process_is_noticed_at_once_and_its_station_taken_over() {
    let wire = Wire::new();
    let clock = Clock::new();
    let mut port = wire.open(1);
    for round in 0..5 {
        let mut peer = wire.start("process_that_echoes", 2);
        assert_eq!(peer.hear("ready"), "2");
        let listed: Vec<u16> =
            local::stations(&wire.0).unwrap().iter().map(|station| station.number).collect();
        assert_eq!(listed, [1, 2]);
        round_trip(&mut port, &clock, 2, round);
        kill_process(peer.pid(), Signal::KILL).unwrap();
        assert_eq!(departure(&mut port, &clock), 2);
        peer.kill();
        assert_eq!(local::stations(&wire.0).unwrap().len(), 1);
        assert!(wire.0.join("2.sock").exists(), "nobody has cleaned up");
    }
    assert_eq!((port.local_counters().departed, port.local_counters().pairs), (5, 5));
    assert!(port.link_state() == LinkState::Up);
}

/// SIGSTOP closes no socket, so a handshake waits for the stopped process, and a pair does not end.
#[test]
fn a_stopped_process_is_not_gone() {
    let wire = Wire::new();
    let clock = Clock::new();
    let mut port = wire.open(1);
    let mut peer = wire.start("process_that_echoes", 2);
    peer.hear("ready");
    round_trip(&mut port, &clock, 2, 1);
    kill_process(peer.pid(), Signal::STOP).unwrap();
    let (start, mut burst) = (Instant::now(), Burst::new());
    while start.elapsed() < Duration::from_millis(300) {
        port.rx_burst(clock.now_us(), &mut burst);
        assert!(port.next_departed().is_none());
    }
    kill_process(peer.pid(), Signal::CONT).unwrap();
    round_trip(&mut port, &clock, 2, 2);

    let mut other = wire.start("process_that_echoes", 3);
    other.hear("ready");
    kill_process(other.pid(), Signal::STOP).unwrap();
    let waits = frame(&port, 3, 3, 64);
    send(&mut port, &clock, waits);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2500) {
        port.rx_burst(clock.now_us(), &mut burst);
        assert!(port.next_departed().is_none() && burst.is_empty());
    }
    kill_process(other.pid(), Signal::CONT).unwrap();
    // The frame has waited until the process continued. Now the echo of the frame arrives.
    assert_eq!(receive(&mut port, &clock), 3);
    round_trip(&mut port, &clock, 3, 4);
}

#[test]
#[ignore = "another process: claims any station, and says which"]
fn process_that_claims() {
    let Some((folder, _)) = duty() else { return };
    let port = open(&folder, None).unwrap();
    println!("claimed {}", port.station());
    // The first process kills this process.
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn processes_that_claim_at_once_get_stations_of_their_own() {
    let wire = Wire::new();
    let mut processes: Vec<Process> = (0..24).map(|_| wire.start("process_that_claims", 0)).collect();
    let mut numbers: Vec<u16> =
        processes.iter_mut().map(|process| process.hear("claimed").parse().unwrap()).collect();
    numbers.sort_unstable();
    let listed = local::stations(&wire.0).unwrap();
    assert_eq!(listed.iter().map(|station| station.number).collect::<Vec<_>>(), numbers);
    numbers.dedup();
    assert_eq!(numbers.len(), 24);
    for process in &processes {
        assert!(listed.iter().any(|station| station.pid == process.pid().as_raw_nonzero().get()));
    }
    processes.into_iter().for_each(Process::kill);
    assert!(local::stations(&wire.0).unwrap().is_empty());
}

/// [`a_stale_station_is_taken_over_by_exactly_one`] starts several of these processes at the same time, and
/// all of them find the same stale socket.
#[test]
#[ignore = "another process: claims one station until it gets it or another one has it"]
fn process_that_claims_one() {
    let Some((folder, station)) = duty() else { return };
    match open(&folder, Some(station)) {
        Ok(port) => {
            println!("outcome mine");
            std::thread::sleep(Duration::from_secs(60));
            drop(port);
        }
        Err(LocalError::Taken { .. }) => println!("outcome taken"),
        Err(error) => println!("outcome {error}"),
    }
}

#[test]
fn a_stale_station_is_taken_over_by_exactly_one() {
    let wire = Wire::new();
    for _ in 0..3 {
        let mut first = wire.start("process_that_claims_one", 7);
        assert_eq!(first.hear("outcome"), "mine");
        first.kill();
        let mut others: Vec<Process> = (0..12).map(|_| wire.start("process_that_claims_one", 7)).collect();
        let outcomes: Vec<String> = others.iter_mut().map(|process| process.hear("outcome")).collect();
        assert_eq!(outcomes.iter().filter(|outcome| *outcome == "mine").count(), 1, "{outcomes:?}");
        assert_eq!(outcomes.iter().filter(|outcome| *outcome == "taken").count(), 11, "{outcomes:?}");
    }
}

#[test]
fn a_process_that_waits_uses_no_processor_and_is_woken_by_each_frame() {
    let wire = Wire::new();
    let clock = Clock::new();
    let mut port = wire.open(1);
    let mut peer = wire.start("process_that_echoes", 2);
    peer.hear("ready");
    round_trip(&mut port, &clock, 2, u32::MAX);
    are_idle(Duration::from_secs(3), &[("the other process", peer.child.id())]).unwrap();
    let slept = || waits(peer.child.id()).unwrap();
    for trip in 0..200 {
        // The process sleeps. It answers only if the frame ends the sleep.
        let before = slept();
        let sent = frame(&port, 2, trip, 64);
        send(&mut port, &clock, sent);
        // The echo of an earlier frame may arrive first.
        while receive(&mut port, &clock) != trip {}
        until("the process sleeps again", || (slept() > before).then_some(()));
    }
}
