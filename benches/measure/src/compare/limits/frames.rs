//! The work of `bare-wire`: sends frames without a protocol over a device. Frames are either sent as fast as
//! the device accepts them, and counted, or sent one at a time in round trips.

use std::time::{Duration, Instant};

use dp::{Burst, LinkState, Mbuf, Mempool, Offloads, Port, TxOffload};
use serde::{Deserialize, Serialize};
use testing::lab::Result;
use testing::{ensure, lab_error};

/// The output of the sink.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReceivedFrames {
    /// Number of frames after the first burst, whose start time is not known.
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// Seconds from the first burst to the last burst.
    pub(crate) seconds: f64,
}

/// Time limit for the peer to start.
const START: Duration = Duration::from_secs(20);

/// The sink ends after this time without frames.
const SILENCE: Duration = Duration::from_millis(200);

/// Headers of Ethernet, IPv4 and TCP without options, since devices with TSO read these headers.
const HEADER: [u8; 54] = {
    let mut header = [0; 54];
    // The frame is an IPv4 packet to the broadcast address.
    let mut at = 0;
    while at < 6 {
        header[at] = 0xff;
        at += 1;
    }
    (header[6], header[12]) = (0x02, 0x08);
    // The IP fields are version and length, time to live, and the protocol TCP. The length of the packet is
    // filled in later. The other fields are not used.
    (header[14], header[22], header[23]) = (0x45, 64, 6);
    // The TCP fields are the header length and the ACK flag.
    (header[46], header[47]) = (0x50, 0x10);
    header
};

/// Outcome of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Frames,
    /// The device does not accept frames of this length.
    NotOffered,
}

/// Waits until the peer has started, and then sends frames of `bytes` bytes for `time`.
///
/// # Errors
/// Fails if no peer starts, or if the device sends nothing or drops frames.
pub(crate) fn source(port: &mut dyn Port, bytes: usize, time: Duration) -> Result<Sent> {
    let Some(maker) = FrameBuilder::new(port, bytes)? else { return Ok(Sent::NotOffered) };
    wait_for_peer(port)?;
    let (started, mut burst) = (Instant::now(), Burst::new());
    while started.elapsed() < time {
        while !burst.is_full() {
            // If there is no frame, no buffer is free. Buffers are returned after the peer has received
            // frames.
            let Some(frame) = maker.frame() else { break };
            burst.push(frame);
        }
        port.tx_burst(0, &mut burst);
    }
    let counters = port.counters();
    ensure!(
        counters.tx_frames > 0 && counters.tx_dropped == 0,
        "the device sent nothing or dropped frames: {counters:?}"
    );
    // During this time the device sends the last frames in its ring, while the peer still polls.
    std::thread::sleep(SILENCE);
    Ok(Sent::Frames)
}

/// Counts frames until no frame has arrived for a while.
///
/// # Errors
/// Fails if no frame arrives.
pub(crate) fn sink(port: &mut dyn Port) -> Result<ReceivedFrames> {
    let waiting = Instant::now();
    let mut burst = Burst::new();
    while port.rx_burst(0, &mut burst) == 0 {
        ensure!(waiting.elapsed() < START, "no frame arrived within {START:?}");
    }
    burst.clear();
    let started = Instant::now();
    let (mut frames, mut bytes, mut last) = (0, 0, started);
    loop {
        let got = port.rx_burst(0, &mut burst);
        let now = Instant::now();
        if got > 0 {
            (frames, last) = (frames + got as u64, now);
            bytes += burst.drain(..).map(|frame| frame.len() as u64).sum::<u64>();
        } else if now - last > SILENCE {
            return Ok(ReceivedFrames { frames, bytes, seconds: (last - started).as_secs_f64() });
        }
    }
}

/// Sends a frame of `bytes` bytes and waits for its return, `count` times. Returns the median round trip in
/// microseconds.
///
/// # Errors
/// Fails if no peer starts, or if the peer does not return a frame.
pub(crate) fn ping(port: &mut dyn Port, bytes: usize, count: usize) -> Result<f64> {
    let maker =
        FrameBuilder::new(port, bytes)?.ok_or_else(|| lab_error!("{bytes} bytes do not fit a frame"))?;
    wait_for_peer(port)?;
    let (mut sent, mut back) = (Burst::new(), Burst::new());
    let mut nanoseconds = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        sent.push(maker.frame().ok_or_else(|| lab_error!("no buffer"))?);
        while port.tx_burst(0, &mut sent) == 0 {
            ensure!(started.elapsed() < START, "the device does not send");
        }
        while port.rx_burst(0, &mut back) == 0 {
            ensure!(started.elapsed() < START, "no frame came back within {START:?}");
        }
        back.clear();
        nanoseconds.push(started.elapsed().as_nanos() as u64);
    }
    nanoseconds.sort_unstable();
    nanoseconds
        .get(count / 2)
        .map(|&median| median as f64 / 1e3)
        .ok_or_else(|| lab_error!("no round trip was measured"))
}

