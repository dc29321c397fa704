//! A port that sleeps, and the notifications in both directions.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::folder::Folder;

use super::super::device::{FROM_DRIVER, TO_DRIVER};
use super::super::{VhostPort, features};
use super::driver::{ALL, Driver, count_of};
use super::{build, open, pattern, receive, send, until, wait_for_link};
use crate::{Link, LinkState, Sleep};

const NO_HEADER: [u8; 12] = [0; 12];
const NO_NOTIFICATION: u16 = 1;

/// Whether the port's descriptor is readable now.
fn is_readable(port: &VhostPort) -> bool {
    let fd = port.poll_fd().unwrap();
    let mut polled = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Arms the port until it may sleep.
fn arm(port: &mut VhostPort) {
    until("the port may sleep", || port.arm_wakeup());
}

#[test]
fn a_frame_wakes_a_port_that_sleeps() {
    let folder = Folder::new("vhost-sleep");
    for event_index in [0, features::EVENT_IDX] {
        let mut port = open(&folder);
        let mut driver = Driver::start(&folder.join("wire.sock"), ALL | event_index);
        wait_for_link(&mut port, LinkState::Up);
        for number in 0..5 {
            // A port that polls needs no notifications.
            if event_index == 0 {
                assert_eq!(driver.used_flags(FROM_DRIVER), NO_NOTIFICATION);
            }
            driver.send(0, &NO_HEADER, &pattern(number, 60), &[]);
            assert!(!port.arm_wakeup(), "a frame waits");
            port.disarm_wakeup();
            assert_eq!(receive(&mut port).len(), 1);
            arm(&mut port);
            assert!(!is_readable(&port));
            if event_index == 0 {
                assert_eq!(driver.used_flags(FROM_DRIVER), 0);
            } else {
                assert_eq!(usize::from(driver.available_event(FROM_DRIVER)), 2 * number + 1);
            }
            driver.send(0, &NO_HEADER, &pattern(number, 60), &[]);
            super::super::control::notify(&driver.kicks[FROM_DRIVER]);
            assert!(is_readable(&port));
            port.disarm_wakeup();
            assert_eq!(receive(&mut port).len(), 1);
            arm(&mut port);
            assert!(!is_readable(&port), "the event was removed");
            port.disarm_wakeup();
            driver.take_used(FROM_DRIVER);
        }
    }
}

#[test]
fn a_change_of_the_link_wakes_a_port_that_sleeps() {
    let folder = Folder::new("vhost-wake");
    let mut port = open(&folder);
    arm(&mut port);
    assert!(!is_readable(&port));
    let driver = Driver::start(&folder.join("wire.sock"), ALL);
    until("the port is woken", || is_readable(&port));
    assert!(!port.arm_wakeup(), "the link has changed");
    port.disarm_wakeup();
    assert_eq!(port.link_state(), LinkState::Up);
    arm(&mut port);
    drop(driver);
    until("the port is woken", || is_readable(&port));
    port.disarm_wakeup();
    wait_for_link(&mut port, LinkState::Down);
}

/// A ring that is started again asks for no notifications. So a port that sleeps is woken, and asks again.
#[test]
fn new_rings_wake_a_port_that_sleeps() {
    let folder = Folder::new("vhost-rings");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    arm(&mut port);
    let file = super::driver::memfd(4096);
    let mut added = super::driver::words(&[0]);
    added.extend(super::driver::region(0, 4096, 0x1000, 0));
    use std::os::fd::AsFd;
    assert!(driver.ask(super::driver::message::ADD_MEM_REG, &added, &[file.as_fd()]));
    assert!(is_readable(&port));
    port.disarm_wakeup();
    arm(&mut port);
    assert_eq!(driver.used_flags(FROM_DRIVER), 0);
    driver.send(0, &NO_HEADER, &pattern(0, 60), &[]);
    super::super::control::notify(&driver.kicks[FROM_DRIVER]);
    assert!(is_readable(&port));
}

#[test]
fn the_driver_is_notified_if_it_asks() {
    let folder = Folder::new("vhost-call");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    // A new eventfd is notified once.
    assert_eq!(driver.calls.each_ref().map(count_of), [1, 1]);
    for (flags, calls) in [(0, 1), (NO_NOTIFICATION, 0)] {
        driver.set_flags(FROM_DRIVER, flags);
        driver.set_flags(TO_DRIVER, flags);
        driver.send(0, &NO_HEADER, &pattern(0, 60), &[]);
        driver.send(1, &NO_HEADER, &pattern(1, 60), &[]);
        assert_eq!(receive(&mut port).len(), 2);
        assert_eq!(driver.calls.each_ref().map(count_of), [0, calls], "once for a burst");
        driver.post(0, 2048);
        let frame = build(&port, &pattern(0, 60), 60);
        assert!(send(&mut port, frame));
        assert_eq!(driver.calls.each_ref().map(count_of), [calls, 0]);
        assert!(receive(&mut port).is_empty());
        assert_eq!(driver.calls.each_ref().map(count_of), [0, 0]);
    }
}

#[test]
fn the_driver_is_notified_at_the_index_for_which_it_asks() {
    let folder = Folder::new("vhost-event");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL | features::EVENT_IDX);
    wait_for_link(&mut port, LinkState::Up);
    assert_eq!(driver.calls.each_ref().map(count_of), [1, 1]);
    let mut index = 0_u16;
    // The event is `ahead` entries behind the present index, and a burst has three frames.
    for (ahead, calls) in [(0, 1), (2, 1), (3, 0), (u16::MAX, 0), (1, 1)] {
        driver.set_used_event(FROM_DRIVER, index.wrapping_add(ahead));
        for nr in 0..3 {
            driver.send(nr, &NO_HEADER, &pattern(0, 60), &[]);
        }
        assert_eq!(receive(&mut port).len(), 3);
        index = index.wrapping_add(3);
        assert_eq!(count_of(&driver.calls[FROM_DRIVER]), calls, "{ahead}");
        driver.take_used(FROM_DRIVER);
    }
}
