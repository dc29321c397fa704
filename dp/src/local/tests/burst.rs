//! Tests of ports that have to wait: for example, many processes connect at the same time, stations answer
//! late or read slowly, and claims wait for the folder's lock.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{connect, listen};

use super::super::claim::{self, Claim};
use super::super::hello::{Descriptors, Heard, Kind, Message, hear, tell};
use super::*;

/// A process that connects to station 1 without a port of its own.
struct Dialer {
    station: u16,
    serial: u64,
    socket: OwnedFd,
}

impl Dialer {
    fn new(scratch: &Scratch, station: u16) -> Self {
        Self { station, serial: 0, socket: dial(scratch) }
    }

    fn hello(&mut self) -> Result<(), rustix::io::Errno> {
        self.serial += 1;
        let Self { station, serial, .. } = *self;
        let message =
            Message { kind: Kind::Hello, station, ring_bytes: RING, instance: 7, serial, pool_bytes: 0 };
        tell(&self.socket, &message, &[ring_memory().as_fd()])
    }
}

/// Sends frames until the port accepts no more frames. Returns the number of accepted frames.
fn fill(a: &mut LocalPort, now_us: u64, to: u16) -> u32 {
    (0..10_000).find(|number| !send_new(a, now_us, to, *number, 100)).unwrap()
}

fn send_new(port: &mut LocalPort, now_us: u64, to: u16, number: u32, bytes: usize) -> bool {
    let sent = frame(port, to, number, bytes);
    send_at(port, now_us, sent)
}

/// Three hundred processes have connected, and send their hellos so late that other connections wait.
/// Processes that have to connect again also have a pair in the end.
#[test]
fn all_of_many_that_connect_at_once_get_a_pair() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let mut dialers: Vec<Dialer> = (0..300).map(|at| Dialer::new(&scratch, 100 + at)).collect();
    let (mut now_us, mut welcome, mut come_again) = (1000, 0, 0);
    poll_once(&mut a, now_us);
    // The processes that have sent their hello and wait for an answer.
    let mut spoken = vec![false; dialers.len()];
    while welcome < 300 {
        assert!(now_us < 30_000_000, "{welcome} have a pair");
        now_us += 5000;
        // In each round, ten of the processes that have not sent a hello run and send their hello.
        let silent = (0..300).map(|at| at * 7 % 300).filter(|at| !spoken[*at]);
        let silent: Vec<usize> = silent.take(10).collect();
        for at in silent {
            let dialer = &mut dialers[at];
            while dialer.hello().is_err() {
                // The port has told the process to connect again before the process sent its hello.
                dialer.socket = dial(&scratch);
                come_again += 1;
            }
            spoken[at] = true;
        }
        poll_once(&mut a, now_us);
        for (dialer, spoken) in dialers.iter_mut().zip(&mut spoken).filter(|(_, spoken)| **spoken) {
            match hear(&dialer.socket) {
                Heard::Message(Message { kind: Kind::Welcome, station: 1, .. }, _) => welcome += 1,
                Heard::Message(Message { kind: Kind::Again, station: 1, .. }, _) => {
                    dialer.socket = dial(&scratch);
                    *spoken = false;
                    come_again += 1;
                }
                Heard::Silence => {}
                other => panic!("{} hears {other:?}", dialer.station),
            }
        }
    }
    let counters = a.local_counters();
    assert_eq!((counters.pairs, counters.refused, counters.departed), (300, 0, 0));
    assert!(come_again > 0 && counters.put_off >= come_again, "{counters:?} {come_again}");
}

/// If a hundred ports begin to send at the same time, all their frames arrive.
#[test]
fn frames_of_a_hundred_ports_that_begin_at_once_all_arrive() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let small = LocalConfig { mtu: 1500, mbufs: 64, bulk_mbufs: 8, ..scratch.config() };
    let mut others: Vec<LocalPort> = (2..102)
        .map(|station| open(&LocalConfig { station: Some(station), ..small.clone() }).unwrap())
        .collect();
    for other in &mut others {
        let sent = frame(other, 1, u32::from(other.station()), 64);
        assert!(send(other, sent));
    }
    let mut arrived = Vec::new();
    for now_us in 0..1000 {
        arrived.extend(poll_once(&mut a, now_us).iter().map(number));
        for other in &mut others {
            poll_once(other, now_us);
        }
    }
    arrived.sort_unstable();
    assert_eq!(arrived, (2..102).collect::<Vec<_>>());
    assert_eq!(a.local_counters(), LocalCounters { pairs: 100, ..LocalCounters::default() });
}

