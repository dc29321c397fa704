use super::*;

/// Returns a frame with an IPv4 TCP segment. Fields that a witness does not parse are not filled in.
fn frame(seq: u32, ack: u32, flags: u8, window: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let mut bytes = vec![0; 14];
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes.extend_from_slice(&[0x45, 0x02]);
    bytes.extend_from_slice(&((20 + header + payload.len()) as u16).to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend_from_slice(&[0x10, 0x00, 0x20, 0x00]);
    bytes.extend_from_slice(&seq.to_be_bytes());
    bytes.extend_from_slice(&ack.to_be_bytes());
    bytes.extend_from_slice(&[(header as u8 / 4) << 4, flags]);
    bytes.extend_from_slice(&window.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(options);
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn a_probe_is_what_repeats_less_than_two_acknowledged_bytes() {
    let mut witness = Witness::default();
    witness.see(0, &frame(100, 500, flag::ACK, 1000, &[], &[7; 50]));
    witness.see(1, &frame(500, 150, flag::ACK, 1000, &[], &[]));
    witness.see(0, &frame(149, 500, flag::ACK, 1000, &[], &[]));
    witness.see(0, &frame(149, 500, flag::ACK, 1000, &[], &[7]));
    // Bare acknowledgements and retransmissions are not probes.
    witness.see(0, &frame(150, 500, flag::ACK, 1000, &[], &[]));
    witness.see(0, &frame(100, 500, flag::ACK, 1000, &[], &[7; 50]));
    assert_eq!((witness.seen()[0].keepalives, witness.seen()[0].window_probes), (2, 0));
    witness.see(1, &frame(500, 150, flag::ACK, 0, &[], &[]));
    witness.see(0, &frame(149, 500, flag::ACK, 1000, &[], &[]));
    assert_eq!((witness.seen()[0].keepalives, witness.seen()[0].window_probes), (2, 1));
    assert_eq!(witness.seen()[1].zero_windows, 1);
    assert_eq!((witness.seen()[0].data, witness.seen()[0].longest), (3, 50));
}

#[test]
fn options_are_told_apart_by_whether_they_are_in_a_syn() {
    let mut witness = Witness::default();
    witness.see(0, &frame(1, 0, flag::SYN, 1000, &[2, 4, 5, 0xb4, 34, 2, 1, 1], &[9; 3]));
    witness.see(0, &frame(5, 1, flag::ACK | flag::URG, 1000, &[1, 1, 30, 2], &[9]));
    let seen = &witness.seen()[0];
    assert_eq!(seen.syn_options.iter().copied().collect::<Vec<_>>(), [2, 34]);
    assert_eq!((seen.syn_bytes, seen.urgent, seen.ect), (3, 1, 2));
    let text = format!("ours {seen}");
    assert_eq!(word(&text, "ours", "syn_options").unwrap(), "2,34");
    assert_eq!(word(&text, "ours", "options").unwrap(), "30");
    assert_eq!(count(&text, "ours", "syn_bytes").unwrap(), 3);
    assert!(count(&text, "theirs", "syn_bytes").is_err() && count(&text, "ours", "bytes").is_err());
}
