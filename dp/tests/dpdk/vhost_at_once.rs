//! Tests several threads that open vhost devices at the same time.

use std::process::Command;
use std::sync::Barrier;

use dp::dpdk::DeviceConfig;

use crate::support::{self, Scratch};

/// Number of rounds. Each round runs in its own process, since vhost's thread is started once per process.
/// Without the lock, about one of ten rounds started two threads.
const ROUNDS: usize = 20;

const DEVICES: usize = 8;

#[test]
fn devices_opened_at_once_share_one_thread_of_vhost() {
    for round in 0..ROUNDS {
        let opened = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "vhost_at_once::second_process_opens_all_at_once"])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&opened.stdout);
        assert!(opened.status.success() && printed.contains("1 passed"), "round {round}: {printed}");
    }
}

/// Returns the number of threads of this process with this name.
fn threads_called(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|thread| thread.trim() == name).count()
}

/// A second thread of vhost would free connections that the first thread still uses.
#[test]
#[ignore = "the second process of the test above"]
fn second_process_opens_all_at_once() {
    let scratch = Scratch::new("vhost-at-once");
    let socket = scratch.socket();
    let config = DeviceConfig { mbufs: Some(255), bulk_mbufs: 0, ..DeviceConfig::default() };
    support::eal();
    let together = Barrier::new(DEVICES);
    let ports: Vec<_> = std::thread::scope(|scope| {
        let open = |number: usize| {
            let device = format!("net_vhost{number},iface={socket}{number}");
            let (together, config) = (&together, &config);
            scope.spawn(move || {
                together.wait();
                support::open(&device, config)
            })
        };
        let openers: Vec<_> = (0..DEVICES).map(open).collect();
        openers.into_iter().map(|opener| opener.join().unwrap()).collect()
    });
    assert_eq!((ports.len(), threads_called("vhost-events")), (DEVICES, 1));
}
