//! The messages of frontends, the socket, and the memory.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{SealFlags, fcntl_add_seals};
use testkit::folder::Folder;

use super::super::device::{FROM_DRIVER, TO_DRIVER};
use super::super::{VhostConfig, VhostError, features};
use super::driver::{ALL, Driver, GUEST, MEMORY_BYTES, SIZE, USER, memfd, message, region, words};
use super::{build, config, flat, open, pattern, receive, send, until, wait_for_link};
use crate::{Link, LinkState, Port};

const NO_HEADER: [u8; 12] = [0; 12];

#[test]
fn a_frontend_may_leave_and_another_may_come() {
    let folder = Folder::new("vhost-again");
    let mut port = open(&folder);
    let path = folder.join("wire.sock");
    for number in 0..3 {
        assert_eq!(port.link_state(), LinkState::Down);
        let mut driver = Driver::start(&path, ALL);
        wait_for_link(&mut port, LinkState::Up);
        // A second frontend is turned away, and the first goes on.
        let second = UnixStream::connect(&path).unwrap();
        use std::io::Read;
        assert!(matches!((&second).read(&mut [0]), Ok(0) | Err(_)));
        driver.send(0, &NO_HEADER, &pattern(number, 60), &[]);
        assert_eq!(flat(&receive(&mut port)[0]), pattern(number, 60));
        driver.post(0, 2048);
        let frame = build(&port, &pattern(number, 60), 60);
        assert!(send(&mut port, frame));
        assert_eq!(driver.arrived()[0].1, pattern(number, 60));
        drop(driver);
        wait_for_link(&mut port, LinkState::Down);
        assert!(!port.passes_large_frames());
    }
    drop(port);
    assert!(!path.exists());
}

#[test]
fn a_ring_stops_and_goes_on_where_it_stopped() {
    let folder = Folder::new("vhost-stop");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let mut passed = [0_u64; 2];
    for (number, queue) in [FROM_DRIVER, TO_DRIVER, FROM_DRIVER].into_iter().enumerate() {
        driver.send(0, &NO_HEADER, &pattern(number, 60), &[]);
        assert_eq!(receive(&mut port).len(), 1);
        driver.post(0, 2048);
        let frame = build(&port, &pattern(number, 60), 60);
        assert!(send(&mut port, frame));
        assert_eq!((driver.take_used(FROM_DRIVER).len(), driver.arrived().len()), (1, 1));
        passed = passed.map(|count| count + 1);
        let base = driver.get(message::GET_VRING_BASE, &words(&[queue as u64])).unwrap();
        assert_eq!(base, words(&[queue as u64 | passed[queue] << 32]));
        assert_eq!(port.link_state(), LinkState::Down);
        // What the driver sends meanwhile arrives later.
        driver.send(5, &NO_HEADER, &pattern(9, 60), &[]);
        assert!(receive(&mut port).is_empty());
        driver.start_ring(queue as u64);
        assert_eq!(port.link_state(), LinkState::Up);
        assert_eq!(flat(&receive(&mut port)[0]), pattern(9, 60));
        assert_eq!(driver.take_used(FROM_DRIVER), [(5, 0)]);
        passed[FROM_DRIVER] += 1;
    }
    assert!(driver.ask(message::RESET_DEVICE, &[], &[]));
    assert_eq!(port.link_state(), LinkState::Down);
}

#[test]
fn a_disabled_ring_is_down() {
    let folder = Folder::new("vhost-disabled");
    let mut port = open(&folder);
    let driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    for nr in 0..2_u64 {
        assert!(driver.ask(message::SET_VRING_ENABLE, &words(&[nr]), &[]));
        assert_eq!(port.link_state(), LinkState::Down);
        assert!(driver.ask(message::SET_VRING_ENABLE, &words(&[nr | 1 << 32]), &[]));
        assert_eq!(port.link_state(), LinkState::Up);
    }
}

