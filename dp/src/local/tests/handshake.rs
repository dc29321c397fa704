//! Tests of hellos: hellos that cross each other, arrive twice or come from another process than before,
//! wrong answers, and processes of another user.

use std::os::fd::{AsFd, OwnedFd};

use super::super::claim::Claim;
use super::super::hello::{Heard, Kind, Message, hear, tell};
use super::*;

fn hello(station: u16, instance: u64, serial: u64) -> Message {
    Message { kind: Kind::Hello, station, ring_bytes: RING, instance, serial, pool_bytes: 0 }
}

fn say(socket: &OwnedFd, message: &Message) {
    tell(socket, message, &[ring_memory().as_fd()]).unwrap();
}

fn polls(port: &mut LocalPort, now_us: u64) {
    (0..4).for_each(|turn| drop(poll_once(port, now_us + 100 * turn)));
}

fn kind(socket: impl AsFd) -> Option<Kind> {
    match hear(socket) {
        Heard::Message(message, _) => Some(message.kind),
        Heard::Silence => None,
        other => panic!("{other:?}"),
    }
}

/// Makes station 1 and the claim of station 2. Station 1 has sent a hello to station 2. Returns station 1,
/// the connection with the hello, and the claim.
fn greeting(scratch: &Scratch) -> (LocalPort, OwnedFd, Claim) {
    let higher = Claim::new(&scratch.0, Some(2)).unwrap();
    let mut a = scratch.open(1);
    let sent = frame(&a, 2, 5, 64);
    assert!(send(&mut a, sent));
    let of_lower = rustix::net::accept(&higher.listener).unwrap();
    assert_eq!(kind(&of_lower), Some(Kind::Hello));
    (a, of_lower, higher)
}

