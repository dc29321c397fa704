//! Engines joined by a wire in memory, turned by hand: whole connections without thread or clock. A test
//! begins with a [`Testbed`].

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) mod apart;
pub(crate) mod catalogue;
pub(crate) mod counting;
pub(crate) mod dialer;
pub(crate) mod doorman;
pub(crate) mod ext;
pub(crate) mod hooked;
mod hosts;
pub(crate) mod hub;
pub(crate) mod oracle;
pub(crate) mod raw;
pub(crate) mod served;
pub(crate) mod testbed;
pub(crate) mod ulpdu;
pub(crate) mod world;

use iwarp::memory::Access;

pub(crate) use hosts::{Connected, Host, Pair, expect_terminate};
pub(crate) use testbed::Testbed;

/// What Reads and Writes of a peer's need, in either direction.
pub(crate) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// The port that listeners of these tests use.
pub(crate) const PORT: u16 = 7174;

/// Bytes that tell a lost, doubled or moved piece.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}
