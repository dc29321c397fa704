//! A port of a local wire, and hostile processes of the same user: they connect, send arbitrary bytes, pass
//! arbitrary memory, and write arbitrary bytes into this memory between any two calls. An honest peer is on
//! the same wire.
//!
//! Rules: nothing panics; every frame between the port and the honest peer arrives, whole and in order; all
//! frames have possible lengths; the port reports only hostile peers as gone; all buffers are returned.
//!
//! The folder of a wire and its sockets are the only effects outside the process. Each execution removes
//! them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use dp::local::hostile::{Hostile, Offer};
use dp::local::{LocalConfig, LocalPort, open};
use dp::{Burst, Link, Mbuf, Port, Sleep, TxOffload};

use crate::input::Input;

/// Stations: the port that is attacked, and its honest peer.
const VICTIM: u16 = 1;
const HONEST: u16 = 2;

/// Stations that hostile peers claim to be, including the two honest stations.
const CLAIMED: [u16; 6] = [3, 4, 0xffff, VICTIM, HONEST, 0];

/// Maximum number of hostile peers at a time.
const PEERS: usize = 3;

/// Length in bytes of a ring.
const RING: u64 = 256 << 10;

/// The first bytes of an honest frame after its Ethernet header. A hostile peer does not know these bytes.
const SIGN: u64 = 0x8a5c_11d4_93e7_602b;

/// Maximum number of honest frames in flight in one direction.
const UNDER_WAY: u64 = 4;

/// Maximum number of steps of one input.
const STEPS: usize = 200;

