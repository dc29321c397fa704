//! Tests with processes of the same user that break the rules. Each of these processes loses at most its own
//! pair, and all other stations continue.

use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{RecvFlags, SendFlags, recv, send as send_bytes};

use super::super::claim;
use super::super::hello::{Heard, Kind, MESSAGE_BYTES, Message, hear, tell};
use super::super::memory::{self, SharedMemory};
use super::*;

fn hello(station: u16) -> Message {
    Message { kind: Kind::Hello, station, ring_bytes: RING, instance: 7, serial: 1, pool_bytes: 0 }
}

/// Returns whether the other side has closed the socket.
fn is_closed(socket: &OwnedFd) -> bool {
    let mut bytes = [0; 64];
    loop {
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => return true,
            // The other side has sent a message before it closed the socket.
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Makes a peer with station number 9 that has a pair with station 1. Returns the peer's socket and the
/// memory that the peer and station 1 share.
fn hostile_peer(scratch: &Scratch, a: &mut LocalPort) -> (OwnedFd, SharedMemory) {
    let (socket, memfd) = (dial(scratch), ring_memory());
    let memory = SharedMemory::map(&memfd, memory_bytes(RING).unwrap()).unwrap();
    tell(&socket, &hello(9), &[memfd.as_fd()]).unwrap();
    for _ in 0..1000 {
        poll_once(a, 0);
        if let Heard::Message(message, _) = hear(&socket) {
            assert_eq!((message.kind, message.station), (Kind::Welcome, 1));
            return (socket, memory);
        }
    }
    panic!("no welcome");
}

fn still_works(a: &mut LocalPort, b: &mut LocalPort) {
    for number in 0..3 {
        let (to_b, to_a) = (frame(a, 2, number, 3000), frame(b, 1, number, 3000));
        let wanted = (flat(&to_b), flat(&to_a));
        assert!(send(a, to_b) && send(b, to_a));
        assert_eq!(flat(&receive(&mut [b], 1)[0]), wanted.0);
        assert_eq!(flat(&receive(&mut [a], 1)[0]), wanted.1);
    }
}

#[test]
fn a_bad_hello_is_refused() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let bytes = memory_bytes(RING).unwrap();
    let sealable = || memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let unsealed = sealable();
    ftruncate(&unsealed, bytes as u64).unwrap();
    let shrinks = sealable();
    ftruncate(&shrinks, bytes as u64).unwrap();
    fcntl_add_seals(&shrinks, SealFlags::GROW).unwrap();
    let read_only = ring_memory();
    // Seals can be added only to a memfd without `F_SEAL_SEAL`.
    let unwritable = sealable();
    ftruncate(&unwritable, bytes as u64).unwrap();
    fcntl_add_seals(&unwritable, SealFlags::GROW | SealFlags::SHRINK | SealFlags::WRITE).unwrap();
    let small = memory::create(bytes / 2, []).unwrap();
    let file = OwnedFd::from(std::fs::File::create(scratch.0.join("file")).unwrap());
    let other_ring = Message { ring_bytes: RING * 2, ..hello(9) };
    let odd_ring = Message { ring_bytes: RING + 64, ..hello(9) };
    let huge_ring = Message { ring_bytes: u64::MAX, ..hello(9) };
    let wrong_kind = Message { kind: Kind::Welcome, ..hello(9) };
    let cases = [
        (hello(9), None),
        (hello(9), Some(unsealed)),
        (hello(9), Some(shrinks)),
        (hello(9), Some(unwritable)),
        (hello(9), Some(small)),
        (hello(9), Some(file)),
        (hello(9), Some(dial(&scratch))),
        (hello(1), Some(ring_memory())),
        (other_ring, Some(ring_memory())),
        (odd_ring, Some(ring_memory())),
        (huge_ring, Some(ring_memory())),
        (wrong_kind, Some(read_only)),
    ];
    for (number, (message, memory)) in cases.iter().enumerate() {
        let socket = dial(&scratch);
        tell(&socket, message, memory.as_ref().map(AsFd::as_fd).as_slice()).unwrap();
        (0..300).for_each(|_| drop(poll_once(&mut a, 0)));
        assert!(is_closed(&socket), "case {number}");
        assert_eq!(a.local_counters().refused, number as u64 + 1);
    }
    for bytes in [&b"x"[..], &[1], &[0; 40], &[0; 41], &[0; 500], b"uwarp\0l1", &[]] {
        let socket = dial(&scratch);
        send_bytes(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        (0..300).for_each(|_| drop(poll_once(&mut a, 0)));
        assert!(is_closed(&socket), "{bytes:?}");
    }
    still_works(&mut a, &mut b);
    assert_eq!((a.local_counters().pairs, a.next_departed()), (1, None));
}

#[test]
fn mute_processes_keep_neither_sockets_nor_others_out() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let mute: Vec<OwnedFd> = (0..200).map(|_| dial(&scratch)).collect();
    (0..300).for_each(|_| drop(poll_once(&mut a, 1000)));
    assert!(mute.iter().all(|socket| !is_closed(socket)), "nobody was given up so far");
    // Other tests of this process also open descriptors, but not thousands.
    assert!(open() < before + 200 + 64 + 100);
    assert_eq!((a.next_due_us(), is_readable(&a)), (Some(11_000), false), "others wait for a place");
    // A station that sends a hello has a pair soon, and does not wait for two seconds.
    let mut c = scratch.open(3);
    let sent = frame(&c, 1, 5, 64);
    assert!(send(&mut c, sent));
    let arrived = (1000..60_000).step_by(50).find_map(|now_us| {
        poll_once(&mut c, now_us);
        poll_once(&mut a, now_us).pop()
    });
    assert_eq!(arrived.as_ref().map(number), Some(5));
    // All 64 greetings were replaced twice. Then nine were replaced: by the last eight connections, and by
    // the station with a hello.
    assert_eq!(mute.iter().filter(|socket| !is_closed(socket)).count(), 200 - 2 * 64 - 9);
    assert_eq!(a.local_counters().put_off, 2 * 64 + 9);
    (0..300).for_each(|_| drop(poll_once(&mut a, 2_100_000)));
    assert!(mute.iter().all(is_closed));
    assert_eq!((a.local_counters().put_off, a.local_counters().refused), (200, 0));
    assert_eq!(a.next_due_us(), None);
    still_works(&mut a, &mut b);
}

/// If a station does not answer a hello, or if its answer is not valid, the port reports that the station has
/// ended.
#[test]
fn a_station_that_does_not_answer_is_given_up() {
    for answer in [
        None,
        Some(Message { station: 8, ..hello(9) }),
        Some(hello(9)),
        Some(Message { kind: Kind::Crossed, ..hello(9) }),
    ] {
        let scratch = Scratch::new();
        let (mut a, mut b) = paired(&scratch);
        let claim = claim::Claim::new(&scratch.0, Some(9)).unwrap();
        let sent = frame(&a, 9, 0, 64);
        assert!(send_at(&mut a, 1000, sent));
        let socket = rustix::net::accept(&claim.listener).unwrap();
        match answer {
            None => {
                (0..300).for_each(|_| drop(poll_once(&mut a, 60_000_999)));
                assert!(!is_closed(&socket) && a.next_departed().is_none());
                assert_eq!(a.next_due_us(), Some(60_001_000));
                (0..300).for_each(|_| drop(poll_once(&mut a, 60_001_000)));
            }
            Some(message) => {
                tell(&socket, &message, &[]).unwrap();
                (0..300).for_each(|_| drop(poll_once(&mut a, 1001)));
            }
        }
        assert_eq!(a.next_departed(), Some([2, 0, 0x64, 0x40, 0, 9]), "{answer:?}");
        assert_eq!((a.local_counters().lost, a.mempool().available()), (1, 512));
        still_works(&mut a, &mut b);
    }
}

/// If another process sends a hello with the number of an existing station, the hello waits for the end of
/// that station, but at most 2 s.
#[test]
fn nobody_can_end_the_pair_of_another_station() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let socket = dial(&scratch);
    tell(&socket, &hello(2), &[ring_memory().as_fd()]).unwrap();
    for now_us in (0..1_900_000).step_by(100_000) {
        poll_once(&mut a, now_us);
        poll_once(&mut b, now_us);
    }
    still_works(&mut a, &mut b);
    (0..300).for_each(|_| drop(poll_once(&mut a, 2_100_000)));
    assert!(is_closed(&socket));
    still_works(&mut a, &mut b);
    assert_eq!((a.local_counters().pairs, a.next_departed()), (1, None));
}

