//! Private data of MPA startup between two iwperfs. perftest ignores these private data.
//!
//! The private data of a client's Request on the control connection is a [`Hello`], with all fields
//! big-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `iwpf` |
//! | 1 | format, 3 |
//! | 1 | test, as an index of [`Test::ALL`] |
//! | 2 | flags |
//! | 12 x 4 | size, iters, duration, tx_depth, qps, cq_mod, post_list, inline, outs, burst, rx_depth, recv_post_list |
//! | 8 | seed |
//! | 8 | bytes or messages a second (see the flags), 0 for as fast as possible |
//!
//! The server's Reply carries the first six bytes of such a message: `iwpf`, the format and the test. A
//! rejection carries `iwpf`, the format, 0xff and the reason in UTF-8. A Request on a data connection carries
//! `iwpf`, the format, 0xfe and the number of the queue pair (BE16).

use crate::params::{AtomicKind, Params, Test};
use crate::rate::Rate;

const MAGIC: &[u8; 4] = b"iwpf";
const FORMAT: u8 = 3;
const REJECTED: u8 = 0xff;
const HELLO_BYTES: usize = 72;

/// Number of flags of a [`Hello`].
const FLAGS: usize = 11;

/// The test that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello(pub Params);

impl Hello {
    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        let p = &self.0;
        let counts_bytes = matches!(p.rate, Some(Rate::Bytes(_)));
        let swaps = p.atomic == AtomicKind::CompareSwap;
        let bits: [bool; FLAGS] = [
            p.all,
            p.bidirectional,
            p.events,
            p.validate,
            p.markers,
            p.crc,
            counts_bytes,
            p.zero_copy,
            swaps,
            p.warm_up,
            p.endless,
        ];
        let flags = bits.iter().enumerate().fold(0u16, |flags, (bit, &set)| flags | u16::from(set) << bit);
        let test = Test::ALL.iter().position(|&t| t == p.test).unwrap_or(0) as u8;
        let mut out = Vec::with_capacity(HELLO_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend([FORMAT, test]);
        out.extend(flags.to_be_bytes());
        for word in [
            p.size,
            p.iters,
            p.duration_s,
            p.tx_depth,
            p.qps,
            p.cq_mod,
            p.post_list,
            p.inline,
            p.outs,
            p.burst,
            p.rx_depth,
            p.recv_post_list,
        ] {
            out.extend(word.to_be_bytes());
        }
        out.extend(p.seed.to_be_bytes());
        out.extend(p.rate.map_or(0, Rate::per_s).to_be_bytes());
        out
    }

    /// Parses a client's private data. `Ok(None)` means that the client is not iwperf.
    ///
    /// # Errors
    /// Returns a message for the client if iwperf cannot use the private data.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some((format, rest)) = after_magic(bytes) else { return Ok(None) };
        if format != FORMAT {
            return Err(format!(
                "private data of format {format}, this end knows {FORMAT}: use one version of iwperf"
            ));
        }
        let Some(body) = rest.get(..HELLO_BYTES - 5) else { return Err("private data cut short".into()) };
        let (test, body) = (body[0] as usize, &body[1..]);
        let test = *Test::ALL.get(test).ok_or("an unknown test")?;
        let flags = u16::from_be_bytes([body[0], body[1]]);
        if flags >> FLAGS != 0 {
            return Err("an unknown flag".into());
        }
        let flag = |bit: u32| flags >> bit & 1 == 1;
        let word = |n: usize| u32::from_be_bytes(std::array::from_fn(|i| body[2 + 4 * n + i]));
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| body[at + i]));
        let rate = match long(58) {
            0 => None,
            per_s if flag(6) => Some(Rate::Bytes(per_s)),
            per_s => Some(Rate::Messages(per_s)),
        };
        let params = Params {
            test,
            size: word(0),
            iters: word(1),
            duration_s: word(2),
            all: flag(0),
            bidirectional: flag(1),
            tx_depth: word(3),
            qps: word(4),
            cq_mod: word(5),
            post_list: word(6),
            inline: word(7),
            outs: word(8),
            events: flag(2),
            validate: flag(3),
            zero_copy: flag(7),
            markers: flag(4),
            crc: flag(5),
            seed: long(50),
            rate,
            burst: word(9),
            rx_depth: word(10),
            recv_post_list: word(11),
            atomic: if flag(8) { AtomicKind::CompareSwap } else { AtomicKind::FetchAdd },
            warm_up: flag(9),
            endless: flag(10),
        };
        params.check().map_err(|error| error.to_string())?;
        Ok(Some(Self(params)))
    }
}

