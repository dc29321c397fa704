//! Tests of a process without free descriptors, and of the descriptors and memory of a process that opens
//! ports again and again.

use std::fs::File;

use super::*;

/// Sets the soft limit of open descriptors to `maximum`. If `maximum` is `None`, sets the soft limit to the
/// hard limit.
fn limit_descriptors(maximum: Option<u64>) {
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let current = maximum.or(before.maximum);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current, ..before },
    )
    .unwrap();
}

fn is_readable(port: &LocalPort) -> bool {
    let fd = port.poll_fd().unwrap();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
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
    // The peer may exist, so the frame waits.
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
        // Opening the folder is the first step, and fails.
        Err(LocalError::Folder { source, .. } | LocalError::System(source)) => {
            assert_eq!(errno(source), Some(libc::EMFILE));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(receive(&mut port, &clock), 7);
    // With one descriptor, the folder can be opened, but no station can be probed.
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

#[test]
#[ignore = "another process, so that no other test lacks descriptors: cannot accept for a while"]
fn process_that_cannot_accept() {
    let Some((folder, station)) = duty() else { return };
    let (mut port, mut other) = (open(&folder, Some(station)).unwrap(), open(&folder, None).unwrap());
    let poll_at = |port: &mut LocalPort, now_us: u64| {
        let mut burst = Burst::new();
        port.rx_burst(now_us, &mut burst);
        burst.pop().map(|frame| number(&frame))
    };
    assert_eq!((poll_at(&mut port, 0), is_readable(&port)), (None, false));
    // The other port has connected, but the port has not accepted the connection yet.
    let sent = frame(&other, station, 7, 64);
    let mut burst: Burst = [sent].into_iter().collect();
    assert_eq!(other.tx_burst(0, &mut burst), 1);
    assert!(is_readable(&port));
    // `poll` needs a limit of at least 1. No descriptor is free, since the lowest numbers are in use.
    limit_descriptors(Some(1));
    let refused = poll_at(&mut port, 1_000_000);
    // If the listener were always readable, the port would never sleep.
    let (readable, due_us) = (is_readable(&port), port.next_due_us());
    // The port does not try to accept a connection before the time is over.
    let early = poll_at(&mut port, 1_099_900);
    let early = (early, is_readable(&port), port.next_due_us());
    let late = poll_at(&mut port, 1_100_000);
    let late = (late, is_readable(&port), port.next_due_us());
    let again = poll_at(&mut port, 1_100_100);
    let again = (again, is_readable(&port), port.next_due_us());
    limit_descriptors(None);
    assert_eq!((refused, readable, due_us), (None, false, Some(1_100_000)));
    assert_eq!(early, (None, false, Some(1_100_000)));
    assert_eq!(late, (None, true, None), "it listens again");
    assert_eq!(again, (None, false, Some(1_200_100)), "and has no descriptor");
    let arrived = until("the other one is accepted", || {
        poll_at(&mut other, 1_300_000);
        poll_at(&mut port, 1_300_000)
    });
    assert_eq!((arrived, port.local_counters().pairs), (7, 1));
    println!("outcome fine");
}

/// While there are no descriptors, connections wait, and the port may sleep.
#[test]
fn a_process_without_descriptors_leaves_its_listener_alone_for_a_while() {
    let wire = Wire::new();
    assert_eq!(wire.start("descriptors::process_that_cannot_accept", 1).hear("outcome"), "fine");
}

/// A lack of descriptors says nothing about other stations. The errors report the lack of descriptors.
#[test]
fn a_process_without_descriptors_takes_nobody_for_gone_or_there() {
    let wire = Wire::new();
    let mut echo = wire.start("process_that_echoes", 2);
    echo.hear("ready");
    assert_eq!(wire.start("descriptors::process_that_runs_out", 1).hear("outcome"), "fine");
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Returns the number of mappings of rings.
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
    let mut process = wire.start("descriptors::process_that_opens_and_closes", 0);
    let result = process.hear("result");
    let numbers: Vec<usize> = result.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers[..3], [0, 0, 0], "descriptors, mappings, files: {result}");
    // A pair of rings begins with 260 KiB, and the pools of a port have more than 3 MiB. So a leak in each
    // round would exceed the limit. The allocator does not return all freed memory to the system.
    assert!(numbers[3] < 8 << 10, "{} KiB of memory", numbers[3]);
}