/// Until there is a pair of rings, at most 64 frames wait in the port. The caller keeps further frames for
/// 100 ms. After that time they are dropped.
#[test]
fn frames_beyond_those_that_wait_for_a_pair_stay_with_the_caller() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (scratch.open(1), scratch.open(2));
    assert_eq!((fill(&mut a, 1000, 2), a.counters().tx_ring_full), (64, 1));
    let mut c = scratch.open(3);
    let behind = frame(&a, 2, 64, 100);
    let to_c = frame(&a, 3, 0, 64);
    let mut burst: Burst = [behind, to_c].into_iter().collect();
    assert_eq!(a.tx_burst(100_999, &mut burst), 0, "it may still answer");
    // From now on a station that does not run does not block frames for other stations.
    assert_eq!(a.tx_burst(101_000, &mut burst), 2);
    assert_eq!(number(&receive(&mut [&mut a, &mut c], 1)[0]), 0);
    assert_eq!((a.counters().tx_link_down, a.local_counters().lost), (1, 0));
    // The waiting frames arrive when the station finally answers.
    let arrived = receive(&mut [&mut a, &mut b], 64);
    assert_eq!(arrived.iter().map(number).collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
}

#[test]
fn a_station_that_is_stopped_for_half_a_minute_is_not_gone() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (scratch.open(1), scratch.open(2));
    let sent = frame(&a, 2, 5, 64);
    assert!(send_at(&mut a, 0, sent));
    for now_us in (0..30_000_000).step_by(1000) {
        assert!(poll_once(&mut a, now_us).is_empty() && a.next_departed().is_none());
    }
    assert_eq!(number(&receive(&mut [&mut a, &mut b], 1)[0]), 5);
    assert_eq!(a.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
}

/// Both stations were stopped while they connected to each other. The lower station answers `Crossed`, but
/// its own hello never arrives, so the other station connects again.
#[test]
fn a_hello_that_was_on_its_way_and_is_lost_is_not_waited_for() {
    let scratch = Scratch::new();
    let lower = Claim::new(&scratch.0, Some(1)).unwrap();
    let mut b = scratch.open(2);
    let sent = frame(&b, 1, 5, 64);
    assert!(send_at(&mut b, 0, sent));
    let mut now_us = 0;
    for _ in 0..3 {
        let socket = rustix::net::accept(&lower.listener).unwrap();
        let Heard::Message(said, Descriptors { rings: Some(_), .. }) = hear(&socket) else {
            panic!("no hello")
        };
        let crossed =
            Message { kind: Kind::Crossed, station: 1, instance: 7, serial: 1, pool_bytes: 0, ..said };
        tell(&socket, &crossed, &[]).unwrap();
        drop(socket);
        now_us += 100;
        poll_once(&mut b, now_us);
        assert_eq!((b.next_due_us(), b.next_departed()), (Some(now_us + 1_000_000), None));
        poll_once(&mut b, now_us + 999_900);
        assert!(hear_nobody(&lower));
        now_us += 1_000_000;
        poll_once(&mut b, now_us);
    }
    drop(lower);
    assert_eq!(departed(&mut b).0, 1, "nobody is there");
}

/// Returns whether no process has connected.
fn hear_nobody(claim: &Claim) -> bool {
    rustix::net::accept(&claim.listener).is_err()
}