/// QEMU enables the rings before it sets the features.
#[test]
fn a_ring_may_be_enabled_early() {
    let folder = Folder::new("vhost-early");
    let mut port = open(&folder);
    for acknowledged in [false, true] {
        let mut driver = Driver::connect(&folder.join("wire.sock"));
        for nr in 0..2_u64 {
            let payload = words(&[nr | 1 << 32]);
            if acknowledged {
                assert!(driver.ask(message::SET_VRING_ENABLE, &payload, &[]));
            } else {
                driver.say(message::SET_VRING_ENABLE, 0, &payload, &[]);
            }
        }
        driver.set_up_but_enable(ALL);
        wait_for_link(&mut port, LinkState::Up);
        drop(driver);
        wait_for_link(&mut port, LinkState::Down);
        // A ring that does not exist, and a message of another length.
        let driver = Driver::connect(&folder.join("wire.sock"));
        driver.say(message::SET_VRING_ENABLE, 0, &words(&[2 | 1 << 32]), &[]);
        assert!(driver.is_closed());
        let driver = Driver::connect(&folder.join("wire.sock"));
        driver.say(message::SET_VRING_ENABLE, 0, &words(&[1, 0]), &[]);
        assert!(driver.is_closed());
    }
}

/// The memory may be in several files, and a buffer may be in two adjacent regions.
#[test]
fn memory_is_added_and_removed() {
    let folder = Folder::new("vhost-memory");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let slots = driver.get(message::GET_MAX_MEM_SLOTS, &[]).unwrap();
    assert_eq!(slots, words(&[32]));
    // The new region follows the memory in the guest.
    let end = GUEST + MEMORY_BYTES as u64;
    let file = memfd(8192);
    let mut added = words(&[0]);
    added.extend(region(end, 4096, USER - 8192, 4096));
    assert!(driver.ask(message::ADD_MEM_REG, &added, &[file.as_fd()]));
    let frame = pattern(3, 100);
    driver.put(MEMORY_BYTES - 12 - 60, &[&NO_HEADER[..], &frame[..60]].concat());
    rustix::io::pwrite(&file, &frame[60..], 4096).unwrap();
    driver.describe(FROM_DRIVER, 0, end - 72, 112, (0, 0));
    driver.offer(FROM_DRIVER, 0);
    assert_eq!(flat(&receive(&mut port)[0]), frame);
    assert!(driver.ask(message::REM_MEM_REG, &added, &[]));
    driver.offer(FROM_DRIVER, 0);
    assert!(receive(&mut port).is_empty(), "the buffer is not in the memory any more");
    assert_eq!(port.link_state(), LinkState::Up);
    // A region with a ring cannot be removed.
    let mut whole = words(&[0]);
    whole.extend(region(GUEST, MEMORY_BYTES as u64, USER, 0));
    assert!(!driver.ask(message::REM_MEM_REG, &whole, &[]));
    wait_for_link(&mut port, LinkState::Down);
}

