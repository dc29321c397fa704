//! Tests of stations in unusual states, such as a full queue of connections or a socket of another user.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socketpair};

use super::super::claim::{self, Probed};
use super::super::credentials::{credentials, is_same_user};
use super::*;

/// A process that accepts no connections for some time still exists and keeps its station.
#[test]
fn a_station_whose_queue_of_connections_is_full_is_not_taken_over() {
    let scratch = Scratch::new();
    drop(scratch.open(1));
    let path = scratch.0.join("7.sock");
    let address = claim::address(&scratch.0, 7).unwrap();
    let listener = claim::socket().unwrap();
    bind(&listener, &address).unwrap();
    listen(&listener, 1).unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        let socket = claim::socket().unwrap();
        if let Err(errno) = connect(&socket, &address) {
            break errno;
        }
        waiting.push(socket);
        assert!(waiting.len() < 100, "the queue is never full");
    };
    assert_eq!(refused, Errno::AGAIN);
    let inode = fs::metadata(&path).unwrap().ino();
    assert_eq!(stations(&scratch.0).unwrap(), [Station { number: 7, pid: 0 }]);
    let taken = open(&LocalConfig { station: Some(7), ..scratch.config() });
    assert!(matches!(taken, Err(LocalError::Taken { station: 7, pid: 0 })));
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "the socket was replaced");
    // The owner accepts connections again.
    drop(waiting);
    while rustix::net::accept(&listener).is_ok() {}
    let pid = std::process::id() as i32;
    assert_eq!(stations(&scratch.0).unwrap(), [Station { number: 7, pid }]);
}

/// The result of connecting to a station's socket shows the state of the station. The exceptions are errors
/// that report a lack of descriptors or memory.
#[test]
fn each_outcome_of_connecting_to_a_station_says_what_state_it_is_in() {
    let listening = |pid| Ok(Probed::Listening { pid });
    for (connected, state) in [
        (Ok(7), listening(7)),
        (Ok(0), listening(0)),
        (Err(Errno::AGAIN), listening(0)),
        (Err(Errno::CONNREFUSED), Ok(Probed::Stale)),
        (Err(Errno::NOENT), Ok(Probed::Free)),
        (Err(Errno::ACCESS), Ok(Probed::Unclear)),
        (Err(Errno::PROTOTYPE), Ok(Probed::Unclear)),
        (Err(Errno::NOTSOCK), Ok(Probed::Unclear)),
    ] {
        assert_eq!(claim::state(connected), state, "{connected:?}");
    }
    for lack in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
        assert_eq!(claim::state(Err(lack)), Err(lack));
    }
}

/// After some errors the station may exist, and a port tries again. After all other errors, the port regards
/// the station as ended.
#[test]
fn errors_of_a_connection_tell_a_station_that_is_gone_from_one_that_may_be_there() {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    for errno in [Errno::AGAIN, Errno::PIPE, Errno::CONNRESET].into_iter().chain(lacks) {
        assert!(claim::may_be_there(errno), "{errno:?}");
    }
    for errno in [Errno::CONNREFUSED, Errno::NOENT, Errno::ACCESS, Errno::PERM, Errno::PROTOTYPE] {
        assert!(!claim::may_be_there(errno), "{errno:?}");
    }
}

/// A socket of another type with the name of a station belongs to another program, and is not a station.
#[test]
fn a_socket_of_another_type_is_left_alone_and_not_listed() {
    let scratch = Scratch::new();
    drop(scratch.open(1));
    let path = scratch.0.join("7.sock");
    let _stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    let taken = open(&LocalConfig { station: Some(7), ..scratch.config() });
    assert!(matches!(taken, Err(LocalError::Taken { station: 7, pid: 0 })), "{taken:?}");
    assert_eq!(stations(&scratch.0).unwrap(), []);
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
}

/// The search for a free station begins at a number that is derived from the PID. The search skips stations
/// that are in use, even if the first station is in use.
#[test]
fn the_search_for_a_station_goes_past_those_that_others_have() {
    let scratch = Scratch::new();
    let first = open(&scratch.config()).unwrap();
    assert_eq!(u32::from(first.station()), std::process::id() % 65_535 + 1);
    let others: Vec<LocalPort> = (0..3).map(|_| open(&scratch.config()).unwrap()).collect();
    let mut after = first.station();
    for other in &others {
        after = if after == u16::MAX { 1 } else { after + 1 };
        assert_eq!(other.station(), after);
    }
    let number = first.station();
    drop(first);
    assert_eq!(open(&scratch.config()).unwrap().station(), number);
}

#[test]
fn station_0_is_refused_and_nothing_is_made() {
    let scratch = Scratch::new();
    let refused = open(&LocalConfig { station: Some(0), ..scratch.config() });
    assert!(matches!(refused, Err(LocalError::Invalid(_))));
    assert!(!scratch.0.exists());
}

/// Checks that the credentials of a socket distinguish a process of this user from a process of another user.
#[test]
fn the_other_side_of_a_socket_is_of_the_same_user_or_not() {
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (ours, _theirs) = pair();
    let uid = rustix::process::geteuid();
    let known = credentials(&ours).unwrap();
    assert_eq!((known.pid, known.uid), (std::process::id() as i32, uid.as_raw()));
    assert!(is_same_user(&ours));
    let file = fs::File::open("/dev/null").unwrap();
    assert!(credentials(&file).is_none() && !is_same_user(&file), "no socket");
    if !uid.is_root() {
        // Only root can become another user.
        return;
    }
    let (other, _theirs) = std::thread::spawn(move || {
        // The call changes only the user of this thread.
        let other = rustix::process::Uid::from_raw(12_345);
        rustix::thread::set_thread_res_uid(uid, other, uid).unwrap();
        pair()
    })
    .join()
    .unwrap();
    assert_eq!(credentials(&other).unwrap().uid, 12_345);
    assert!(!is_same_user(&other));
}