#[test]
fn nonsense_on_the_socket_of_a_pair_ends_it() {
    for bytes in [&[2_u8][..], &[1, 1], &[0; 40]] {
        let scratch = Scratch::new();
        let (mut a, mut b) = paired(&scratch);
        let (socket, _memory) = hostile_peer(&scratch, &mut a);
        send_bytes(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(departed(&mut a), (9, vec![]));
        assert!(is_closed(&socket));
        still_works(&mut a, &mut b);
    }
}

/// A peer sends wake-up messages although nobody sleeps. The port reads and discards all these messages, and
/// the rings keep working.
#[test]
fn wake_ups_for_nothing_are_taken() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let (socket, _memory) = hostile_peer(&scratch, &mut a);
    let mut sent = 0;
    while send_bytes(&socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok() {
        sent += 1;
    }
    assert!(sent > 16);
    // Each look takes one of them.
    (0..sent * 256).for_each(|_| drop(poll_once(&mut a, 0)));
    assert!(!is_readable(&a) && a.arm_wakeup());
    a.disarm_wakeup();
    still_works(&mut a, &mut b);
    assert_eq!(a.local_counters().pairs, 2);
}

#[test]
fn wrong_positions_end_their_pair_and_no_other() {
    // The words are the tail of the ring to which the peer writes, and the head of the ring from which the
    // peer reads.
    for (word, value) in [(0, 1_u64), (0, u64::MAX), (0, 1 << 40), (512 + 128, 63), (512 + 128, u64::MAX)] {
        let scratch = Scratch::new();
        let (mut a, mut b) = paired(&scratch);
        let (socket, memory) = hostile_peer(&scratch, &mut a);
        memory.word(word).store(value, Ordering::Release);
        // These frames are enough to make the writer read the head.
        for number in 0..100 {
            let sent = frame(&a, 9, number, 9000);
            send(&mut a, sent);
            poll_once(&mut a, 0);
        }
        assert_eq!(departed(&mut a), (9, vec![]), "{word} {value}");
        assert!(is_closed(&socket));
        assert_eq!((a.local_counters().broken, a.counters().rx_dropped), (1, 1));
        still_works(&mut a, &mut b);
    }
}

/// If a peer always sets its sleep mark, each burst to the peer costs one more system call.
#[test]
fn a_peer_that_says_it_sleeps_gets_a_wake_up_for_each_burst_at_most() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let (socket, memory) = hostile_peer(&scratch, &mut a);
    for number in 0..20 {
        memory.word(512 + 256).store(u64::MAX, Ordering::Release);
        let mut burst: Burst = (0..4).map(|_| frame(&a, 9, number, 64)).collect();
        assert_eq!(a.tx_burst(0, &mut burst), 4);
    }
    let mut bytes = [0; 2];
    let wakes = (0..100).filter(|_| recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).is_ok()).count();
    assert_eq!(wakes, 20);
    still_works(&mut a, &mut b);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Between any two polls, a peer writes any value to a control word or to the beginning of a ring. The
    /// pair of two other stations continues to work.
    #[test]
    fn any_memory_of_a_peer_harms_only_its_own_pair(
        writes in proptest::collection::vec((0..400_usize, any_word(), any::<bool>()), 1..100),
    ) {
        let scratch = Scratch::new();
        let (mut a, mut b) = paired(&scratch);
        let (_socket, memory) = hostile_peer(&scratch, &mut a);
        for (at, word, sends) in writes {
            // The offset is in the control words, or in the first data of one of the two rings.
            let at = match at {
                0..128 => at * 8,
                128..264 => 4096 + (at - 128) * 8,
                _ => 4096 + RING as usize + (at - 264) * 8,
            };
            memory.word(at).store(word, Ordering::Relaxed);
            if sends {
                let sent = frame(&a, 9, 0, 5000);
                send(&mut a, sent);
            }
            for received in poll_once(&mut a, 0) {
                prop_assert!((14..=65_553).contains(&received.len()));
            }
            while a.next_departed().is_some() {}
        }
        // If the pair has ended, the port reports the end now, so that the station can connect again.
        poll_once(&mut a, 0);
        while a.next_departed().is_some() {}
        still_works(&mut a, &mut b);
    }

    #[test]
    fn any_bytes_are_a_message_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..64), flip in 0..8 * MESSAGE_BYTES) {
        if let Some(message) = Message::decode(&bytes) {
            prop_assert!(message.station != 0 && bytes.len() == MESSAGE_BYTES);
        }
        // A message with one flipped bit is a different message, or is not a message.
        let (left, right) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        ).unwrap();
        tell(&left, &hello(9), &[]).unwrap();
        let mut sent = [0; MESSAGE_BYTES];
        recv(&right, &mut sent[..], RecvFlags::empty()).unwrap();
        prop_assert_eq!(Message::decode(&sent), Some(hello(9)));
        sent[flip / 8] ^= 1 << (flip % 8);
        prop_assert_ne!(Message::decode(&sent), Some(hello(9)));
    }
}

/// Generates words that may be a position, a header, or anything.
fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..5000_u64).prop_map(|lines| lines * 64),
        (0..70_000_u64, 0..3_u64).prop_map(|(bytes, marks)| marks << 32 | bytes),
        any::<u64>(),
    ]
}