/// The server's Reply to a [`Hello`].
pub fn welcome(test: Test) -> Vec<u8> {
    let test = Test::ALL.iter().position(|&t| t == test).unwrap_or(0) as u8;
    let mut out = MAGIC.to_vec();
    out.extend([FORMAT, test]);
    out
}

/// Whether these private data are the Reply of an iwperf server that has accepted the test.
pub fn is_welcome(bytes: &[u8]) -> bool {
    after_magic(bytes).is_some_and(|(format, rest)| format == FORMAT && rest.first() != Some(&REJECTED))
}

/// Private data of a rejection, with the reason.
pub fn rejection(reason: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([FORMAT, REJECTED]);
    // The reason is cut, since some peers accept at most 256 bytes of private data.
    out.extend(reason.bytes().take(200));
    out
}

/// The reason in a rejection, if iwperf gave one.
pub fn rejection_reason(bytes: &[u8]) -> Option<String> {
    let (_, rest) = after_magic(bytes)?;
    let (&REJECTED, reason) = rest.split_first()? else { return None };
    Some(String::from_utf8_lossy(reason).chars().filter(|c| !c.is_control()).collect())
}

/// Private data of the connection of queue pair `index`.
pub fn data_connection(index: u32) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([FORMAT, 0xfe]);
    out.extend((index as u16).to_be_bytes());
    out
}

fn after_magic(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (&format, rest) = bytes.strip_prefix(MAGIC)?.split_first()?;
    Some((format, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::example;

    #[test]
    fn every_test_comes_through() {
        for test in Test::ALL {
            let mut params = example(test);
            (params.seed, params.validate, params.crc) = (0x0123_4567_89ab_cdef, true, false);
            (params.rx_depth, params.recv_post_list, params.warm_up) = (77, 7, true);
            params.atomic = AtomicKind::CompareSwap;
            let rates: &[_] = if test.is_latency() {
                &[None]
            } else {
                &[None, Some(Rate::Bytes(7)), Some(Rate::Messages(8))]
            };
            for &rate in rates {
                let hello =
                    Hello(Params { rate, burst: if rate.is_some() { 9 } else { 1 }, ..params.clone() });
                let bytes = hello.encode();
                assert_eq!(bytes.len(), HELLO_BYTES);
                assert_eq!(Hello::decode(&bytes), Ok(Some(hello)));
            }
        }
    }

    #[test]
    fn anything_else_is_not_iwperf() {
        for bytes in [&b""[..], b"iwp", b"abcdefgh"] {
            assert_eq!(Hello::decode(bytes), Ok(None));
            assert!(!is_welcome(bytes));
            assert_eq!(rejection_reason(bytes), None);
        }
    }

    #[test]
    fn a_broken_hello_is_refused_in_words() {
        let good = Hello(example(Test::WriteBw)).encode();
        for cut in 5..good.len() {
            assert!(Hello::decode(&good[..cut]).is_err(), "{cut}");
        }
        for (at, value) in [(4, 9), (5, 9), (6, 0xff), (8, 0xff)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Hello::decode(&bad).is_err(), "{at}");
        }
    }

    #[test]
    fn replies_are_told_apart() {
        assert!(is_welcome(&welcome(Test::SendLat)));
        let no = rejection("no such test");
        assert!(!is_welcome(&no));
        assert_eq!(rejection_reason(&no).as_deref(), Some("no such test"));
        assert!(rejection(&"x".repeat(1000)).len() <= 206);
        assert_eq!(rejection_reason(&welcome(Test::SendLat)), None);
    }
}