/// Station 1 has sent a hello to station 2, and receives a hello from station 2. The rings of station 1 are
/// used, since its number is lower.
#[test]
fn the_lower_station_keeps_its_rings_when_hellos_cross() {
    let scratch = Scratch::new();
    let (mut a, of_lower, _higher) = greeting(&scratch);
    let of_higher = dial(&scratch);
    say(&of_higher, &hello(2, 7, 1));
    polls(&mut a, 100);
    assert_eq!(kind(&of_higher), Some(Kind::Crossed));
    assert!(matches!(hear(&of_higher), Heard::End));
    assert_eq!(kind(&of_lower), None, "its hello holds");
    tell(&of_lower, &Message { kind: Kind::Welcome, ..hello(2, 7, 1) }, &[]).unwrap();
    polls(&mut a, 1000);
    assert_eq!(a.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
}

/// The other station has sent a hello before the pair was made, and the hello arrives later. Such a hello has
/// no effect and is not an error.
#[test]
fn a_hello_from_before_the_pair_is_dropped_without_a_word() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let (first, second) = (dial(&scratch), dial(&scratch));
    say(&first, &hello(9, 7, 2));
    polls(&mut a, 0);
    assert_eq!(kind(&first), Some(Kind::Welcome));
    for serial in [1, 2] {
        let old = dial(&scratch);
        say(&old, &hello(9, 7, serial));
        polls(&mut a, 1000);
        assert!(matches!(hear(&old), Heard::End), "serial {serial}");
    }
    // A hello of another process with the same station number waits for the end of the pair.
    say(&second, &hello(9, 8, 1));
    polls(&mut a, 2000);
    assert_eq!(kind(&second), None);
    assert_eq!(a.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
    drop(first);
    polls(&mut a, 3000);
    assert_eq!(kind(&second), None, "the end was not told");
    assert_eq!(departed(&mut a).0, 9);
    polls(&mut a, 4000);
    assert_eq!(kind(&second), Some(Kind::Welcome));
    let expected = LocalCounters { pairs: 2, departed: 1, ..LocalCounters::default() };
    assert_eq!(a.local_counters(), expected);
}

/// This test is like `a_hello_from_before_the_pair_is_dropped_without_a_word`, but the hello of this station
/// has made the pair. The welcome has the serial number of the other station's latest hello.
#[test]
fn a_hello_from_before_the_welcome_is_dropped_without_a_word() {
    let scratch = Scratch::new();
    let (mut a, of_lower, _higher) = greeting(&scratch);
    tell(&of_lower, &Message { kind: Kind::Welcome, ..hello(2, 7, 3) }, &[]).unwrap();
    polls(&mut a, 100);
    for (serial, instance, is_old) in [(2, 7, true), (3, 7, true), (4, 7, false), (1, 8, false)] {
        let of_higher = dial(&scratch);
        say(&of_higher, &hello(2, instance, serial));
        polls(&mut a, 1000 * serial);
        assert_eq!(matches!(hear(&of_higher), Heard::End), is_old, "serial {serial} of {instance}");
    }
    assert_eq!(a.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
}

#[test]
fn a_second_hello_on_a_socket_is_refused() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let (first, other) = (dial(&scratch), dial(&scratch));
    say(&first, &hello(9, 7, 1));
    polls(&mut a, 0);
    // The hello waits for the end of the pair, so the port does not answer the hello.
    say(&other, &hello(9, 8, 1));
    polls(&mut a, 1000);
    assert_eq!(kind(&other), None);
    say(&other, &hello(10, 8, 2));
    polls(&mut a, 2000);
    assert!(matches!(hear(&other), Heard::End));
    let expected = LocalCounters { pairs: 1, refused: 1, ..LocalCounters::default() };
    assert_eq!(a.local_counters(), expected);
}

/// If another station answers the hello to station 9, or if the answer is not valid, station 1 ends the
/// connection and reports that station 9 has ended.
#[test]
fn a_wrong_answer_to_a_hello_ends_the_station() {
    for (answer, station) in
        [(Kind::Welcome, 8), (Kind::Again, 8), (Kind::Crossed, 8), (Kind::Crossed, 9), (Kind::Hello, 9)]
    {
        let scratch = Scratch::new();
        let claim = Claim::new(&scratch.0, Some(9)).unwrap();
        let mut a = scratch.open(1);
        let sent = frame(&a, 9, 5, 64);
        assert!(send(&mut a, sent));
        let socket = rustix::net::accept(&claim.listener).unwrap();
        assert_eq!(kind(&socket), Some(Kind::Hello));
        tell(&socket, &Message { kind: answer, ..hello(station, 7, 1) }, &[]).unwrap();
        polls(&mut a, 100);
        assert_eq!(a.next_departed(), Some([2, 0, 0x64, 0x40, 0, 9]), "{answer:?} of {station}");
        let counters = a.local_counters();
        assert_eq!((counters.pairs, counters.departed, counters.lost), (0, 1, 1));
    }
}

/// Usually, other users cannot enter the folder. If they can, the port refuses their connections.
#[test]
fn a_process_of_another_user_is_refused() {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        // Only root can become another user.
        return;
    }
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    for (path, mode) in [(scratch.0.to_path_buf(), 0o755), (scratch.0.join("1.sock"), 0o777)] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let dials = || {
        // The call changes only the user of this thread.
        let other = rustix::process::Uid::from_raw(12_345);
        rustix::thread::set_thread_res_uid(uid, other, uid).unwrap();
        let socket = dial(&scratch);
        say(&socket, &hello(9, 7, 1));
        socket
    };
    let socket = std::thread::scope(|scope| scope.spawn(dials).join()).unwrap();
    polls(&mut a, 0);
    assert_eq!(a.local_counters(), LocalCounters { refused: 1, ..LocalCounters::default() });
    assert!(matches!(hear(&socket), Heard::End));
}

/// A port does not send its frames to a socket of another user.
#[test]
fn a_station_of_another_user_gets_no_hello() {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        // Only root can become another user.
        return;
    }
    let scratch = Scratch::new();
    let other = Claim::new(&scratch.0, Some(9)).unwrap();
    let listens = || {
        // The call changes only the user of this thread. A socket belongs to the user who calls `listen`.
        rustix::thread::set_thread_res_uid(uid, rustix::process::Uid::from_raw(12_345), uid).unwrap();
        rustix::net::listen(&other.listener, 8).unwrap();
    };
    std::thread::scope(|scope| scope.spawn(listens).join()).unwrap();
    let mut a = scratch.open(1);
    let sent = frame(&a, 9, 5, 64);
    assert!(send(&mut a, sent));
    assert_eq!((a.next_departed(), a.counters().tx_link_down), (Some([2, 0, 0x64, 0x40, 0, 9]), 1));
    let socket = rustix::net::accept(&other.listener).unwrap();
    assert!(matches!(hear(&socket), Heard::End), "nothing was said");
}
