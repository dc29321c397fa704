//! Patterns that identify each message, and the check of the patterns at the receiver.
//!
//! Every message has a key made from the seed, the direction, the queue pair, the size and the number of the
//! message. The bytes of the message are a sequence of 64-bit words that depends on the key. So flipped,
//! lost, duplicated and misplaced bytes are detected. Between messages there are guards, whose bytes must
//! keep the value [`GUARD`].

/// Value of the bytes of a guard, and of the bytes of memory for messages before a message is placed there.
pub const GUARD: u8 = 0xa5;

/// Identifies one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The seed on which both sides have agreed.
    pub seed: u64,
    /// Whether the client sent the message.
    pub from_client: bool,
    /// Number of the queue pair, starting with 0.
    pub qp: u32,
    /// Length of the message in bytes.
    pub size: u32,
    /// Number of the message on its queue pair, starting with 0.
    pub number: u64,
}

impl Message {
    /// The key of the message's pattern.
    pub fn key(&self) -> u64 {
        let Self { seed, from_client, qp, size, number } = *self;
        let mut key = mix(seed ^ u64::from(from_client));
        key = mix(key ^ (u64::from(qp) << 32 | u64::from(size)));
        mix(key ^ number)
    }
}

/// Fills `out` with the pattern of `key` from byte `offset` on.
pub fn fill(key: u64, offset: u64, out: &mut [u8]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let word = word(key, at / 8).to_le_bytes();
        let skip = (at % 8) as usize;
        let n = rest.len().min(8 - skip);
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&word[skip..skip + n]);
        (at, rest) = (at + n as u64, tail);
    }
}

/// The index of the first byte of `bytes` that differs from the pattern of `key` from byte `offset` on, or
/// `None` if no byte differs.
pub fn first_difference(key: u64, offset: u64, bytes: &[u8]) -> Option<usize> {
    let mut expected = [0; 512];
    for (index, chunk) in bytes.chunks(expected.len()).enumerate() {
        let base = index * expected.len();
        let expected = &mut expected[..chunk.len()];
        fill(key, offset + base as u64, expected);
        if chunk != expected {
            let within = chunk.iter().zip(&*expected).position(|(a, b)| a != b)?;
            return Some(base + within);
        }
    }
    None
}

/// The index of the first byte of `bytes` that differs from [`GUARD`], or `None` if no byte differs.
pub fn first_touched(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte != GUARD)
}

/// Describes the first byte of `bytes` that differs from the pattern of `message`, or returns `None` if no
/// byte differs.
pub fn first_error(message: &Message, bytes: &[u8]) -> Option<String> {
    let Message { qp, size, number, .. } = message;
    first_difference(message.key(), 0, bytes)
        .map(|at| format!("message {number} of queue pair {qp} ({size} bytes) differs at byte {at}"))
}

fn word(key: u64, index: u64) -> u64 {
    mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The finaliser of SplitMix64: each input bit changes half of the output bits on average.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Message = Message { seed: 7, from_client: true, qp: 0, size: 1000, number: 3 };

    fn bytes(message: &Message) -> Vec<u8> {
        let mut out = vec![0; message.size as usize];
        fill(message.key(), 0, &mut out);
        out
    }

    #[test]
    fn what_was_sent_passes() {
        assert_eq!(first_error(&MESSAGE, &bytes(&MESSAGE)), None);
    }

    #[test]
    fn a_flipped_bit_is_found_where_it_is() {
        for at in [0, 7, 8, 511, 512, 999] {
            let mut bad = bytes(&MESSAGE);
            bad[at] ^= 0x10;
            assert_eq!(first_difference(MESSAGE.key(), 0, &bad), Some(at));
        }
    }

    #[test]
    fn a_missing_and_a_doubled_byte_are_found() {
        let good = bytes(&MESSAGE);
        let mut missing = good.clone();
        missing.remove(100);
        missing.push(0);
        assert!(first_difference(MESSAGE.key(), 0, &missing).is_some_and(|at| at >= 100));
        let mut doubled = good;
        doubled.insert(100, doubled[100]);
        doubled.pop();
        assert!(first_difference(MESSAGE.key(), 0, &doubled).is_some_and(|at| at > 100));
    }

    #[test]
    fn every_part_of_the_name_changes_the_pattern() {
        let others = [
            Message { seed: 8, ..MESSAGE },
            Message { from_client: false, ..MESSAGE },
            Message { qp: 1, ..MESSAGE },
            Message { number: 4, ..MESSAGE },
        ];
        for other in others {
            assert!(first_error(&MESSAGE, &bytes(&other)).is_some(), "{other:?}");
        }
        assert_ne!(MESSAGE.key(), Message { size: 1001, ..MESSAGE }.key());
    }

    #[test]
    fn a_part_has_the_bytes_of_the_whole() {
        let whole = bytes(&MESSAGE);
        let mut part = [0; 77];
        fill(MESSAGE.key(), 13, &mut part);
        assert_eq!(part, whole[13..90]);
    }

    #[test]
    fn a_touched_guard_is_found() {
        let mut guard = [GUARD; 64];
        assert_eq!(first_touched(&guard), None);
        guard[63] = 0;
        assert_eq!(first_touched(&guard), Some(63));
    }
}
