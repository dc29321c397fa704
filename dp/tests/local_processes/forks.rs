//! Tests that a forked child cannot use the wire of its parent.

use std::fs::File;
use std::io::{Read, Write};
use std::panic::AssertUnwindSafe;

use super::*;

/// Checks in a forked child that the child's copy of the parent's port does nothing. Returns 0, or the number
/// of the first failed check. `sent` has two frames, and `ring` is the address of a ring in the parent.
fn look_around(
    mut port: LocalPort,
    clock: &Clock,
    sent: [Mbuf; 2],
    files: &[File],
    (socket, ring): (&Path, usize),
) -> u8 {
    let mut burst = Burst::new();
    let dropped = port.counters().tx_link_down;
    let mut frames: Burst = sent.into_iter().collect();
    let checks = [
        port.rx_burst(clock.now_us(), &mut burst) == 0,
        port.tx_burst(clock.now_us(), &mut frames) == 2 && port.counters().tx_link_down == dropped + 2,
        port.poll_fd().is_none() && port.link_state() == LinkState::Down,
        port.arm_wakeup() && port.next_departed().is_none() && port.next_due_us().is_none(),
    ];
    port.disarm_wakeup();
    // The descriptors were closed when the child began, so their numbers may be reused here. The ring is not
    // mapped, so its addresses may also be reused.
    let file = File::open("/dev/null").unwrap();
    let is_free = !is_mapped(ring) && map_page(ring);
    drop(port);
    let still_open = file.metadata().is_ok();
    let still_mapped = is_mapped(ring);
    // The child does not close a descriptor whose number was reused.
    let files_open = files.iter().all(|file| file.metadata().is_ok());
    // The station still belongs to the parent.
    let is_there = socket.exists();
    // A child of this child does not close the files either, since the files do not belong to a port.
    let grandchild = fork(|| u8::from(file.metadata().is_err()));
    let leaves_open = wait(grandchild) == 0;
    let ends = [is_free, still_open, still_mapped, files_open, is_there, leaves_open];
    checks.into_iter().chain(ends).position(|fine| !fine).map_or(0, |number| number as u8 + 1)
}

/// Whether there is a mapped page at this address.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.starts_with(&format!("{address:x}-")))
}

/// Returns the address of a ring of this process.
fn ring_address() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ring = maps.lines().find(|line| line.contains("uwarp-local")).unwrap();
    usize::from_str_radix(ring.split_once('-').unwrap().0, 16).unwrap()
}

/// Maps a page at this address. Returns whether the address was free.
fn map_page(address: usize) -> bool {
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = flags | libc::MAP_FIXED_NOREPLACE;
    let at = std::ptr::without_provenance_mut(address);
    // SAFETY: with `MAP_FIXED_NOREPLACE` a new mapping replaces nothing.
    let mapped = unsafe { libc::mmap(at, 4096, protection, flags, -1, 0) };
    mapped == at
}

/// Forks. The exit status of the child is the result of `run`, or 100 if `run` panics. A panic must not reach
/// the test harness, since the child has only this thread.
fn fork(run: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child only calls `run`, which uses its copy of the port, opens files and reads maps. Then
    // the child ends without running code of the test harness. With this C library, a child of a process with
    // several threads may allocate.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or(100);
        // SAFETY: the child has nothing to clean up. (The handlers that `exit` would run belong to the
        // parent.)
        unsafe { libc::_exit(status.into()) };
    }
    assert!(child > 0);
    child
}

fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a writable local variable.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    status
}

#[test]
#[ignore = "another process: forks, and its parent goes on"]
fn process_that_forks() {
    let Some((folder, station)) = duty() else { return };
    let clock = Clock::new();
    let mut port = open(&folder, Some(station)).unwrap();
    round_trip(&mut port, &clock, 2, 1);
    let sent = [2, 5].map(|number| frame(&port, 2, number, 64));
    drop(open(&folder, None).unwrap());
    let files: Vec<File> = (0..16).map(|_| File::open("/dev/null").unwrap()).collect();
    let socket = folder.join(format!("{station}.sock"));
    let place = (socket.as_path(), ring_address());
    let (mut found, tell) = std::io::pipe().unwrap();
    // The child moves these values out, so that the child drops its copy of the port.
    let mut parts = Some((port, sent, tell));
    let child = fork(|| {
        let (port, sent, mut tell) = parts.take().unwrap();
        let wrong =
            std::panic::catch_unwind(AssertUnwindSafe(|| look_around(port, &clock, sent, &files, place)));
        let _ = tell.write_all(&[wrong.unwrap_or(100)]);
        // The child runs longer than the parent.
        std::thread::sleep(Duration::from_secs(60));
        0
    });
    let (mut port, _sent, tell) = parts.take().unwrap();
    drop(tell);
    // The parent's port still works.
    round_trip(&mut port, &clock, 2, 3);
    let mut wrong = [0xff];
    found.read_exact(&mut wrong).unwrap();
    assert_eq!(wrong, [0], "the child found something wrong");
    round_trip(&mut port, &clock, 2, 4);
    assert!(files.iter().all(|file| file.metadata().is_ok()));
    println!("forked {child}");
    std::thread::sleep(Duration::from_secs(60));
}