/// A station answers each hello of a port with `Again`. In one run, the station reads the hello before it
/// closes the socket. In the other run, the station closes the socket without reading the hello, and the
/// port's read reports a connection reset.
#[test]
fn a_port_that_is_told_to_come_again_does_so_and_less_and_less_often() {
    for reads in [true, false] {
        let scratch = Scratch::new();
        let claim = Claim::new(&scratch.0, Some(9)).unwrap();
        let mut a = scratch.open(1);
        let sent = frame(&a, 9, 5, 64);
        assert!(send_at(&mut a, 0, sent));
        let mut now_us = 0;
        let mut last = None;
        for pause_us in [1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 64_000] {
            let socket = rustix::net::accept(&claim.listener).unwrap();
            let again = Message {
                kind: Kind::Again,
                station: 9,
                ring_bytes: RING,
                instance: 7,
                serial: 0,
                pool_bytes: 0,
            };
            if reads {
                let Heard::Message(said, Descriptors { rings: Some(_), .. }) = hear(&socket) else {
                    panic!("no hello")
                };
                assert!(Some(said.serial) > last && said.station == 1);
                last = Some(said.serial);
            }
            tell(&socket, &again, &[]).unwrap();
            drop(socket);
            poll_once(&mut a, now_us + 100);
            assert_eq!((a.next_due_us(), a.next_departed()), (Some(now_us + 100 + pause_us), None));
            poll_once(&mut a, now_us + pause_us);
            assert!(hear_nobody(&claim));
            now_us += 100 + pause_us;
            poll_once(&mut a, now_us);
        }
        // The process of the station ends, and another process claims the station.
        drop(claim);
        let mut late = scratch.open(9);
        assert_eq!(departed(&mut a).0, 9);
        let sent = frame(&a, 9, 6, 64);
        assert!(send_at(&mut a, now_us, sent));
        assert_eq!(number(&receive(&mut [&mut a, &mut late], 1)[0]), 6);
    }
}

#[test]
fn a_station_whose_queue_of_connections_is_full_is_tried_again() {
    let scratch = Scratch::new();
    let claim = Claim::new(&scratch.0, Some(9)).unwrap();
    // The listener's queue has room for one connection.
    listen(&claim.listener, 0).unwrap();
    let first = claim::socket().unwrap();
    connect(&first, &claim::address(&scratch.0, 9).unwrap()).unwrap();
    let mut a = scratch.open(1);
    let sent = frame(&a, 9, 5, 64);
    assert!(send_at(&mut a, 0, sent));
    for (now_us, next_us) in [(0, 1000), (1000, 3000), (3000, 7000), (6000, 7000), (7000, 15_000)] {
        poll_once(&mut a, now_us);
        assert_eq!((a.next_due_us(), a.next_departed()), (Some(next_us), None));
    }
    drop(rustix::net::accept(&claim.listener).unwrap());
    poll_once(&mut a, 14_900);
    assert!(hear_nobody(&claim));
    poll_once(&mut a, 15_000);
    let socket = rustix::net::accept(&claim.listener).unwrap();
    assert!(matches!(
        hear(&socket),
        Heard::Message(Message { kind: Kind::Hello, station: 1, .. }, Descriptors { rings: Some(_), .. })
    ));
}

/// For 10 ms after a station has connected, each poll reads the sockets, so the station's hello is read by
/// the next poll. A later hello is read when the sockets are read anyway.
#[test]
fn a_greeting_goes_on_with_every_poll_for_some_time_only() {
    for (spoken_us, paired_us) in [(5, 6), (9_998, 9_999), (10_010, 10_100)] {
        let scratch = Scratch::new();
        let mut a = scratch.open(1);
        let mut dialer = Dialer::new(&scratch, 9);
        poll_once(&mut a, 0);
        assert_eq!(a.next_due_us(), Some(2_000_000), "a port that sleeps gives it up in time");
        poll_once(&mut a, if spoken_us < 10_000 { spoken_us } else { 10_000 });
        dialer.hello().unwrap();
        for now_us in spoken_us + 1..paired_us {
            poll_once(&mut a, now_us);
            assert_eq!(a.local_counters().pairs, 0, "{now_us}");
        }
        poll_once(&mut a, paired_us);
        assert_eq!(a.local_counters().pairs, 1, "{paired_us}");
    }
}

/// One read of the sockets returns at most 32 events. If there are more events, the next poll reads the
/// sockets again, without waiting for 100 us.
#[test]
fn more_events_than_one_look_takes_are_taken_with_the_next_poll() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let sockets: Vec<OwnedFd> = (0..40).map(|_| dial(&scratch)).collect();
    poll_once(&mut a, 0);
    // No handshake is so recent that each poll reads the sockets.
    poll_once(&mut a, 20_000);
    for socket in &sockets {
        rustix::net::send(socket, b"nonsense", rustix::net::SendFlags::DONTWAIT).unwrap();
    }
    let refused = [(); 3].map(|()| {
        poll_once(&mut a, 20_100);
        a.local_counters().refused
    });
    assert_eq!(refused, [32, 40, 40]);
}

