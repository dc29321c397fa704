//! A local wire between processes: ends, kills, restarts, races for stations, sleep, forks.
//!
//! Further processes are this test program itself, started with the name of one ignored test.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dp::local::{self, LocalConfig, LocalError, LocalPort};
use dp::{Burst, Clock, LinkState, Mbuf, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use test_support::process::cpu_time;

/// Set for other processes: the folder of the wire, and what they are to do.
const FOLDER: &str = "DP_TEST_FOLDER";
const STATION: &str = "DP_TEST_STATION";

/// A wire of its own, which is removed with the test.
struct Wire(PathBuf);

impl Wire {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("dp-processes-{}-{number}", std::process::id())))
    }

    fn open(&self, station: u16) -> LocalPort {
        open(&self.0, Some(station)).unwrap()
    }

    /// Another process, which runs the ignored test `name`.
    fn start(&self, name: &str, station: u16) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", name, "--nocapture"])
            .env(FOLDER, &self.0)
            .env(STATION, station.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Process { child, said }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    /// The next line that it says behind this word.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).unwrap() > 0 {
            // The harness begins a line before the test does.
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

    /// SIGKILL: no clean-up runs.
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

/// In another process: its folder and station. `None` if the ignored tests are run by hand.
fn duty() -> Option<(PathBuf, u16)> {
    Some((std::env::var_os(FOLDER)?.into(), std::env::var(STATION).ok()?.parse().ok()?))
}

/// How long anything may take, also where other programs have the processors.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls `step` until it returns something.
///
/// # Panics
/// After [`PATIENCE`].
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

/// The number of the next frame.
fn receive(port: &mut LocalPort, clock: &Clock) -> u32 {
    let mut burst = Burst::new();
    until("a frame arrives", || {
        port.rx_burst(clock.now_us(), &mut burst);
        burst.pop().map(|frame| number(&frame))
    })
}

/// Sends a frame to a station that echoes, until it comes back. Frames are dropped while it is not there.
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

/// Sleeps, unless something waits. Returns whether something has woken it within `limit`.
fn sleep(port: &mut LocalPort, limit: Duration) -> bool {
    let woken = !port.arm_wakeup() || {
        let fd = port.poll_fd().unwrap();
        let limit = Timespec::try_from(limit).unwrap();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    port.disarm_wakeup();
    woken
}

/// Waits until a station is gone, asleep between. The departure wakes the sleeper.
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
            sleep(&mut port, Duration::from_secs(1));
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

/// SIGSTOP closes nothing: a handshake waits for the process, and a pair stays.
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
    // The frame has waited, and so has its echo.
    assert_eq!(receive(&mut port, &clock), 3);
    round_trip(&mut port, &clock, 3, 4);
}

#[test]
#[ignore = "another process: claims any station, and says which"]
fn process_that_claims() {
    let Some((folder, _)) = duty() else { return };
    let port = open(&folder, None).unwrap();
    println!("claimed {}", port.station());
    // Killed by the first process.
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

/// All of them find the same stale socket.
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
fn a_process_that_waits_uses_no_processor_and_is_woken_soon() {
    let wire = Wire::new();
    let clock = Clock::new();
    let mut port = wire.open(1);
    let mut peer = wire.start("process_that_echoes", 2);
    peer.hear("ready");
    round_trip(&mut port, &clock, 2, u32::MAX);
    let before = cpu_time(peer.child.id()).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let used = cpu_time(peer.child.id()).unwrap() - before;
    // 0.5 %.
    assert!(!before.is_zero() && used < Duration::from_millis(15), "{used:?} in three seconds");
    let mut round_trip = |trip| {
        // It sleeps by then.
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        let sent = frame(&port, 2, trip, 64);
        send(&mut port, &clock, sent);
        // The echo of an earlier frame may come first.
        while receive(&mut port, &clock) != trip {}
        start.elapsed()
    };
    let begun = Instant::now();
    let mut fastest = (0..200).map(&mut round_trip).min().unwrap();
    // A busy machine has a processor for both ends now and then.
    while fastest >= Duration::from_millis(1) {
        assert!(begun.elapsed() < PATIENCE, "{fastest:?}");
        fastest = round_trip(200);
    }
}

/// What a forked child finds: the port of its parent does nothing there. Returns 0, or the number of the
/// first thing that is wrong.
fn look_around(mut port: LocalPort, clock: &Clock, sent: Mbuf, files: &[File], socket: &Path) -> i32 {
    let mut burst = Burst::new();
    let dropped = port.counters().tx_link_down;
    let mut frames: Burst = [sent].into_iter().collect();
    let checks = [
        port.rx_burst(clock.now_us(), &mut burst) == 0,
        port.tx_burst(clock.now_us(), &mut frames) == 1 && port.counters().tx_link_down == dropped + 1,
        port.poll_fd().is_none() && port.link_state() == LinkState::Down,
        port.arm_wakeup() && port.next_departed().is_none() && port.next_due_us().is_none(),
    ];
    port.disarm_wakeup();
    // The descriptors were closed when the child began, so these numbers are those of others here.
    let file = File::open("/dev/null").unwrap();
    drop(port);
    let still_open = file.metadata().is_ok();
    // The child closes none of the numbers of descriptors that its parent has closed, and used anew.
    let files_open = files.iter().all(|file| file.metadata().is_ok());
    // The station is the parent's.
    let is_there = socket.exists();
    let wrong = checks.into_iter().chain([still_open, files_open, is_there]).position(|fine| !fine);
    wrong.map_or(0, |number| number as i32 + 1)
}

#[test]
#[ignore = "another process: forks, and its parent goes on"]
fn process_that_forks() {
    let Some((folder, station)) = duty() else { return };
    let clock = Clock::new();
    let mut port = open(&folder, Some(station)).unwrap();
    round_trip(&mut port, &clock, 2, 1);
    let sent = frame(&port, 2, 2, 64);
    drop(open(&folder, None).unwrap());
    let files: Vec<File> = (0..16).map(|_| File::open("/dev/null").unwrap()).collect();
    let socket = folder.join(format!("{station}.sock"));
    // SAFETY: the child only uses what it has of the port, opens a file, and ends without running anything of
    // the test harness. The C library lets a child of a process with several threads allocate.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let wrong = look_around(port, &clock, sent, &files, &socket);
        if wrong == 0 {
            // Longer than its parent lives.
            std::thread::sleep(Duration::from_secs(60));
        }
        // SAFETY: nothing has to be cleaned up, and the handlers that `exit` runs belong to the parent.
        unsafe { libc::_exit(wrong) };
    }
    // The parent's end is as good as before.
    round_trip(&mut port, &clock, 2, 3);
    std::thread::sleep(Duration::from_millis(100));
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
    assert_eq!((ended, status), (0, 0), "the child found something wrong");
    round_trip(&mut port, &clock, 2, 4);
    assert!(files.iter().all(|file| file.metadata().is_ok()));
    println!("forked {child}");
    std::thread::sleep(Duration::from_secs(60));
}

/// A child keeps none of the descriptors: its parent's end is noticed although the child lives.
#[test]
fn a_forked_child_has_no_part_in_the_wire() {
    let wire = Wire::new();
    let clock = Clock::new();
    let mut echo = wire.start("process_that_echoes", 2);
    echo.hear("ready");
    let mut parent = wire.start("process_that_forks", 3);
    let child: i32 = parent.hear("forked").parse().unwrap();
    let mut port = wire.open(1);
    // The parent polls no more, but its socket takes connections.
    let first = frame(&port, 3, 1, 64);
    send(&mut port, &clock, first);
    parent.kill();
    assert_eq!(departure(&mut port, &clock), 3);
    assert_eq!(open(&wire.0, Some(3)).unwrap().station(), 3);
    let child = Pid::from_raw(child).unwrap();
    kill_process(child, Signal::KILL).unwrap();
}

/// No descriptor can be opened from now on, or as many as before.
fn limit_descriptors(maximum: Option<u64>) {
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let current = maximum.or(before.maximum);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current, ..before },
    )
    .unwrap();
}

