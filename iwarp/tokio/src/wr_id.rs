//! The `wr_id` of a connection's requests.
//!
//! A program may post other requests with any `wr_id`
//! ([`Connection::queue_pair`](crate::Connection::queue_pair)), which complete on the same queue. So the
//! `wr_id` of each request of this crate contains a random tag, which a program cannot guess:
//!
//! | bits | contents |
//! |---|---|
//! | 63 | 1 for a receive, 0 for a request |
//! | 62 to 32 | the tag of the connection |
//! | 31 to 0 | the key of the request, or the number of the receive's buffer |

use std::hash::{BuildHasher, Hasher, RandomState};

const RECEIVE: u64 = 1 << 63;
const TAG: u64 = (1 << 63) - (1 << 32);

/// The tag of a connection, in bits 62 to 32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag(u64);

/// The request or receive to which a completion belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrId {
    /// The request with this key.
    Request(usize),
    /// The receive of this buffer.
    Receive(usize),
}

impl Tag {
    pub(crate) fn random() -> Self {
        // Each `RandomState` has different keys, which derive from the system's entropy.
        Self(RandomState::new().build_hasher().finish() & TAG)
    }

    /// Returns the `wr_id` of the request with this key.
    pub(crate) fn request(self, key: usize) -> u64 {
        self.0 | key as u64
    }

    /// Returns the `wr_id` of the receive of this buffer.
    pub(crate) fn receive(self, buffer: usize) -> u64 {
        RECEIVE | self.0 | buffer as u64
    }

    /// Returns the key in the `wr_id` of a request, or the buffer in the `wr_id` of a receive.
    pub(crate) fn number(wr_id: u64) -> usize {
        wr_id as u32 as usize
    }

    /// Parses a `wr_id`; `None` if the program has posted the request.
    pub(crate) fn parse(self, wr_id: u64) -> Option<WrId> {
        let number = Self::number(wr_id);
        match wr_id & RECEIVE {
            _ if wr_id & TAG != self.0 => None,
            0 => Some(WrId::Request(number)),
            _ => Some(WrId::Receive(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_that_of_a_request_of_a_receive_or_of_the_program() {
        let tag = Tag(0x1234_5678 << 32);
        for number in [0, 1, u32::MAX as usize] {
            assert_eq!(tag.parse(tag.request(number)), Some(WrId::Request(number)));
            assert_eq!(tag.parse(tag.receive(number)), Some(WrId::Receive(number)));
            for bit in 32..63 {
                assert_eq!(tag.parse(tag.request(number) ^ 1 << bit), None);
            }
            assert_eq!((tag.parse(number as u64), tag.parse(RECEIVE | number as u64)), (None, None));
        }
        let tags: std::collections::HashSet<u64> = (0..16).map(|_| Tag::random().0).collect();
        assert!(tags.len() > 8 && tags.iter().all(|tag| tag & !TAG == 0), "{tags:x?}");
    }
}