#[test]
fn unsuitable_messages_end_the_connection() {
    let folder = Folder::new("vhost-refused");
    let mut port = open(&folder);
    let socket = UnixStream::pair().unwrap().0;
    let file = memfd(8192);
    let folder_file = std::fs::File::open("/proc/self/status").unwrap();
    let usual = |driver: &Driver| {
        assert!(driver.ask(message::SET_FEATURES, &words(&[ALL]), &[]));
        assert!(driver.set_memory(&[(region(GUEST, MEMORY_BYTES as u64, USER, 0), driver.memfd.as_fd())]));
        assert!(driver.ask(message::SET_VRING_NUM, &words(&[u64::from(SIZE) << 32]), &[]));
    };
    let kick =
        |driver: &Driver| driver.ask(message::SET_VRING_KICK, &words(&[0]), &[driver.kicks[0].as_fd()]);
    type Case<'a> = (&'a str, Box<dyn Fn(&Driver) -> bool + 'a>);
    let memory = |places: &'static [(u64, u64, u64, u64)]| {
        let file = &file;
        move |driver: &Driver| {
            let regions = places
                .iter()
                .map(|&(guest, bytes, user, offset)| (region(guest, bytes, user, offset), file.as_fd()));
            driver.set_memory(&regions.collect::<Vec<_>>())
        }
    };
    let cases: Vec<Case<'_>> = vec![
        (
            "a feature that is not offered",
            Box::new(|driver| driver.ask(message::SET_FEATURES, &words(&[ALL | 1 << 34]), &[])),
        ),
        ("a region longer than its file", Box::new(memory(&[(GUEST, 8193, USER, 0)]))),
        ("a region behind the end of its file", Box::new(memory(&[(GUEST, 4096, USER, 8192)]))),
        ("an offset that is not of a page", Box::new(memory(&[(GUEST, 4096, USER, 1)]))),
        ("an address that overflows", Box::new(memory(&[(u64::MAX - 4095, 8192, USER, 0)]))),
        (
            "regions that overlap in the guest",
            Box::new(memory(&[(GUEST, 4096, USER, 0), (GUEST + 4095, 4096, 0, 0)])),
        ),
        (
            "regions that overlap in the frontend",
            Box::new(memory(&[(GUEST, 4096, USER, 0), (0, 4096, USER + 1, 0)])),
        ),
        (
            "no regular file",
            Box::new(|driver| driver.set_memory(&[(region(GUEST, 4096, USER, 0), socket.as_fd())])),
        ),
        (
            "a file that cannot be mapped",
            Box::new(|driver| driver.set_memory(&[(region(GUEST, 1, USER, 0), folder_file.as_fd())])),
        ),
        (
            "a ring that does not exist",
            Box::new(|driver| driver.ask(message::SET_VRING_NUM, &words(&[2 | 64 << 32]), &[])),
        ),
        (
            "a size that is no power of two",
            Box::new(|driver| driver.ask(message::SET_VRING_NUM, &words(&[63 << 32]), &[])),
        ),
        ("a size of zero", Box::new(|driver| driver.ask(message::SET_VRING_NUM, &words(&[0]), &[]))),
        (
            "a size that is too large",
            Box::new(|driver| driver.ask(message::SET_VRING_NUM, &words(&[65_536 << 32]), &[])),
        ),
        (
            "a base that is no index",
            Box::new(|driver| driver.ask(message::SET_VRING_BASE, &words(&[65_536 << 32]), &[])),
        ),
        (
            "a ring without addresses",
            Box::new(|driver| {
                usual(driver);
                kick(driver)
            }),
        ),
        (
            "a ring outside of the memory",
            Box::new(|driver| {
                usual(driver);
                let addresses = driver.addresses(0, USER + MEMORY_BYTES as u64 - 0x8000);
                assert!(driver.ask(message::SET_VRING_ADDR, &addresses, &[]));
                kick(driver)
            }),
        ),
        (
            "a ring that is not aligned",
            Box::new(|driver| {
                usual(driver);
                driver.ask(message::SET_VRING_ADDR, &driver.addresses(0, USER + 4), &[])
            }),
        ),
        (
            "a ring that is not aligned in its mapping",
            Box::new(|driver| {
                usual(driver);
                let place = region(GUEST, MEMORY_BYTES as u64, USER - 8, 0);
                assert!(driver.set_memory(&[(place, driver.memfd.as_fd())]));
                assert!(driver.ask(message::SET_VRING_ADDR, &driver.addresses(0, USER), &[]));
                kick(driver)
            }),
        ),
        (
            "a kick that is no eventfd",
            Box::new(|driver| driver.ask(message::SET_VRING_KICK, &words(&[0]), &[socket.as_fd()])),
        ),
        (
            "a call that is no eventfd",
            Box::new(|driver| driver.ask(message::SET_VRING_CALL, &words(&[0]), &[file.as_fd()])),
        ),
        ("a message that does not exist", Box::new(|driver| driver.ask(99, &[], &[]))),
        ("a message that is too short", Box::new(|driver| driver.ask(message::SET_VRING_NUM, &[0; 7], &[]))),
        (
            "no message",
            Box::new(|driver| {
                driver.write(&[0xff; 12], &[]);
                false
            }),
        ),
    ];
    for (what, act) in cases {
        let driver = Driver::connect(&folder.join("wire.sock"));
        assert!(!act(&driver), "{what}");
        assert!(driver.is_closed(), "{what}");
    }
    let _driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
}