struct Run {
    folder: PathBuf,
    victim: LocalPort,
    honest: LocalPort,
    hostile: Vec<Hostile>,
    now_us: u64,
    /// Number of frames that the honest peer has sent, and number of these frames that have arrived.
    /// `to_honest`: the same numbers for frames to the honest peer.
    from_honest: (u64, u64),
    to_honest: (u64, u64),
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("uwarp-fuzz-{}-{number}", std::process::id()));
    let mut run = Run {
        victim: station(&folder, VICTIM),
        honest: station(&folder, HONEST),
        folder,
        hostile: Vec::new(),
        now_us: 0,
        from_honest: (0, 0),
        to_honest: (0, 0),
    };
    run.exchange();
    let mut input = Input::new(bytes);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
    }
    // The time advances by more than any time limit of the wire.
    run.hostile.clear();
    run.now_us += 3_000_000;
    (0..100).for_each(|_| run.poll());
    run.exchange();
    assert_eq!(run.from_honest.0, run.from_honest.1);
    assert_eq!(run.to_honest.0, run.to_honest.1);
    for port in [&run.victim, &run.honest] {
        for pool in [Some(port.mempool()), port.bulk_mempool()].into_iter().flatten() {
            assert_eq!(pool.available(), pool.capacity(), "buffers that nobody has given back");
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Nobody needs the folder any more, even if a rule was broken.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn station(folder: &Path, station: u16) -> LocalPort {
    let config = LocalConfig {
        station: Some(station),
        mbufs: 256,
        bulk_mbufs: 16,
        ring_bytes: RING as usize,
        ..LocalConfig::new(folder.to_owned())
    };
    open(&config).expect("a wire of its own")
}

/// Returns a frame of at least 30 bytes that has the sign and this number, or `None` if no buffer is free.
fn signed(port: &LocalPort, to: u16, number: u64, bytes: usize) -> Option<Mbuf> {
    let mut frame = port.mempool().alloc()?;
    let [high, low] = to.to_be_bytes();
    let head = [&[2, 0, 0x64, 0x40, high, low][..], &port.info().mac, &[0x88, 0xb5], &SIGN.to_be_bytes()];
    let written =
        head.iter().all(|part| frame.append_slice(part)) && frame.append_slice(&number.to_be_bytes());
    assert!(written, "a new buffer has room for it");
    while frame.len() < bytes {
        let mut part = port.mempool().alloc()?;
        let len = (bytes - frame.len()).min(port.mempool().data_bytes());
        part.append(len)?.fill(number as u8);
        frame.chain(part).ok()?;
    }
    if bytes > 9000 {
        frame.set_tx_offload(TxOffload { tso_segment_bytes: 8960, ..TxOffload::default() });
    }
    Some(frame)
}

/// Returns the number of a signed frame, and checks that the frame was not changed. Returns `None` for a
/// frame without the sign.
fn read_signed(frame: &Mbuf) -> Option<u64> {
    let bytes: Vec<u8> = frame.segments().flatten().copied().collect();
    let word = |at: usize| Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let number = (word(14)? == SIGN).then(|| word(22))??;
    assert!(bytes[30..].iter().all(|byte| *byte == number as u8), "a frame of the honest peer was changed");
    Some(number)
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0 if self.hostile.len() < PEERS => self.hostile.extend(Hostile::dial(&self.folder, VICTIM)),
            0 => drop(self.hostile.remove(input.below(PEERS))),
            1 => self.say_hello(input),
            2 => {
                if let Some(peer) = self.choose(input) {
                    peer.say(input.bytes(48));
                }
            }
            3..=6 => self.write(input),
            7 | 8 => {
                let to = input.pick(&CLAIMED);
                self.send(to, input);
            }
            9 => self.honest_frame(input),
            10 => self.now_us += u64::from(input.size() % 3_000_000),
            11 => {
                if self.victim.arm_wakeup() {
                    self.victim.poll_fd().expect("this process has the port");
                }
                self.victim.disarm_wakeup();
            }
            12 => {
                if let Some(peer) = self.choose(input) {
                    peer.is_refused();
                }
            }
            _ => self.poll(),
        }
    }

    fn choose(&mut self, input: &mut Input<'_>) -> Option<&mut Hostile> {
        let at = input.below(PEERS);
        self.hostile.get_mut(at)
    }

    /// Sends a hello, valid or with fields that the port has to refuse.
    fn say_hello(&mut self, input: &mut Input<'_>) {
        let ring = if input.one_in(8) { u64::from(input.size()) } else { RING };
        let known = (u64::from(input.u8() % 2), u64::from(input.u8() % 4));
        let offer = match input.below(16) {
            0 => Offer::Nothing,
            1 => Offer::OtherMemory,
            2 => Offer::Unsealed,
            3 => Offer::Socket,
            _ => Offer::Memory,
        };
        let station = if input.one_in(4) { input.pick(&CLAIMED) } else { 3 };
        if let Some(peer) = self.choose(input) {
            peer.hello(station, ring, known, offer);
        }
    }

    /// Writes a position, a header at a position, or arbitrary bytes.
    fn write(&mut self, input: &mut Input<'_>) {
        let (kind, lines, word) = (input.below(8), u64::from(input.u8()), u64::from(input.size()));
        let Some(peer) = self.choose(input) else { return };
        // The process that made the memory writes the first ring. The words of the second ring begin at word
        // 64.
        let data = |tail: u64| 512 + (tail / 8) as usize % (RING as usize / 8);
        match kind {
            // A mostly correct record, and the tail that follows the record.
            0..=3 => {
                let tail = peer.load(0);
                let bytes = if kind == 3 { word } else { 14 + word % 4000 };
                peer.store(data(tail), bytes | u64::from(kind == 2) << 32);
                peer.store(0, tail.wrapping_add((bytes.wrapping_add(8)).next_multiple_of(64)));
            }
            4 => peer.store(0, peer.load(0).wrapping_add(lines * 64)),
            // The head of the ring that the hostile peer reads.
            5 => peer.store(64 + 16, peer.load(64).wrapping_sub(lines * 64)),
            // The word by which a sleeping reader asks to be woken.
            6 => peer.store(64 + 32, lines),
            _ => peer.store(word as usize, lines << (word % 64)),
        }
    }

    /// Lets the victim send a frame to station `to`, at which a hostile peer may listen. Does nothing if the
    /// honest peer has this station.
    fn send(&mut self, to: u16, input: &mut Input<'_>) {
        if to == HONEST {
            return;
        }
        let bytes = 30 + input.size() as usize % 12_000;
        if let Some(frame) = signed(&self.victim, to, 0, bytes) {
            self.victim.tx_burst(self.now_us, &mut [frame].into_iter().collect());
        }
    }

    /// Sends a frame from the honest peer or to it.
    fn honest_frame(&mut self, input: &mut Input<'_>) {
        let bytes = 30 + input.size() as usize % 30_000;
        let (port, to, counts) = match input.one_in(2) {
            true => (&mut self.honest, VICTIM, &mut self.from_honest),
            false => (&mut self.victim, HONEST, &mut self.to_honest),
        };
        // At most `UNDER_WAY` frames are in flight, so that no frame is dropped because its reader is slow.
        if counts.0 - counts.1 < UNDER_WAY
            && let Some(frame) = signed(port, to, counts.0, bytes)
        {
            counts.0 += port.tx_burst(self.now_us, &mut [frame].into_iter().collect()) as u64;
        }
    }

    fn poll(&mut self) {
        let mut burst = Burst::new();
        self.victim.rx_burst(self.now_us, &mut burst);
        for frame in burst.drain(..) {
            assert!((14..=65_553).contains(&frame.len()), "{} bytes", frame.len());
            if let Some(number) = read_signed(&frame) {
                assert_eq!(number, self.from_honest.1, "a frame of the honest peer is missing");
                self.from_honest.1 += 1;
            }
        }
        self.honest.rx_burst(self.now_us, &mut burst);
        for frame in burst.drain(..) {
            let number = read_signed(&frame).expect("only the victim sends to the honest peer");
            assert_eq!(number, self.to_honest.1, "a frame to the honest peer is missing");
            self.to_honest.1 += 1;
        }
        while let Some(mac) = self.victim.next_departed() {
            assert_ne!(mac, self.honest.info().mac, "the honest peer is there");
        }
        assert_eq!(self.honest.next_departed(), None, "the victim is there");
    }

    /// Sends one more frame in each direction, and waits until all frames in flight have arrived.
    fn exchange(&mut self) {
        for (from_honest, bytes) in [(true, 2000), (false, 40_000)] {
            let (port, to, counts) = match from_honest {
                true => (&mut self.honest, VICTIM, &mut self.from_honest),
                false => (&mut self.victim, HONEST, &mut self.to_honest),
            };
            let frame = signed(port, to, counts.0, bytes).expect("a buffer");
            counts.0 += port.tx_burst(self.now_us, &mut [frame].into_iter().collect()) as u64;
        }
        for _ in 0..2000 {
            if self.from_honest.0 == self.from_honest.1 && self.to_honest.0 == self.to_honest.1 {
                return;
            }
            self.poll();
        }
        panic!("frames of the honest peer: {:?} from it, {:?} to it", self.from_honest, self.to_honest);
    }
}
