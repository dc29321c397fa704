//! Any received bytes lead to a result or to an error of MPA, without a panic, and all buffers are freed at
//! the end.

use super::support::Receiver;
use dp::Mempool;
use iwarp::mpa::Framer;
use iwarp::mpa::frame::{Frame, FrameKind, Parsed};
use testkit::dice::Dice;

const STREAMS: u64 = 10_000;

/// Returns random bytes, in most cases behind a valid beginning.
fn stream(dice: &mut Dice) -> Vec<u8> {
    let bytes = 1 + dice.index(900);
    let mut stream = dice.bytes(bytes);
    let header = match dice.index(6) {
        0 => [&FrameKind::Request.key()[..], &[0xd0, 2, 0, 9, 0x80, 1, 0xc0, 1]].concat(),
        1 => [&FrameKind::Reply.key()[..], &[0x50, 2, 0, 4, 0x80, 1, 0xc0, 1]].concat(),
        2 => FrameKind::Request.key().to_vec(),
        3 => vec![0, 0, 0, 0, 0, dice.index(64) as u8],
        4 => vec![0, dice.index(64) as u8],
        _ => Vec::new(),
    };
    let shared = header.len().min(stream.len());
    stream[..shared].copy_from_slice(&header[..shared]);
    stream
}

#[test]
fn the_frame_parser_takes_anything() {
    for seed in 0..STREAMS {
        let bytes = stream(&mut Dice::split_mix(seed));
        for kind in [FrameKind::Request, FrameKind::Reply] {
            if let Ok(Parsed::Frame(frame, used)) = Frame::parse(&bytes, kind) {
                assert!(used <= bytes.len());
                assert!(frame.encode().is_ok());
            }
        }
    }
}

#[test]
fn the_deframer_takes_anything() {
    let mut early = 0;
    let pool = Mempool::heap("mpa-fuzz", 4096, 512);
    for seed in 0..STREAMS {
        let mut dice = Dice::split_mix(seed);
        let start = dice.index(1000) as u64;
        let mut receiver = Receiver::with_pool(pool.clone(), start, seed % 3 != 0, seed % 2 == 0);
        // The stream consists of random bytes, and of correct FPDUs at wrong positions.
        let mut wire: Vec<u8> = (0..4).flat_map(|_| stream(&mut dice)).collect();
        for _ in 0..dice.index(6) {
            let at = 4 * dice.index(wire.len() / 4);
            let mut framer = Framer::at(at as u64, true, true);
            let ulpdu = dice.index(700);
            let bytes = framer.wire_len(ulpdu);
            if at + bytes <= wire.len() {
                framer.frame(&mut wire[at..at + bytes], &vec![0; ulpdu]);
            }
        }
        for _ in 0..25 {
            let from = dice.index(wire.len());
            let to = wire.len().min(from + 1 + dice.index(1460));
            if receiver.segment(start + from as u64, &wire[from..to], 1 + dice.index(512)).is_err() {
                assert!(receiver.deframer.is_over());
            }
        }
        early += receiver.deframer.counters().early_fpdus;
        receiver.finish();
    }
    assert!(early > 0, "the good FPDUs are found");
}