#[test]
#[ignore = "another process, so that no other test lacks descriptors: runs out of them for a while"]
fn process_that_runs_out() {
    let Some((folder, station)) = duty() else { return };
    let clock = Clock::new();
    let mut port = open(&folder, Some(station)).unwrap();
    let sent = frame(&port, 2, 7, 64);
    limit_descriptors(Some(0));
    let claimed = open(&folder, None);
    let listed = local::stations(&folder);
    // The peer may be there: the frame waits, as nothing says that it is gone.
    send(&mut port, &clock, sent);
    let mut burst = Burst::new();
    for _ in 0..20 {
        port.rx_burst(clock.now_us(), &mut burst);
        std::thread::sleep(Duration::from_millis(2));
    }
    let departed = port.next_departed();
    limit_descriptors(None);
    assert!(departed.is_none() && burst.is_empty());
    assert_eq!(port.local_counters().lost, 0);
    let errno = |error: std::io::Error| error.raw_os_error();
    assert_eq!(listed.map_err(errno).err().flatten(), Some(libc::EMFILE));
    match claimed {
        // Of the folder, which is opened first.
        Err(LocalError::Folder { source, .. } | LocalError::System(source)) => {
            assert_eq!(errno(source), Some(libc::EMFILE));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(receive(&mut port, &clock), 7);
    // With one descriptor, the folder can be opened, and no station can be asked.
    let free = File::open("/dev/null").unwrap();
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&free) as u64;
    drop(free);
    limit_descriptors(Some(lowest + 1));
    let claimed = [open(&folder, None), open(&folder, Some(2))];
    limit_descriptors(None);
    for claimed in claimed {
        match claimed {
            Err(LocalError::System(source)) => assert_eq!(errno(source), Some(libc::EMFILE)),
            other => panic!("{other:?}"),
        }
    }
    println!("outcome fine");
}

/// Running out of descriptors says nothing about other stations, and it is told as what it is.
#[test]
fn a_process_without_descriptors_takes_nobody_for_gone_or_there() {
    let wire = Wire::new();
    let mut echo = wire.start("process_that_echoes", 2);
    echo.hear("ready");
    assert_eq!(wire.start("process_that_runs_out", 1).hear("outcome"), "fine");
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Mappings of rings.
fn rings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("uwarp-local").count()
}

#[test]
#[ignore = "another process, so that no other test opens files meanwhile: opens and closes"]
fn process_that_opens_and_closes() {
    let Some((folder, _)) = duty() else { return };
    let clock = Clock::new();
    let resident = || -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let mut before = (0, 0, 0);
    for round in 0..110 {
        let (mut a, mut b) = (open(&folder, Some(1)).unwrap(), open(&folder, None).unwrap());
        let to_b = frame(&a, b.station(), round, 64);
        send(&mut a, &clock, to_b);
        let mut burst = Burst::new();
        until("a frame arrives", || {
            a.rx_burst(clock.now_us(), &mut Burst::new());
            (b.rx_burst(clock.now_us(), &mut burst) > 0).then_some(())
        });
        assert_eq!(number(&burst[0]), round);
        assert!(rings() >= 2);
        drop((a, b));
        if round == 10 {
            before = (count("/proc/self/fd"), rings(), resident());
        }
    }
    let after = (count("/proc/self/fd"), rings(), resident());
    let leaked_kib = after.2.saturating_sub(before.2) * 4;
    println!("result {} {} {} {leaked_kib}", after.0 - before.0, after.1, count(folder.to_str().unwrap()));
}

#[test]
fn a_hundred_opens_and_closes_leave_nothing() {
    let wire = Wire::new();
    let mut process = wire.start("process_that_opens_and_closes", 0);
    let result = process.hear("result");
    let numbers: Vec<usize> = result.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers[..3], [0, 0, 0], "descriptors, mappings, files: {result}");
    // A pair of rings has 2 MiB, and so has each pool. The allocator keeps some of what was freed.
    assert!(numbers[3] < 8 << 10, "{} KiB of memory", numbers[3]);
}
