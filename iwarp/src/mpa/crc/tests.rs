use proptest::prelude::*;

use super::Crc32c;

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.finish()
}

/// Computes the CRC bit by bit from the polynomial.
fn naive(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

// Proves MPA-089, MPA-090: the CRCs of the vectors of RFC 3720 appendix B.4, and of some other inputs, are
// correct.
#[test]
fn known_crcs() {
    let read10 = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0,
        0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
    ];
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    for (bytes, expected) in [
        (&b""[..], 0),
        (b"123456789", 0xe306_9283),
        (&[0; 32], 0x8a91_36aa),
        (&[0xff; 32], 0x62a8_ab43),
        (&up, 0x46dd_794e),
        (&down, 0x113f_db5c),
        (&read10, 0xd996_3a56),
        (&[0], 0x527d_5351),
        (&[0; 4], 0x4867_4bc7),
    ] {
        assert_eq!(crc(bytes), expected);
        assert_eq!(naive(bytes), expected);
    }
}

#[test]
fn the_field_has_the_least_significant_byte_first() {
    let mut crc = Crc32c::new();
    crc.update(b"123456789");
    assert_eq!(crc.field(), [0x83, 0x92, 0x06, 0xe3]);
}

#[test]
fn an_fpdu_with_its_field_has_the_residue_as_crc() {
    for bytes in [&b"x"[..], &[7; 300], &[9; 5000]] {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.update(&crc.field());
        assert_eq!(crc.finish(), 0x4867_4bc7);
    }
}

#[test]
fn an_unused_crc_copies_and_stays_zero() {
    let mut out = [0; 3];
    let mut crc = Crc32c::unused();
    crc.copy(&mut out, b"abc");
    assert_eq!((&out, crc.field()), (b"abc", [0; 4]));
}

proptest! {
    #[test]
    fn any_split_and_any_way_gives_the_same_crc(
        bytes in prop::collection::vec(any::<u8>(), 0..20_000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut crc, mut fused, mut copied) = (Crc32c::new(), Crc32c::new(), vec![0; bytes.len()]);
        let mut from = 0;
        for to in cuts.into_iter().chain([bytes.len()]) {
            crc.update(&bytes[from..to]);
            fused.copy(&mut copied[from..to], &bytes[from..to]);
            from = to;
        }
        prop_assert_eq!(crc.finish(), naive(&bytes));
        prop_assert_eq!(fused.finish(), naive(&bytes));
        prop_assert_eq!(copied, bytes);
    }
}