/// A child has none of the descriptors of its parent's ports. So peers notice the end of the parent while the
/// child still runs.
#[test]
fn a_forked_child_has_no_part_in_the_wire() {
    let wire = Wire::new();
    let clock = Clock::new();
    let mut echo = wire.start("process_that_echoes", 2);
    echo.hear("ready");
    let mut parent = wire.start("forks::process_that_forks", 3);
    let child: i32 = parent.hear("forked").parse().unwrap();
    let mut port = wire.open(1);
    // The parent does not poll any more, but its socket still queues connections.
    let first = frame(&port, 3, 1, 64);
    send(&mut port, &clock, first);
    parent.kill();
    assert_eq!(departure(&mut port, &clock), 3);
    assert_eq!(open(&wire.0, Some(3)).unwrap().station(), 3);
    let child = Pid::from_raw(child).unwrap();
    kill_process(child, Signal::KILL).unwrap();
}

#[test]
#[ignore = "another process, so that the sockets of no other test are shared: shares its sockets"]
fn process_that_shares() {
    let Some((folder, station)) = duty() else { return };
    let clock = Clock::new();
    let mut port = open(&folder, Some(station)).unwrap();
    round_trip(&mut port, &clock, 2, 1);
    let sockets = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let is_socket = std::fs::read_link(&path).ok()?.to_str()?.starts_with("socket:");
        is_socket.then(|| path.file_name()?.to_str()?.parse::<i32>().ok())?
    });
    for socket in sockets.collect::<Vec<_>>() {
        // SAFETY: another descriptor of a file does not affect the existing descriptors.
        assert!(unsafe { libc::dup(socket) } >= 0);
    }
    println!("shared");
    assert_eq!(departure(&mut port, &clock), 2);
    assert!(!sleep(&mut port, Duration::from_millis(50)), "something wakes it");
    println!("outcome fine");
}

/// A child that was created without the C library keeps the sockets of its parent open. In this test,
/// duplicates of the sockets take the place of such a child. After the other process has ended, its socket
/// must not keep waking this process.
#[test]
fn a_socket_that_somebody_else_keeps_open_wakes_nobody_after_its_end() {
    let wire = Wire::new();
    let mut echo = wire.start("process_that_echoes", 2);
    echo.hear("ready");
    let mut process = wire.start("forks::process_that_shares", 1);
    process.hear("shared");
    echo.kill();
    assert_eq!(process.hear("outcome"), "fine");
}

/// The child's copy of a vhost-user port does nothing, and leaves the socket to the parent.
#[test]
#[cfg(feature = "vhost")]
fn a_forked_child_has_no_part_in_a_vhost_user_port() {
    use dp::vhost::{self, VhostConfig};
    let folder = Folder::new("dp-vhost-fork");
    let path = folder.join("wire.sock");
    let port = vhost::open(&VhostConfig { mbufs: 64, bulk_mbufs: 8, ..VhostConfig::new(&path) }).unwrap();
    // The child moves the port out, so that the child drops its copy of the port.
    let mut parts = Some(port);
    let child = fork(|| {
        let mut port = parts.take().unwrap();
        let mut frames = Burst::new();
        frames.push(port.mempool().alloc().unwrap());
        let checks = [
            port.rx_burst(0, &mut Burst::new()) == 0,
            port.tx_burst(0, &mut frames) == 1 && port.counters().tx_link_down == 1,
            port.poll_fd().is_none() && port.link_state() == LinkState::Down && port.arm_wakeup(),
        ];
        port.disarm_wakeup();
        drop(port);
        let ends = [path.exists()];
        checks.into_iter().chain(ends).position(|fine| !fine).map_or(0, |number| number as u8 + 1)
    });
    assert_eq!(wait(child), 0, "the number of the first failed check, times 256");
    let port = parts.take().unwrap();
    assert!(port.poll_fd().is_some());
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok(), "the parent still listens");
    drop(port);
    assert!(!path.exists());
}
