//! What an acknowledgement costs its receiver, for counting instructions: `scripts/ack-cost` runs it under callgrind.
//!
//! `ack_path MODE [ACKS]`: a sender keeps 256 segments in flight; each acknowledgement that its peer gives goes through
//! [`acknowledge`], which is what is counted. `in-order`: nothing is lost, every second segment is acknowledged; `holes`:
//! one segment of 32 is lost, once, and is sent again, so that most acknowledgements carry SACK blocks.

use dp::{Burst, Mbuf, Mempool};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{ConnId, Event, Instant, Limits, Stack, StackConfig, TcpConfig};

const MTU: u16 = 1500;
const WINDOW: u32 = 256 * 1448;
/// From one turn to the next, of which a round trip has eight.
const TURN_US: i64 = 125;
const TURNS_UNDER_WAY: usize = 4;
/// Behind the first window, so that slow start is over.
const WARM_UP: u64 = 4096;

fn stack(n: u8) -> Stack {
    let config = StackConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, n]),
        vlan: None,
        addresses: std::iter::once(format!("10.0.0.{n}/24").parse().expect("an address")).collect(),
        gateways: Default::default(),
        address_probing: Default::default(),
        mtu: MTU,
        offloads: Default::default(),
        limits: Limits::default(),
        tcp: TcpConfig { recv_window_octets: WINDOW, send_buffer_octets: WINDOW, ..TcpConfig::default() },
        seed: [n; 32],
    };
    Stack::new(config, Mempool::heap("ack_path", 16_384, 2048))
}

/// Where instructions are counted.
#[inline(never)]
fn acknowledge(stack: &mut Stack, now: Instant, frame: Mbuf) {
    stack.input(now, frame);
}

/// Frames of a turn, on their way.
type Flight = std::collections::VecDeque<Vec<Vec<u8>>>;

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

fn received(pool: &Mempool, octets: &[u8]) -> Mbuf {
    let mut frame = pool.alloc().expect("a buffer");
    frame.append(octets.len()).expect("room").copy_from_slice(octets);
    frame
}

/// Fills the send buffer.
fn feed(stack: &mut Stack, now: Instant, conn: ConnId) {
    static OCTETS: [u8; 65_536] = [0x5a; 65_536];
    while stack.send(now, conn, &OCTETS).is_ok() {}
}

fn main() {
    let mut args = std::env::args().skip(1);
    let lossy = match args.next().as_deref() {
        Some("in-order") => false,
        Some("holes") => true,
        _ => panic!("in-order or holes"),
    };
    let wanted: u64 = args.next().map_or(20_000, |count| count.parse().expect("a number"));
    let pool = Mempool::heap("wire", 4096, 2048);
    let (mut a, mut b) = (stack(1), stack(2));
    b.listen(1).expect("a free port");
    let conn = a.connect(Instant::ZERO, "10.0.0.2:1".parse().expect("an address"), None).expect("a route");
    let (mut to_a, mut to_b): (Flight, Flight) = Default::default();
    let (mut acks, mut segments, mut established) = (0, 0_u64, false);
    for turn in 0.. {
        let now = Instant::from_micros(turn * TURN_US);
        if to_a.len() == TURNS_UNDER_WAY {
            for octets in to_a.pop_front().unwrap_or_default() {
                let frame = received(&pool, &octets);
                if established && acks >= WARM_UP {
                    acknowledge(&mut a, now, frame);
                } else {
                    a.input(now, frame);
                }
                acks += u64::from(established);
            }
        }
        a.poll(now);
        while let Some(event) = a.event() {
            established |= matches!(event, Event::Established { .. });
        }
        if acks >= WARM_UP + wanted {
            break;
        }
        if established {
            feed(&mut a, now, conn);
        }
        to_b.push_back(sent(&mut a, now));
        let mut answers = Vec::new();
        if to_b.len() == TURNS_UNDER_WAY {
            for octets in to_b.pop_front().unwrap_or_default() {
                segments += u64::from(octets.len() > 1000);
                if lossy && octets.len() > 1000 && segments.is_multiple_of(32) {
                    continue;
                }
                b.input(now, received(&pool, &octets));
                while let Some(event) = b.event() {
                    if let Event::Received { conn, received } = event
                        && received.offset >= received.frontier
                    {
                        let octets = received.buf.len();
                        drop(received);
                        b.release(conn, octets);
                    }
                }
                answers.extend(sent(&mut b, now));
            }
        }
        b.poll(now);
        answers.extend(sent(&mut b, now));
        to_a.push_back(answers);
    }
    let counters = a.counters();
    println!(
        "{} acknowledgements counted, {} segments, {} sent again, {} timeouts",
        acks - WARM_UP,
        counters.tx_segments,
        counters.tx_retransmits,
        counters.rto_expired
    );
}
