//! A local wire within one process, and its parts.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::{Burst, Checksum, Mbuf, Port, TxOffload};

/// A folder of its own that is removed with the test.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("dp-local-{}-{number}", std::process::id())))
    }

    fn config(&self) -> LocalConfig {
        LocalConfig { mbufs: 512, bulk_mbufs: 16, ring_bytes: 256 << 10, ..LocalConfig::new(self.0.clone()) }
    }

    fn open(&self, station: u16) -> LocalPort {
        open(&LocalConfig { station: Some(station), ..self.config() }).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A frame to `station` of `bytes` bytes, each of which depends on `number`.
fn frame(port: &LocalPort, station: u16, number: u32, bytes: usize) -> Mbuf {
    let mut frame = port.mempool().alloc().unwrap();
    let [high, low] = station.to_be_bytes();
    assert!(frame.append_slice(&[2, 0, 0x64, 0x40, high, low]));
    assert!(frame.append_slice(&port.info().mac));
    assert!(frame.append_slice(&number.to_be_bytes()));
    while frame.len() < bytes {
        let mut part = port.mempool().alloc().unwrap();
        let room = (bytes - frame.len()).min(port.mempool().data_bytes());
        let start = frame.len();
        part.append(room)
            .unwrap()
            .iter_mut()
            .enumerate()
            .for_each(|(i, byte)| *byte = (start + i + number as usize) as u8);
        frame.chain(part).unwrap();
    }
    frame
}

fn send(port: &mut LocalPort, frame: Mbuf) -> usize {
    port.tx_burst(0, &mut [frame].into_iter().collect())
}

/// Polls both ports until something arrives at the second.
fn receive(from: &mut LocalPort, at: &mut LocalPort) -> Mbuf {
    let mut burst = Burst::new();
    for _ in 0..100_000 {
        from.rx_burst(0, &mut Burst::new());
        if at.rx_burst(0, &mut burst) > 0 {
            return burst.remove(0);
        }
    }
    panic!("nothing arrives");
}

fn flat(frame: &Mbuf) -> Vec<u8> {
    frame.segments().flatten().copied().collect()
}

#[test]
fn frames_of_every_length_arrive_as_they_were_sent() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (scratch.open(1), scratch.open(2));
    for (number, bytes) in [14, 16, 64, 1514, 9018, 9019, 30_000, 65_553].into_iter().enumerate() {
        let mut sent = frame(&a, 2, number as u32, bytes);
        if bytes == 14 {
            sent.truncate(14);
        }
        sent.set_tx_offload(TxOffload {
            tcp_checksum: number % 2 == 0,
            tso_segment_bytes: if bytes > 9018 { 8960 } else { 0 },
            ..TxOffload::default()
        });
        let bytes = flat(&sent);
        assert_eq!(send(&mut a, sent), 1);
        let received = receive(&mut a, &mut b);
        assert_eq!(flat(&received), bytes);
        let checksum = if number % 2 == 0 { Checksum::Partial } else { Checksum::Unknown };
        assert_eq!(received.rx_checksum(), checksum);
    }
    assert_eq!(a.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
}
