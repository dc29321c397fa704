//! The window that an engine announces depends on the engine's memory, and never on the number of posted
//! receives. If the engine discards bytes for lack of memory, the peer retransmits them.

use crate::common::{Testbed, pattern, remote_addr};
use std::sync::{Arc, Mutex};

use crate::common::hooked::Hooks;
use dp::link::{LinkConfig, LinkPlan};
use dp::{Burst, Port};
use iwarp::memory::Access;
use iwarp::verbs::{ConnParam, RecvRequest, SendOp, SendRequest, WcStatus};
use tcp_lite::TcpConfig;

/// Acknowledgement number and window of each TCP segment that a port has sent.
type Windows = Arc<Mutex<Vec<(u32, u16)>>>;

/// Records the acknowledgement number and the window of each TCP segment that the port sends.
struct Watched(Windows);

impl Hooks for Watched {
    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        for frame in frames.iter() {
            let mut head = [0; 50];
            // Selects TCP segments over IPv4. The offsets below are right because the frames have neither a
            // VLAN tag nor IP options.
            if frame.copy_to(0, &mut head) == head.len() && head[12..14] == [8, 0] && head[23] == 6 {
                let ack = u32::from_be_bytes(head[42..46].try_into().unwrap());
                let window = u16::from_be_bytes(head[48..50].try_into().unwrap());
                self.0.lock().unwrap().push((ack, window));
            }
        }
        port.tx_burst(now_us, frames)
    }
}

/// Returns the windows that B announces while A writes to B's memory. B posts `before` receives at the start
/// and `meanwhile` receives during the Writes.
fn windows(before: usize, meanwhile: usize) -> Vec<(u32, u16)> {
    let noted = Windows::default();
    let mut pair = Testbed::new().hook_b(Watched(Arc::clone(&noted))).hosts();
    let c = pair.connect(&ConnParam::default());
    let source = pair.a.pd.reg_mr(300_000, Access::empty()).unwrap();
    let target = pair.b.pd.reg_mr(300_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let post = |count| {
        for nr in 0..count {
            c.qp_b.post_recv(&RecvRequest::new(nr as u64, target.sge(0, 1000))).unwrap();
        }
    };
    post(before);
    let remote = remote_addr(&target, 0);
    for nr in 0..10 {
        let write = SendRequest::new(nr, SendOp::Write { remote }, source.sge(0, 300_000));
        c.qp_a.post_send(&write).unwrap();
        if nr == 5 {
            post(meanwhile);
        }
        assert_eq!(pair.wc_a().status, WcStatus::Success);
    }
    let windows = noted.lock().unwrap().clone();
    assert!(windows.len() > 20, "{windows:?}");
    windows
}

#[test]
fn posting_receives_does_not_move_the_window() {
    let none = windows(0, 0);
    // The window is scaled by 128 after the SYN. The right edge of the window moves by whole segments.
    let least = TcpConfig::default().recv_window_bytes / 128 - 12;
    assert!(none[1..].iter().all(|(_, window)| u32::from(*window) >= least), "open all the time: {none:?}");
    assert!(none == windows(500, 0), "posted before");
    assert!(none == windows(0, 500), "posted on the way");
}

#[test]
fn bytes_given_up_for_lack_of_memory_come_again_and_right() {
    for markers in [false, true] {
        let lossy = LinkPlan {
            drop_ppm: 20_000,
            reorder_ppm: 20_000,
            reorder_us: 300,
            delay_us: 50,
            ..LinkPlan::default()
        };
        let link = LinkConfig { a_to_b: lossy, seed: 4, ..LinkConfig::default() };
        let mut pair =
            Testbed::on(&link).configure(|config| config.stack.limits.out_of_order_bytes = 16_000).hosts();
        let _listener = pair.listen();
        let param = ConnParam { markers, ..ConnParam::default() };
        let all: Vec<_> = (0..4).map(|_| pair.connect_again(&param, &param)).collect();
        let len = 400_000;
        let source = pair.a.pd.reg_mr(len, Access::empty()).unwrap();
        let bytes = pattern(9, len);
        source.write_at(0, &bytes).unwrap();
        let targets: Vec<_> = all
            .iter()
            .map(|_| pair.b.pd.reg_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap())
            .collect();
        let messages: Vec<_> =
            all.iter().map(|_| pair.b.pd.reg_mr(5000, Access::LOCAL_WRITE).unwrap()).collect();
        for (at, c) in all.iter().enumerate() {
            let remote = remote_addr(&targets[at], 0);
            c.qp_b.post_recv(&RecvRequest::new(at as u64, messages[at].sge(0, 5000))).unwrap();
            c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote }, source.sge(0, len))).unwrap();
            c.qp_a.post_send(&SendRequest::new(2, SendOp::Send, source.sge(0, 5000))).unwrap();
        }
        for _ in &all {
            let wc = pair.wc_b();
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 5000));
        }
        let mut got = vec![0; len];
        for (target, message) in targets.iter().zip(&messages) {
            target.read_at(0, &mut got).unwrap();
            assert!(got == bytes, "markers {markers}: a Write");
            message.read_at(0, &mut got[..5000]).unwrap();
            assert!(got[..5000] == bytes[..5000], "markers {markers}: a Send");
        }
        let counters = pair.b.engine.counters();
        let gauge = counters.stack.out_of_order;
        println!("markers {markers}: {gauge:?}, evicted {}", counters.stack.rx_out_of_order_evicted_bytes);
        // With markers, all bytes were placed early, so the stack held no bytes that it could discard.
        assert_eq!(counters.stack.rx_out_of_order_evicted_bytes > 0, !markers, "{:?}", counters.stack);
        assert!(gauge.max_pinned_bytes <= 16_000 + 2 * 2176, "markers {markers}: {gauge:?}");
        assert_eq!((gauge.held_bytes, gauge.pinned_bytes), (0, 0), "markers {markers}");
    }
}
