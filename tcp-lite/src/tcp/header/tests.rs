//! Tests of parsing and writing, with known headers and with arbitrary bytes.

use proptest::prelude::*;

use super::*;

/// A SYN as Linux sends it.
const LINUX_SYN: [u8; 40] = [
    0xc3, 0x50, 0x48, 0x53, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0xa0, 0x02, 0xfa, 0xf0, 0, 0, 0,
    0, // header
    2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7, // options
];

fn plain() -> TcpHeader {
    TcpHeader {
        src_port: 1,
        dst_port: 2,
        seq: TcpSeqNumber(100),
        ack: Some(TcpSeqNumber(200)),
        flags: Flags::empty(),
        window: 10,
        options: Options::default(),
    }
}

#[test]
fn parses_and_emits_a_linux_syn() {
    let (header, len) = TcpHeader::parse(&LINUX_SYN).unwrap();
    assert_eq!((header.src_port, header.dst_port, header.window, len), (50000, 18515, 64240, 40));
    assert_eq!((header.seq, header.ack, header.flags), (TcpSeqNumber(-2), None, Flags::SYN));
    let options = &header.options;
    assert_eq!((options.mss, options.window_scale, options.sack_permitted), (Some(1460), Some(7), true));
    assert_eq!(options.timestamps, Some((7, 0)));
    let mut out = [0xee; 40];
    header.emit(&mut out);
    assert_eq!(out, LINUX_SYN);
}

#[test]
fn sack_blocks_stand_behind_two_nops_and_are_limited_by_the_option_space() {
    let mut header = plain();
    header.options.timestamps = Some((1, 2));
    for i in 0..4 {
        header.options.sack.push((TcpSeqNumber(i * 100), TcpSeqNumber(i * 100 + 50)));
    }
    assert_eq!(header.emitted_len(), 60, "three blocks beside timestamps");
    let mut out = [0; 60];
    header.emit(&mut out);
    assert_eq!(out[12], 0xf0);
    assert_eq!(out[32..36], [1, 1, 5, 26]);
    assert_eq!(out[36..44], [0, 0, 0, 0, 0, 0, 0, 50]);
    let (parsed, _) = TcpHeader::parse(&out).unwrap();
    assert_eq!(parsed.options.sack[..], header.options.sack[..3]);
    header.options.timestamps = None;
    assert_eq!(header.emitted_len(), 56, "four without");
}

#[test]
fn unknown_options_and_wrong_lengths_are_skipped() {
    // The unknown kind 254, an MSS with a wrong length, and a window scale above its maximum.
    let options = Options::parse(&[254, 4, 9, 9, 2, 3, 5, 3, 3, 200]);
    assert_eq!(options, Options { window_scale: Some(14), ..Options::default() });
    assert_eq!(Options::parse(&[254, 0, 2, 4, 5, 180]), Options::default(), "length 0 ends the list");
    assert_eq!(Options::parse(&[2, 40, 5]), Options::default(), "length beyond the header");
    assert_eq!(Options::parse(&[0, 2, 4, 5, 180]), Options::default(), "end of list");
}

#[test]
fn a_header_must_fit() {
    assert_eq!(TcpHeader::parse(&LINUX_SYN[..19]), Err(Malformed));
    assert_eq!(TcpHeader::parse(&LINUX_SYN[..39]), Err(Malformed));
    let mut short = LINUX_SYN;
    short[12] = 0x40;
    assert_eq!(TcpHeader::parse(&short), Err(Malformed));
}

#[test]
fn a_reset_answers_what_no_connection_takes() {
    let reset = plain().rst_reply(10).unwrap();
    assert_eq!((reset.seq, reset.ack, reset.src_port), (TcpSeqNumber(200), None, 2));
    let syn = TcpHeader { ack: None, flags: Flags::SYN, ..plain() };
    let reset = syn.rst_reply(10).unwrap();
    assert_eq!((reset.seq, reset.ack), (TcpSeqNumber(0), Some(TcpSeqNumber(111))));
    assert_eq!(reset.rst_reply(0), None);
}

proptest! {
    #[test]
    fn any_bytes_parse_or_fail_and_what_parses_is_emitted_alike(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((header, len)) = TcpHeader::parse(&bytes) {
            prop_assert!(len <= bytes.len());
            let _ = header.rst_reply(0);
            let mut out = [0; MAX_HEADER_BYTES];
            header.emit(&mut out);
            let (again, _) = TcpHeader::parse(&out[..header.emitted_len()]).unwrap();
            prop_assert_eq!(again.seq, header.seq);
            prop_assert_eq!(again.options.timestamps, header.options.timestamps);
        }
    }
}
