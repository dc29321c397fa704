//! Tests of the bytes of the messages between two stations.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::super::hello::{Descriptors, Heard, Kind, MESSAGE_BYTES, Message, hear, take_wake, tell, wake};

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn message(kind: Kind) -> Message {
    Message {
        kind,
        station: 0x1234,
        ring_bytes: 0x0102_0304_0506_0708,
        instance: 0x1112_1314_1516_1718,
        serial: 0x2122_2324_2526_2728,
        pool_bytes: 0,
    }
}

/// Returns the bytes that a message has on the socket.
fn bytes(message: &Message) -> [u8; MESSAGE_BYTES] {
    let (a, b) = pair();
    tell(&a, message, &[]).unwrap();
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let (count, _) = recv(&b, &mut bytes[..], RecvFlags::empty()).unwrap();
    assert_eq!(count, MESSAGE_BYTES);
    *bytes.first_chunk().unwrap()
}

#[test]
fn a_message_has_its_fields_at_their_places_and_comes_back() {
    for (kind, number) in [(Kind::Hello, 1), (Kind::Welcome, 2), (Kind::Crossed, 3), (Kind::Again, 4)] {
        let sent = message(kind);
        let bytes = bytes(&sent);
        let wanted = [
            &b"uwarp\0l3"[..],
            &[number, 0],
            &[0x34, 0x12],
            &[0; 4],
            &sent.ring_bytes.to_le_bytes(),
            &sent.instance.to_le_bytes(),
            &sent.serial.to_le_bytes(),
            &sent.pool_bytes.to_le_bytes(),
        ]
        .concat();
        assert_eq!(bytes[..], wanted);
        assert_eq!(Message::decode(&bytes), Some(sent));
    }
}

#[test]
fn what_another_version_would_say_is_no_message() {
    let good = bytes(&message(Kind::Hello));
    assert_eq!(Message::decode(&good[..MESSAGE_BYTES - 1]), None);
    assert_eq!(Message::decode(&[&good[..], &[0]].concat()), None);
    // Bytes 0 to 9 are the name and the kind. Bytes 12 to 15 are not used.
    for at in (0..10).chain(12..16) {
        let mut wrong = good;
        wrong[at] ^= 0x80;
        assert_eq!(Message::decode(&wrong), None, "byte {at}");
    }
    for kind in (0..=u8::MAX).filter(|kind| !(1..=4).contains(kind)) {
        let mut wrong = good;
        wrong[8] = kind;
        assert_eq!(Message::decode(&wrong), None, "kind {kind}");
    }
    let mut nobody = good;
    nobody[10..12].fill(0);
    assert_eq!(Message::decode(&nobody), None, "station 0");
}

#[test]
fn each_thing_that_a_socket_says_is_told_apart() {
    let (a, b) = pair();
    assert!(matches!(hear(&b), Heard::Silence));
    wake(&a);
    assert!(matches!(hear(&b), Heard::Wake));
    tell(&a, &message(Kind::Welcome), &[]).unwrap();
    assert!(
        matches!(hear(&b), Heard::Message(told, Descriptors { rings: None, pool: None }) if told == message(Kind::Welcome))
    );
    let (memory, _other) = pair();
    tell(&a, &message(Kind::Hello), &[memory.as_fd()]).unwrap();
    let Heard::Message(told, Descriptors { rings: Some(got), pool: None }) = hear(&b) else {
        panic!("no descriptor")
    };
    assert_eq!(told, message(Kind::Hello));
    let flags = rustix::io::fcntl_getfd(&got).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "programs that this one starts do not get it");
    for nonsense in [&b"x"[..], &[1, 1], &[0; MESSAGE_BYTES + 1]] {
        send(&a, nonsense, SendFlags::empty()).unwrap();
        assert!(matches!(hear(&b), Heard::Nonsense), "{nonsense:?}");
    }
    drop(a);
    assert!(matches!(hear(&b), Heard::End));
}

#[test]
fn a_wake_is_taken_at_a_time_and_anything_else_ends_the_pair() {
    let (a, b) = pair();
    assert!(take_wake(&b), "nothing has come");
    for _ in 0..3 {
        wake(&a);
    }
    // The call returns even if a peer sends wake-ups for ever.
    assert!(take_wake(&b));
    assert!(matches!(hear(&b), Heard::Wake));
    assert!(take_wake(&b));
    assert!(matches!(hear(&b), Heard::Silence));
    for wrong in [&[2][..], &[1, 1]] {
        send(&a, wrong, SendFlags::empty()).unwrap();
        assert!(!take_wake(&b), "{wrong:?}");
    }
    drop(a);
    assert!(!take_wake(&b));
}