/// Reading the sockets is a system call. If a handshake takes longer than 10 ms, the port reads the sockets
/// only as often as without a handshake.
#[test]
fn a_handshake_goes_on_with_every_poll_for_some_time_only() {
    for (now_us, seen_us) in [(9_000, 9_000), (9_999, 9_999), (10_000, 10_100), (50_000, 50_100)] {
        let scratch = Scratch::new();
        let claim = Claim::new(&scratch.0, Some(9)).unwrap();
        let mut a = scratch.open(1);
        let sent = frame(&a, 9, 5, 64);
        assert!(send_at(&mut a, 0, sent));
        poll_once(&mut a, now_us);
        let socket = rustix::net::accept(&claim.listener).unwrap();
        let Heard::Message(said, Descriptors { rings: Some(_), .. }) = hear(&socket) else {
            panic!("no hello")
        };
        tell(&socket, &Message { kind: Kind::Welcome, station: 9, pool_bytes: 0, ..said }, &[]).unwrap();
        for at_us in now_us..seen_us {
            poll_once(&mut a, at_us);
            assert_eq!(a.local_counters().pairs, 0);
        }
        poll_once(&mut a, seen_us);
        assert_eq!(a.local_counters().pairs, 1);
    }
}

/// A hello that arrives while other connections wait is answered. If a hello cannot be answered, the hello's
/// socket has to make room for another connection.
#[test]
fn a_place_goes_to_another_when_it_was_held_for_long_and_nobody_speaks() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let mut dialers: Vec<Dialer> = (0..66).map(|at| Dialer::new(&scratch, 100 + at)).collect();
    poll_once(&mut a, 0);
    poll_once(&mut a, 9_999);
    assert_eq!(a.local_counters(), LocalCounters::default());
    // The oldest dialer sends its hello at the last moment. The other dialers send no hello.
    dialers[0].hello().unwrap();
    // The old connections have waited long enough. The port listens again, and then replaces the old
    // connections.
    poll_once(&mut a, 10_000);
    assert_eq!(a.next_due_us(), Some(2_000_000), "it waits for no place any longer");
    (1..3).for_each(|turn| drop(poll_once(&mut a, 10_000 + 100 * turn)));
    assert!(matches!(hear(&dialers[0].socket), Heard::Message(Message { kind: Kind::Welcome, .. }, _)));
    let counters = a.local_counters();
    // The second waiting connection has replaced the second dialer.
    assert_eq!((counters.pairs, counters.put_off), (1, 1));
    assert!(matches!(hear(&dialers[1].socket), Heard::Message(Message { kind: Kind::Again, .. }, _)));
    assert!(matches!(hear(&dialers[2].socket), Heard::Silence));
    // Station 100 already has a pair, so this hello has to wait. The wait is short while other connections
    // wait.
    let pretender = &mut dialers[2];
    pretender.station = 100;
    pretender.serial = 5;
    pretender.hello().unwrap();
    poll_once(&mut a, 10_500);
    let _more = [dial(&scratch), dial(&scratch)];
    (0..3).for_each(|turn| drop(poll_once(&mut a, 11_000 + 100 * turn)));
    assert!(matches!(hear(&dialers[2].socket), Heard::Message(Message { kind: Kind::Again, .. }, _)));
    assert_eq!(a.local_counters().pairs, 1);
}

/// There is room for one connection, and two connections wait. When the time of the oldest accepted socket is
/// over, this socket has to make room.
#[test]
fn a_place_is_kept_for_ten_milliseconds() {
    for (now_us, put_off) in [(9_999, 0), (10_000, 1)] {
        let scratch = Scratch::new();
        let mut a = scratch.open(1);
        let mut dialers: Vec<Dialer> = (0..66).map(|at| Dialer::new(&scratch, 100 + at)).collect();
        poll_once(&mut a, 0);
        dialers.swap_remove(63);
        poll_once(&mut a, now_us - 100);
        poll_once(&mut a, now_us);
        assert_eq!(a.local_counters().put_off, put_off, "{now_us}");
    }
}

