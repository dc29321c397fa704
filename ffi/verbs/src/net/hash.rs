//! A hash whose values are part of names and addresses.

/// Returns the hash FNV-1a with 64 bits. Processes of several hosts and versions compare values of this
/// function, so it must not change.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::fnv1a;

    /// The values are those that the authors of FNV publish.
    #[test]
    fn hashes_are_those_of_fnv_1a() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text.bytes()), hash, "{text}");
        }
    }
}
