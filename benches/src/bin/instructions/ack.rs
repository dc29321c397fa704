//! The cost for TCP's sender of processing an acknowledgement, from the frame to the control block.
//!
//! A sender keeps 256 segments in flight, and each acknowledgement from its peer is counted. In the load
//! without holes, nothing is lost, and every second segment is acknowledged. In the load with holes, every
//! 32nd data segment is lost and later retransmitted, so most acknowledgements carry SACK blocks.

use std::collections::VecDeque;

use dp::{Burst, Mbuf, Mempool};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{ConnId, Event, Instant, Limits, Stack, StackConfig, TcpConfig};

use crate::Result;
use crate::counted::Side;

const MTU: u16 = 1500;
const WINDOW: u32 = 256 * 1448;
/// Duration of a step in microseconds. A round trip has eight steps.
const STEP_US: i64 = 125;
const STEPS_UNDER_WAY: usize = 4;
/// Number of acknowledgements before counting starts. These acknowledgements cover more than a window, so
/// that slow start is over.
const WARM_UP: u64 = 4096;
/// Number of acknowledgements that are counted.
const COUNTED: u64 = 20_000;

fn stack(n: u8) -> Stack {
    let config = StackConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, n]),
        vlan: None,
        addresses: std::iter::once(format!("10.0.0.{n}/24").parse().expect("an address")).collect(),
        gateways: Default::default(),
        address_probing: Default::default(),
        derived_neighbors: None,
        loopback: false,
        mtu: MTU,
        offloads: Default::default(),
        limits: Limits::default(),
        tcp: TcpConfig { recv_window_bytes: WINDOW, send_buffer_bytes: WINDOW, ..TcpConfig::default() },
        seed: [n; 32],
    };
    Stack::new(config, Mempool::heap("acks", 16_384, 2048))
}

/// The frames in flight, by the step in which they were sent.
type Flight = VecDeque<Vec<Vec<u8>>>;

fn sent(stack: &mut Stack, now: Instant) -> Vec<Vec<u8>> {
    let (mut frames, mut out) = (Vec::new(), Burst::new());
    loop {
        let more = stack.transmit(now, &mut out);
        if out.is_empty() {
            return frames;
        }
        frames.extend(out.drain(..).map(|frame| frame.segments().flatten().copied().collect()));
        if !more {
            return frames;
        }
    }
}

fn received(pool: &Mempool, bytes: &[u8]) -> Mbuf {
    let mut frame = pool.alloc().expect("a buffer");
    frame.append(bytes.len()).expect("room").copy_from_slice(bytes);
    frame
}

/// Sends until the send buffer of `conn` is full.
fn feed(stack: &mut Stack, now: Instant, conn: ConnId) {
    static BYTES: [u8; 65_536] = [0x5a; 65_536];
    while stack.send(now, conn, &BYTES).is_ok() {}
}

/// Runs the load, with lost segments if `holes` is true. Returns the number of acknowledgements that were
/// counted.
///
/// # Errors
/// Fails if the number of retransmissions is outside the range that is expected for the load.
pub(crate) fn run(holes: bool) -> Result<u64> {
    let pool = Mempool::heap("wire", 4096, 2048);
    let (mut a, mut b) = (stack(1), stack(2));
    b.listen(1).expect("a free port");
    let conn = a.connect(Instant::ZERO, "10.0.0.2:1".parse().expect("an address"), None).expect("a route");
    let (mut to_a, mut to_b): (Flight, Flight) = Default::default();
    let (mut acks, mut segments, mut established) = (0, 0_u64, false);
    for step in 0.. {
        let now = Instant::from_micros(step * STEP_US);
        if to_a.len() == STEPS_UNDER_WAY {
            for bytes in to_a.pop_front().unwrap_or_default() {
                let mut frame = Some(received(&pool, &bytes));
                let mut input = || a.input(now, frame.take().expect("called once"));
                if established && (WARM_UP..WARM_UP + COUNTED).contains(&acks) {
                    Side::Acknowledged.count(&mut input);
                } else {
                    input();
                }
                acks += u64::from(established);
            }
        }
        a.poll(now);
        while let Some(event) = a.event() {
            established |= matches!(event, Event::Established { .. });
        }
        if acks >= WARM_UP + COUNTED {
            break;
        }
        if established {
            feed(&mut a, now, conn);
        }
        to_b.push_back(sent(&mut a, now));
        let mut answers = Vec::new();
        if to_b.len() == STEPS_UNDER_WAY {
            for bytes in to_b.pop_front().unwrap_or_default() {
                segments += u64::from(bytes.len() > 1000);
                if holes && bytes.len() > 1000 && segments.is_multiple_of(32) {
                    continue;
                }
                b.input(now, received(&pool, &bytes));
                while let Some(event) = b.event() {
                    if let Event::Received { conn, received } = event
                        && received.offset >= received.frontier
                    {
                        let bytes = received.buf.len();
                        drop(received);
                        b.release(conn, bytes);
                    }
                }
                answers.extend(sent(&mut b, now));
            }
        }
        b.poll(now);
        answers.extend(sent(&mut b, now));
        to_a.push_back(answers);
    }
    let again = a.counters().tx_retransmits;
    let expected = if holes { segments / 40..segments / 24 } else { 0..1 };
    if !expected.contains(&again) {
        return Err(format!("{again} of {segments} segments were retransmitted").into());
    }
    Ok(COUNTED)
}

#[cfg(test)]
mod tests {
    #[test]
    fn segments_are_lost_where_there_are_to_be_holes_and_only_there() {
        for holes in [false, true] {
            assert_eq!(super::run(holes).unwrap(), super::COUNTED);
        }
    }
}
