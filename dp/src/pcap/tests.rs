//! Tests of captures. A reader of another project (`pcap-file`) reads the captured files.

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};

use super::*;
use crate::TxOffload;
use crate::link::{LinkConfig, pair, pair_with_control};

/// A TCP segment 192.0.2.1:4660 -> 192.0.2.2:80 with 3 bytes of data. No checksum is filled in.
const SEGMENT: [u8; 57] = [
    0x02, 0, 0, 0, 0, 0x0b, 0x02, 0, 0, 0, 0, 0x0a, 0x08, 0x00, //
    0x45, 0, 0, 43, 0, 1, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, //
    0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 4, 0, 0, 0, 0, 0, //
    b'a', b'b', b'c',
];

/// A file in memory that the test can read.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that accepts only this number of bytes, like a full disk.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a frame with the segment in two buffers. The frame requests both checksums from the port.
fn segment(port: &dyn Port) -> Mbuf {
    let mut frame = port.mempool().alloc().unwrap();
    let mut data = port.mempool().alloc().unwrap();
    assert!(frame.append_slice(&SEGMENT[..54]) && data.append_slice(&SEGMENT[54..]));
    frame.chain(data).unwrap();
    frame.set_tx_offload(TxOffload { tcp_checksum: true, ipv4_checksum: true, ..TxOffload::default() });
    frame
}

/// Returns the bytes of the segment with both checksums filled in.
fn completed() -> Vec<u8> {
    let mut bytes = SEGMENT.to_vec();
    assert!(checksum::complete(&mut bytes) && checksum::complete_ipv4_header(&mut bytes));
    bytes
}

fn offload_config() -> LinkConfig {
    LinkConfig { mbufs: 64, ring_frames: 4, checksum_offload: true, ..LinkConfig::default() }
}

/// Returns the time, `epb_flags` and bytes of each frame in `file`.
fn read_back(file: &[u8]) -> Vec<(u64, u32, Vec<u8>)> {
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let [EnhancedPacketOption::Flags(flags)] = packet.options[..] else { panic!("{:?}", packet.options) };
        assert_eq!(packet.original_len as usize, packet.data.len());
        // This reader interprets every time unit as nanoseconds.
        frames.push((packet.timestamp.as_nanos() as u64, flags, packet.data.into_owned()));
    }
    frames
}

#[test]
fn both_directions_are_written_with_time_direction_and_whole_checksums() {
    let (a, mut b) = pair(&offload_config());
    let file = Memory::default();
    let mut tap = Tap::new(a, Box::new(file.clone()), Some(1 << 50)).unwrap();

    let mut burst: Burst = [segment(&tap)].into_iter().collect();
    assert_eq!(tap.tx_burst(1_000, &mut burst), 1);
    assert_eq!(b.rx_burst(1_000, &mut burst), 1);
    assert_eq!(burst[0].rx_checksum(), Checksum::Partial);
    assert_eq!(burst[0].segments().flatten().copied().collect::<Vec<_>>(), SEGMENT, "the frame is untouched");
    burst.clear();

    let mut reply = segment(&*b);
    // This port does not fill in the IPv4 header checksum, so the capture has the checksum unchanged.
    reply.set_tx_offload(TxOffload { tcp_checksum: true, ..TxOffload::default() });
    burst.push(reply);
    b.tx_burst(2_000, &mut burst);
    assert_eq!(tap.rx_burst(2_500, &mut burst), 1);
    assert_eq!(tap.status().frames_written(), 2);
    tap.close().1.unwrap();

    let frames = read_back(&file.bytes());
    let mut inbound = completed();
    inbound[24..26].fill(0);
    assert_eq!(frames, [((1 << 50) + 1_000, 2, completed()), ((1 << 50) + 2_500, 1, inbound)]);
}

#[test]
fn a_frame_that_the_port_did_not_take_is_written_once_when_it_does() {
    let (a, mut b, control) = pair_with_control(&offload_config());
    let file = Memory::default();
    let mut tap = Tap::new(a, Box::new(file.clone()), Some(0)).unwrap();
    let mut burst: Burst = (0..6).map(|_| segment(&tap)).collect();
    assert_eq!(tap.tx_burst(1, &mut burst), 4);
    assert_eq!(tap.tx_burst(2, &mut burst), 0);
    assert_eq!(b.rx_burst(3, &mut Burst::new()), 4);
    assert_eq!(tap.tx_burst(4, &mut burst), 2);
    control.set_up(false);
    burst.push(segment(&tap));
    assert_eq!(tap.tx_burst(5, &mut burst), 1, "dropped by a link that is down");
    let status = tap.status();
    drop(tap);
    let times: Vec<_> = read_back(&file.bytes()).into_iter().map(|(time_us, ..)| time_us).collect();
    assert_eq!(times, [1, 1, 1, 1, 4, 4]);
    assert_eq!((status.frames_written(), status.frames_missed()), (6, 0));
}

#[test]
fn frames_reach_the_file_while_the_port_is_polled() {
    let (a, _b) = pair(&offload_config());
    let file = Memory::default();
    let mut tap = Tap::new(a, Box::new(file.clone()), None).unwrap();
    let mut burst: Burst = [segment(&tap)].into_iter().collect();
    tap.tx_burst(10, &mut burst);
    assert_eq!(read_back(&file.bytes()).len(), 0);
    tap.rx_burst(10 + FLUSH_AFTER_US, &mut burst);
    let frames = read_back(&file.bytes());
    assert_eq!(frames.len(), 1);
    assert!(frames[0].0 > 1_600_000_000_000_000, "wall clock, microseconds");
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    let (a, mut b) = pair(&LinkConfig { ring_frames: 64, ..offload_config() });
    let mut tap = Tap::new(a, Box::new(Full(400)), None).unwrap();
    let status = tap.status();
    let mut burst = Burst::new();
    for n in 0..8 {
        burst.push(segment(&tap));
        assert_eq!(tap.tx_burst(n * FLUSH_AFTER_US, &mut burst), 1);
    }
    assert_eq!(b.rx_burst(0, &mut burst), 8);
    assert!(status.frames_missed() > 0);
    let (_port, result) = tap.close();
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn an_error_of_the_last_write_is_told_after_a_drop() {
    let (a, _b) = pair(&offload_config());
    let mut tap = Tap::new(a, Box::new(Full(200)), None).unwrap();
    let status = tap.status();
    let mut burst: Burst = [segment(&tap), segment(&tap)].into_iter().collect();
    tap.tx_burst(0, &mut burst);
    drop(tap);
    assert_eq!(status.take_error().unwrap().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_file_that_cannot_be_made_is_an_error() {
    let (a, _b) = pair(&offload_config());
    assert!(Tap::create(a, Path::new("/nonexistent/capture.pcapng")).is_err());
}