/// Sends every frame back until no frame has arrived for a while.
///
/// # Errors
/// Fails if no frame arrives.
pub(crate) fn pong(port: &mut dyn Port) -> Result<()> {
    let (mut last, mut came, mut burst) = (Instant::now(), false, Burst::new());
    loop {
        if port.rx_burst(0, &mut burst) > 0 {
            while !burst.is_empty() {
                port.tx_burst(0, &mut burst);
            }
            (last, came) = (Instant::now(), true);
        } else if came && last.elapsed() > SILENCE {
            return Ok(());
        } else {
            ensure!(came || last.elapsed() < START, "no frame arrived within {START:?}");
        }
    }
}

fn wait_for_peer(port: &mut dyn Port) -> Result<()> {
    let waiting = Instant::now();
    while port.link_state() == LinkState::Down {
        ensure!(waiting.elapsed() < START, "no peer started within {START:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Makes frames of one length. The payload of the frames is the old contents of the buffers.
struct FrameBuilder {
    bytes: usize,
    /// The pool is larger than a ring, since a device returns buffers only when further frames are sent.
    pool: Mempool,
    header: [u8; HEADER.len()],
    offload: TxOffload,
}

impl FrameBuilder {
    /// Makes a builder, or returns `None` if the device does not accept frames of `bytes` bytes.
    fn new(port: &dyn Port, bytes: usize) -> Result<Option<Self>> {
        let info = port.info();
        let payload =
            bytes.checked_sub(HEADER.len()).ok_or_else(|| lab_error!("{bytes} bytes: no header"))?;
        ensure!(bytes <= usize::from(u16::MAX), "{bytes} bytes do not fit an IP packet");
        let mut header = HEADER;
        header[16..18].copy_from_slice(&((bytes - 14) as u16).to_be_bytes());
        let segment = usize::from(info.mtu) - 40;
        let mut offload = TxOffload::default();
        if payload > segment {
            if !info.offloads.contains(Offloads::TX_TSO) {
                return Ok(None);
            }
            offload = TxOffload {
                tcp_checksum: true,
                tso_segment_bytes: segment as u16,
                l2_bytes: 14,
                l3_bytes: 20,
                l4_bytes: 20,
                ..offload
            };
        }
        Ok(Some(Self { bytes, pool: port.mempool().clone(), header, offload }))
    }

    fn frame(&self) -> Option<Mbuf> {
        let mut frame = self.pool.alloc()?;
        let first = self.bytes.min(frame.tailroom());
        frame.append(first)?[..self.header.len()].copy_from_slice(&self.header);
        while frame.len() < self.bytes {
            let mut part = self.pool.alloc()?;
            part.append((self.bytes - frame.len()).min(part.tailroom()))?;
            frame.chain(part).ok()?;
        }
        frame.set_tx_offload(self.offload);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use dp::link::{self, LinkConfig, LinkTso};

    use super::*;

    fn wire(mtu: u16) -> [Box<dyn Port>; 2] {
        let config = LinkConfig { mtu, checksum_offload: true, tso: LinkTso::Whole, ..LinkConfig::default() };
        link::pair(&config).into()
    }

    #[test]
    fn what_is_sent_is_counted_in_frames_and_bytes() {
        for (bytes, mtu) in [(1514, 1500), (9014, 9000), (62 << 10, 9000)] {
            let [mut left, mut right] = wire(mtu);
            let sender = std::thread::spawn(move || source(&mut *left, bytes, Duration::from_millis(50)));
            let passed = sink(&mut *right).unwrap();
            assert_eq!(sender.join().unwrap().unwrap(), Sent::Frames);
            assert!(passed.frames > 0 && passed.seconds > 0.0, "{bytes}: {passed:?}");
            assert_eq!(passed.bytes, passed.frames * bytes as u64);
        }
    }

    #[test]
    fn a_frame_comes_back_as_often_as_it_is_sent() {
        let [mut left, mut right] = wire(1500);
        let echo = std::thread::spawn(move || pong(&mut *right));
        assert!(ping(&mut *left, 64, 100).unwrap() > 0.0);
        assert_eq!(left.counters().rx_frames, 100);
        echo.join().unwrap().unwrap();
        assert!(ping(&mut *left, 9014, 1).is_err());
    }

    #[test]
    fn a_wire_without_superframes_says_so() {
        let (mut left, _right) = link::pair(&LinkConfig { mtu: 1500, ..LinkConfig::default() });
        let sent = source(&mut *left, 9014, Duration::from_millis(1));
        assert_eq!(sent.unwrap(), Sent::NotOffered);
    }
}