/// A reader that sometimes reads a frame is slow but not stuck, so its frames wait.
#[test]
fn a_slow_reader_that_makes_progress_loses_nothing() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut now_us = 1000;
    let (mut sent, mut arrived) = (0, Vec::new());
    for _ in 0..60 {
        // The loop sends frames until the ring is full.
        while send_new(&mut a, now_us, 2, sent, 9000) {
            sent += 1;
            // If the port regarded the reader as stuck, the port would accept and drop any number of frames.
            assert_eq!((a.local_counters().lost, a.counters().tx_link_down), (0, 0), "at {now_us} us");
        }
        // The reader reads one frame, in slightly less time than the limit.
        now_us += 90_000;
        let mut one = Burst::new();
        let held: Vec<Mbuf> = (0..BURST - 1).map(|_| frame(&b, 1, 0, 16)).collect();
        one.extend(held);
        assert_eq!(b.rx_burst(now_us, &mut one), 1);
        arrived.push(number(&one[BURST - 1]));
    }
    assert_eq!(arrived, (0..60).collect::<Vec<_>>());
    // From now on the reader reads no frame.
    for _ in 0..3 {
        while send_new(&mut a, now_us, 2, sent, 9000) && a.counters().tx_link_down == 0 {}
        now_us += 60_000;
    }
    assert_eq!(a.local_counters().lost, 64);
}

/// Locks a wire's folder. The lock is held until the returned value is dropped.
fn lock(scratch: &Scratch) -> std::fs::File {
    let folder = std::fs::File::open(&scratch.0).unwrap();
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    folder
}

#[test]
fn a_claim_waits_while_others_claim_however_many_they_are() {
    let scratch = Scratch::new();
    let _first = scratch.open(1);
    let locked = lock(&scratch);
    let folder = scratch.0.to_path_buf();
    let others = std::thread::spawn(move || {
        // The loop runs one and a half times as long as the limit.
        for number in 0..15 {
            std::thread::sleep(std::time::Duration::from_millis(500));
            std::fs::write(folder.join(format!("{number}.other")), "").unwrap();
        }
        drop(locked);
    });
    assert_eq!(scratch.open(2).station(), 2);
    others.join().unwrap();
}

#[test]
fn a_lock_that_is_kept_is_told_in_words() {
    let scratch = Scratch::new();
    let _first = scratch.open(1);
    let locked = lock(&scratch);
    let begun = std::time::Instant::now();
    let config = LocalConfig { station: Some(2), ..scratch.config() };
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(open(&config).map(|_| ())));
    // If the claim waited without a limit, the test would fail instead of hanging.
    let claimed = told.recv_timeout(std::time::Duration::from_secs(60)).expect("the claim still waits");
    let error = claimed.unwrap_err();
    assert!(matches!(error, LocalError::Locked(_)), "{error}");
    assert!(begun.elapsed() >= std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(locked);
    assert_eq!(scratch.open(2).station(), 2);
}

/// The oldest connection sends its hello just before another connection would replace the oldest connection.
/// If there is room, a waiting connection is accepted at once.
#[test]
fn one_that_speaks_at_last_keeps_its_place_and_a_free_place_is_given_away() {
    for (turn_us, spoken_us) in [(10_000, 10_100), (5_000, 5_100)] {
        let scratch = Scratch::new();
        let mut a = scratch.open(1);
        let mut dialers: Vec<Dialer> = (0..65).map(|at| Dialer::new(&scratch, 100 + at)).collect();
        dialers[64].hello().unwrap();
        poll_once(&mut a, 0);
        poll_once(&mut a, 100);
        poll_once(&mut a, turn_us);
        dialers[0].hello().unwrap();
        (0..4).for_each(|turn| drop(poll_once(&mut a, spoken_us + 100 * turn)));
        for at in [0, 64] {
            let heard = hear(&dialers[at].socket);
            assert!(
                matches!(heard, Heard::Message(Message { kind: Kind::Welcome, .. }, _)),
                "{at} {heard:?}"
            );
        }
        assert_eq!((a.local_counters().pairs, a.local_counters().put_off), (2, 0));
    }
}
