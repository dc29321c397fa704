//! The datagrams with which hosts ask each other for the listener at an address ([`hosts`](super::hosts)).
//!
//! Questions and answers have the same length, so that questions with a forged source cannot be used for
//! amplification. An answer repeats the random number of its question. An attacker who does not see the
//! question does not know this number, and can forge an answer only by guessing the 64 bits.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::address::mapped;

const MAGIC: [u8; 4] = *b"uwrn";
const VERSION: u8 = 1;

pub(super) const BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Asks which process listens at the address to which the question is sent.
    Question,
    /// Answers that a program has bound the address, but does not listen yet.
    Bound,
    /// Answers that a program listens. The value is the program's address on the wire.
    At(SocketAddr),
}

/// A message, with the random number of its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) number: u64,
    pub(super) content: Content,
}

impl Message {
    pub(super) fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[8..16].copy_from_slice(&self.number.to_be_bytes());
        match self.content {
            Content::Question => {}
            Content::Bound => bytes[5] = 1,
            Content::At(wire) => {
                bytes[5] = 2;
                bytes[6..8].copy_from_slice(&wire.port().to_be_bytes());
                bytes[16..].copy_from_slice(&mapped(wire.ip()).octets());
            }
        }
        bytes
    }

    /// Reads a message. Returns `None` if the bytes are not a message.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (front, rest) = bytes.split_first_chunk::<8>()?;
        let (number, ip) = rest.split_first_chunk::<8>()?;
        let [m0, m1, m2, m3, version, kind, high, low] = *front;
        if [m0, m1, m2, m3] != MAGIC || version != VERSION {
            return None;
        }
        let content = match kind {
            0 => Content::Question,
            1 => Content::Bound,
            2 => {
                let ip = IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)).to_canonical();
                Content::At(SocketAddr::new(ip, u16::from_be_bytes([high, low])))
            }
            _ => return None,
        };
        Some(Self { number: u64::from_be_bytes(*number), content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_comes_back_as_it_was_and_nothing_else_is_taken_for_one() {
        let at = |text: &str| Content::At(text.parse().unwrap());
        for content in [Content::Question, Content::Bound, at("[fd75::1]:7471"), at("10.0.0.1:65535")] {
            let message = Message { number: 0x0123_4567_89ab_cdef, content };
            let bytes = message.bytes();
            assert_eq!(Message::read(&bytes), Some(message));
            assert_eq!(Message::read(&bytes[..BYTES - 1]), None);
            assert_eq!(Message::read(&[&bytes[..], &[0]].concat()), None);
            for (at, wrong) in [(0, b'U'), (4, VERSION + 1), (5, 3)] {
                let mut bytes = bytes;
                bytes[at] = wrong;
                assert_eq!(Message::read(&bytes), None);
            }
        }
    }
}