/// A frontend that sends only a part of a message does not keep the port from ending.
#[test]
fn half_a_message_does_not_keep_the_port() {
    let folder = Folder::new("vhost-half");
    for bytes in [1, 11, 12, 15] {
        let port = open(&folder);
        let driver = Driver::connect(&folder.join("wire.sock"));
        let whole = [&[8_u8, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0][..], &[0; 8]].concat();
        driver.write(&whole[..bytes], &[]);
        // Usually the thread now waits for the rest of the message.
        std::thread::sleep(std::time::Duration::from_millis(5));
        drop(port);
        until("the connection ends", || driver.is_closed());
    }
}

#[test]
fn memory_that_may_shrink_is_refused_if_seals_are_needed() {
    let folder = Folder::new("vhost-seals");
    let mut port = super::super::open(&VhostConfig { needs_seals: true, ..config(&folder) }).unwrap();
    let driver = Driver::connect(&folder.join("wire.sock"));
    let places = |driver: &Driver| {
        driver.set_memory(&[(region(GUEST, MEMORY_BYTES as u64, USER, 0), driver.memfd.as_fd())])
    };
    assert!(!places(&driver));
    drop(driver);
    let mut driver = Driver::connect(&folder.join("wire.sock"));
    fcntl_add_seals(&driver.memfd, SealFlags::SHRINK).unwrap();
    assert!(places(&driver));
    driver.set_up(ALL | features::EVENT_IDX);
    wait_for_link(&mut port, LinkState::Up);
}

#[test]
fn a_socket_that_is_in_use_is_refused_and_a_stale_one_is_replaced() {
    let folder = Folder::new("vhost-socket");
    let path = folder.join("wire.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the file of a process that has ended");
    let port = open(&folder);
    let error = super::super::open(&config(&folder)).unwrap_err();
    assert!(matches!(error, VhostError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("is in use") && !error.to_string().contains('\n'));
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::AddrInUse);
    // The attempt does not disturb the port.
    drop(Driver::start(&path, ALL));
    // Another file at the path stays.
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(port);
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file").unwrap();
    let error = super::super::open(&config(&folder)).unwrap_err();
    assert!(matches!(error, VhostError::NoSocket { .. }), "{error}");
    let nowhere = VhostConfig::new(folder.join("no/wire.sock"));
    assert!(matches!(super::super::open(&nowhere).unwrap_err(), VhostError::Socket { .. }));
}

#[test]
fn options_out_of_range_are_refused() {
    let folder = Folder::new("vhost-options");
    let usual = || config(&folder);
    for config in [
        VhostConfig { mtu: 575, ..usual() },
        VhostConfig { mtu: 9699, ..usual() },
        VhostConfig { mbufs: 63, ..usual() },
        VhostConfig { bulk_mbufs: 7, ..usual() },
        VhostConfig { mac: Some([1, 0, 0, 0, 0, 1]), ..usual() },
        VhostConfig { mac: Some([0; 6]), ..usual() },
    ] {
        let error = super::super::open(&config).unwrap_err();
        assert!(!error.to_string().contains('\n'));
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::InvalidInput);
    }
    let port = open(&folder);
    assert_eq!(port.info().mac[0] & 3, 2, "a local unicast address");
}
