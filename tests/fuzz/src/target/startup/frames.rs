//! Startup frames that a peer may send, and configurations that a user may choose.

use iwarp::mpa::startup::Revision;
use iwarp::mpa::{MpaConfig, RtrKinds};

use crate::input::Input;

/// Returns a valid startup frame, a malformed startup frame, or other bytes.
pub(super) fn bytes(input: &mut Input<'_>, request: bool) -> Vec<u8> {
    let request = request ^ input.one_in(24);
    let mut bytes = if request { b"MPA ID Req Frame".to_vec() } else { b"MPA ID Rep Frame".to_vec() };
    // In most cases the frame is valid. A frame of revision 2 has depths; a frame of revision 1 has none.
    let (flags, two) = (input.u8(), !input.one_in(3));
    let flags = if two { flags & 0xe0 | 0x10 } else { flags & 0xe0 };
    let mut private = if two { vec![input.u8(), input.u8(), input.u8(), input.u8()] } else { Vec::new() };
    if two && input.one_in(2) {
        // Clears the upper bits of both depths, so that the depths are within the limits whatever the control
        // bits are.
        (private[0], private[2]) = (private[0] & 0xc0, private[2] & 0xc0);
    }
    private.extend(input.bytes(24));
    if input.one_in(16) {
        private.resize(input.pick(&[505, 508, 509, 512, 513]), 0x70);
    }
    bytes.extend([flags, if two { 2 } else { 1 }]);
    bytes.extend((private.len() as u16).to_be_bytes());
    bytes.extend(private);
    if input.one_in(4) {
        let at = input.below(24) % bytes.len();
        bytes[at] = input.u8();
    }
    if input.one_in(8) {
        bytes.truncate(input.below(64));
    }
    if input.one_in(8) {
        bytes.extend(input.bytes(40));
    }
    bytes
}

/// Returns a valid configuration that the input chooses.
pub(super) fn config(input: &mut Input<'_>) -> MpaConfig {
    let (bits, depth) =
        (input.u16(), |at: u8| [0, 1, 2, 8, 128, 0x3ffe, 0x3fff, 0xffff][usize::from(at & 7)]);
    let bit = |at: u32| bits >> at & 1 == 1;
    let (depths, more) = (input.u8(), input.u8());
    let revision = if bit(2) { Revision::One } else { Revision::Two };
    let config = MpaConfig {
        markers: bit(0),
        crc: bit(1),
        revision,
        peer_to_peer: bit(3),
        rtr: RtrKinds::from_bits_truncate(more >> 5),
        single_rtr: bit(4),
        ird: depth(depths),
        ord: depth(depths >> 3),
        max_ird: depth(more),
        depths_left_to_ulp: bit(5) && bit(6),
        tolerate_early_fpdus: bit(7),
        fallback: bit(8),
    };
    if config.validate().is_ok() {
        config
    } else {
        MpaConfig { peer_to_peer: false, revision: Revision::One, max_ird: 0xffff, ..config }
    }
}
