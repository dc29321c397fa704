//! Parses every Terminate that Linux's siw sends in our captures.
//!
//! The last three rows of `terminates.csv` are from other captures. All other rows are from `terminates.pcap`
//! in the same folder: in this capture, our verbs post requests that siw has to refuse.
//! `tests/siw-peer/README.md` explains siw's bit order, and when it cannot be recognised.

use iwarp::rdmap::{BitOrder, Terminate};

const TABLE: &str = include_str!("../../../../tests/siw-peer/captures/terminates.csv");

#[test]
fn each_is_read_with_the_numbers_it_was_sent_for() {
    let mut rows = 0;
    for line in TABLE.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let [cause, payload, layer, etype, code, order] = fields[..] else { panic!("{line}") };
        let payload: Vec<u8> = payload
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        let terminate = Terminate::parse(&payload).unwrap_or_else(|error| panic!("{cause}: {error}"));
        let numbers = [layer, etype, code].map(|number| number.parse::<u8>().unwrap());
        assert_eq!([terminate.layer, terminate.etype, terminate.code], numbers, "{cause}");
        // If the bit order cannot be recognised, the parser assumes the RFC's bit order, and the application
        // receives the numbers in this order.
        let order = if order == "siw" { BitOrder::Siw } else { BitOrder::Standard };
        assert_eq!(terminate.bit_order, order, "{cause}");
        // A Terminate of more than four bytes contains the header of the refused message. For a Read, it also
        // contains the Read Request.
        let bare = payload.len() == 4;
        assert_eq!(terminate.ddp_header.is_none(), bare, "{cause}");
        assert_eq!(terminate.read_request.is_some(), cause.starts_with("Read"), "{cause}");
        rows += 1;
    }
    assert_eq!(rows, 17);
}

/// For a Send with a protection error, siw sets R although the Terminate contains no Read Request. Only in
/// this case does the parser accept that the Read Request is missing.
#[test]
fn a_read_request_is_missed_behind_its_own_header_alone() {
    let with_header = |opcode: u8| {
        let mut payload = vec![0x10, 0x09, 0x07, 0x00, 0x00, 0x40];
        payload.extend([0x41, 0x40 | opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        payload
    };
    for opcode in 3..=6 {
        let terminate = Terminate::parse(&with_header(opcode)).unwrap();
        assert_eq!((terminate.layer, terminate.etype, terminate.code), (0, 1, 9));
        assert_eq!(terminate.read_request, None);
        // A truncated Read Request is an error.
        let cut = [with_header(opcode), vec![0; 27]].concat();
        assert!(Terminate::parse(&cut).is_err());
    }
    assert!(Terminate::parse(&with_header(1)).is_err());
}
