//! Bytes that change in a repeated TCP segment have no effect. Bytes that change in a buffer while a request
//! uses it affect only the contents of the message (RFC 5040 section 5.5, RFC 5044 appendix A.3).

use crate::common::{ALL, Pair, Testbed, read_bytes, remote_addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dp::{Burst, Checksum, Port};
use iwarp::engine::ThreadOptions;
use iwarp::verbs::{ConnParam, RecvRequest, RemoteAddr, SendOp, SendRequest, WcStatus};

use crate::common::hooked::SharedHooks;

/// Number of bytes of the Ethernet and IPv4 headers.
const HEADERS: usize = 34;

/// Values of payload bytes that occur in no header and no marker of these FPDUs.
const PAYLOAD: std::ops::RangeInclusive<u8> = 0x51..=0x53;

/// Loses `to_lose` long frames, and delivers each later long frame twice. The duplicate has different
/// payload, with the right CRC and TCP checksum.
#[derive(Default)]
struct Copier {
    to_lose: AtomicU64,
    copies: AtomicU64,
}

impl SharedHooks for Copier {
    fn rx_burst(&self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let mut all = Burst::new();
        port.rx_burst(now_us, &mut all);
        let before = frames.len();
        for frame in all.drain(..) {
            let long = frame.len() > 500;
            let loses = |left: u64| left.checked_sub(1);
            if long && self.to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, loses).is_ok() {
                continue;
            }
            let copy = if long { frame.deep_copy(port.mempool()) } else { None };
            frames.push(frame);
            if let Some(mut copy) = copy {
                change(copy.head_mut().unwrap());
                copy.set_rx_checksum(Checksum::Good);
                frames.push(copy);
                self.copies.fetch_add(1, Ordering::Relaxed);
            }
        }
        frames.len() - before
    }
}

/// Changes the payload of the FPDU that fills the segment of `frame`.
fn change(frame: &mut [u8]) {
    let tcp_header = 4 * usize::from(frame[HEADERS + 12] >> 4);
    let fpdu = &mut frame[HEADERS + tcp_header..];
    let crc = fpdu.len() - 4;
    assert_eq!(fpdu[crc..], crc32c::crc32c(&fpdu[..crc]).to_le_bytes(), "one FPDU in each segment");
    fpdu[..crc].iter_mut().filter(|byte| PAYLOAD.contains(byte)).for_each(|byte| *byte = 0x99);
    let field = crc32c::crc32c(&fpdu[..crc]).to_le_bytes();
    fpdu[crc..].copy_from_slice(&field);
}

/// Each long TCP segment arrives twice, the second time with different payload and right checksums. The
/// segments arrive in order, or beyond a hole. Beyond a hole, the bytes of the first arrival are placed at
/// once. Placed bytes do not change.
// Proves MPA-275.
#[test]
fn a_copy_with_other_bytes_changes_nothing() {
    for lost in [0, 1] {
        let copier = Arc::new(Copier::default());
        let mut pair = Testbed::new().hook_b(Arc::clone(&copier)).hosts();
        let c = pair.connect(&ConnParam { markers: true, ..ConnParam::default() });
        let (local, target) = pair.regions(4000);
        local.write_at(0, &[[0x51; 1000], [0x52; 1000], [0x53; 1000]].concat()).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(9, target.sge(2000, 1000))).unwrap();
        let remote = |at| RemoteAddr { addr: target.addr() + at, rkey: target.rkey() };
        let requests = [
            SendRequest::new(1, SendOp::Write { remote: remote(0) }, local.sge(0, 1000)),
            SendRequest::new(2, SendOp::Write { remote: remote(1000) }, local.sge(1000, 1000)),
            SendRequest::new(3, SendOp::Send, local.sge(2000, 1000)),
        ];
        copier.to_lose.store(lost, Ordering::Relaxed);
        c.qp_a.post_send_list(&requests).unwrap();
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (9, WcStatus::Success, 1000));
        pair.run_us(10_000);
        let seen = read_bytes(&target, 0, 4000);
        assert!(seen == [[0x51; 1000], [0x52; 1000], [0x53; 1000], [0; 1000]].concat(), "{lost} lost");
        let counters = pair.b.engine.counters();
        assert!(copier.copies.load(Ordering::Relaxed) >= 3 && counters.rx_fpdus_early >= lost);
        assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None), "{lost} lost");
    }
}

/// The user stores to memory of both hosts while messages use this memory. Sends, Writes and Read Responses
/// are read from the memory, and Writes and Read Responses are placed in the memory. Each byte is an old or a
/// new byte, each CRC matches the bytes sent, and no byte outside the ranges changes.
// Proves RDMAP-272 and RDMAP-273: whatever the target buffer contains afterwards, no byte outside it changes.
// Whatever is read from the source buffer consists of stored bytes, and the CRC is right.
#[test]
fn a_buffer_may_be_stored_to_while_it_is_used() {
    const LEN: usize = 100_000;
    const ROUNDS: u64 = 200;
    let (pair, c) = Pair::connected();
    // The user stores to the first part of each region. Messages read from the first part, and are placed in
    // the first and the third part. Nobody uses the second and the fourth part.
    let regions = [&pair.a.pd, &pair.b.pd].map(|pd| pd.reg_mr(4 * LEN, ALL).unwrap());
    let [local, target] = &regions;
    for region in &regions {
        region.write_at(0, &vec![1; LEN]).unwrap();
        region.write_at(2 * LEN, &vec![1; LEN]).unwrap();
    }
    for wr_id in 0..ROUNDS {
        c.qp_b.post_recv(&RecvRequest::new(wr_id, target.sge(2 * LEN, LEN))).unwrap();
    }
    let remote = |at: usize| remote_addr(target, at);
    let Pair { a, b, .. } = pair;
    let engines = [a.engine, b.engine].map(|engine| engine.spawn(ThreadOptions::default()).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (ones, twos) = (vec![1; LEN], vec![2; LEN]);
            while !over.load(Ordering::Relaxed) {
                for bytes in [&twos, &ones] {
                    regions.iter().for_each(|region| region.write_at(0, bytes).unwrap());
                }
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let done = (0..ROUNDS).try_for_each(|n| {
            let requests = [
                SendRequest::new(n, SendOp::Send, local.sge(0, LEN)),
                SendRequest::new(n, SendOp::Write { remote: remote(0) }, local.sge(0, LEN)),
                SendRequest::new(n, SendOp::Read { remote: remote(0) }, local.sge(2 * LEN, LEN)),
                SendRequest::new(n, SendOp::Read { remote: remote(0) }, local.sge(0, LEN)),
            ];
            c.qp_a.post_send_list(&requests).unwrap();
            for _ in &requests {
                let wc = loop {
                    match a.cq.poll_one() {
                        Some(wc) => break wc,
                        None if Instant::now() > deadline => return Err("too late".to_owned()),
                        None => std::thread::yield_now(),
                    }
                };
                if wc.status != WcStatus::Success {
                    return Err(format!("{wc:?}"));
                }
            }
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    drop(engines);
    assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None));
    for region in &regions {
        let mut seen = vec![9; 4 * LEN];
        region.read_at(0, &mut seen).unwrap();
        for (part, bytes) in seen.chunks(LEN).enumerate() {
            let is_used = part % 2 == 0;
            assert!(bytes.iter().all(|byte| is_used == matches!(byte, 1 | 2)), "part {part}");
            assert!(is_used || bytes.iter().all(|byte| *byte == 0), "part {part}");
        }
    }
}
