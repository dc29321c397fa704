//! Values that an attacker must not be able to guess, all derived from one seed: among others, initial
//! sequence numbers (RFC 6528), ephemeral ports (RFC 6056 algorithm 3), keys of SYN cookies, and hash table
//! keys. Stacks with equal seeds behave equally.

use std::hash::{BuildHasher, Hash, Hasher};

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use siphasher::sip::{SipHasher13, SipHasher24};

use crate::facade::{Duration, Instant, IpAddress, TcpSeqNumber};
use crate::four_tuple::FourTuple;

/// First port of the dynamic range (RFC 6335 section 6).
const EPHEMERAL_FIRST: u16 = 49_152;
/// Number of ports in the dynamic range.
pub(crate) const EPHEMERAL_PORTS: u16 = u16::MAX - EPHEMERAL_FIRST + 1;

/// Keyed functions of one stack.
pub(crate) struct Secrets {
    isn: SipHasher24,
    timestamp: SipHasher24,
    port: SipHasher24,
    table: KeyedState,
    /// Key of the SYN cookies.
    pub(crate) cookie: SipHasher24,
    /// Random seed for smoltcp.
    pub(crate) slow_path_seed: u64,
    /// A counter of ephemeral ports, which starts at a random number (`next_ephemeral` in RFC 6056).
    ports_given: u16,
}

impl Secrets {
    /// Derives all keys from the seed.
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        let mut rng = ChaCha20Rng::from_seed(seed);
        let mut pair = || (rng.next_u64(), rng.next_u64());
        let (isn, timestamp, port, table) = (pair(), pair(), pair(), pair());
        let cookie = pair();
        Self {
            isn: SipHasher24::new_with_keys(isn.0, isn.1),
            timestamp: SipHasher24::new_with_keys(timestamp.0, timestamp.1),
            port: SipHasher24::new_with_keys(port.0, port.1),
            table: KeyedState(SipHasher13::new_with_keys(table.0, table.1)),
            cookie: SipHasher24::new_with_keys(cookie.0, cookie.1),
            slow_path_seed: rng.next_u64(),
            ports_given: rng.next_u32() as u16,
        }
    }

    /// The keyed hash of this stack's tables.
    pub(crate) fn table_state(&self) -> KeyedState {
        self.table.clone()
    }

    /// The initial sequence number: M + F(4-tuple, key), where M is the number of ticks of 4 microseconds
    /// (RFC 6528 section 3).
    pub(crate) fn isn(&self, now: Instant, tuple: &FourTuple) -> TcpSeqNumber {
        let clock = (now.total_micros() / 4) as u32;
        TcpSeqNumber(clock.wrapping_add(hash(&self.isn, tuple) as u32) as i32)
    }

    /// The wait before the first probe of our addresses: less than a second, and pseudo-random, so that hosts
    /// that start together do not probe together (RFC 5227 section 2.1.1).
    pub(crate) fn probe_wait(&self) -> Duration {
        Duration::from_millis(hash(&self.timestamp, &"probe wait") % 1000)
    }

    /// A pseudo-random wait of at most `most` before a report of a multicast group (RFC 2236 section 3).
    pub(crate) fn report_delay(&self, now: Instant, group: &IpAddress, most: Duration) -> Duration {
        let random = hash(&self.timestamp, &("report", now.total_micros(), group));
        Duration::from_micros(random % (most.total_micros() + 1))
    }

    /// The offset of the connection's timestamp clock (RFC 7323 section 5.4).
    pub(crate) fn timestamp_offset(&self, tuple: &FourTuple) -> u32 {
        hash(&self.timestamp, tuple) as u32
    }

    /// Returns the `attempt`-th port to try from `local` to `remote`. If two connections to one endpoint
    /// follow each other directly, they get consecutive ports. An attacker who is not on the path cannot
    /// predict the first port for an endpoint (RFC 6056, algorithm 3).
    pub(crate) fn ephemeral_port(
        &self,
        local: &IpAddress,
        remote: &IpAddress,
        remote_port: u16,
        attempt: u16,
    ) -> u16 {
        let offset = hash(&self.port, &(local, remote, remote_port)) as u16;
        let number = offset.wrapping_add(self.ports_given).wrapping_add(attempt);
        EPHEMERAL_FIRST + number % EPHEMERAL_PORTS
    }

    /// Notes that a connection uses the port that belongs to `attempt`
    /// ([`ephemeral_port`](Self::ephemeral_port)).
    pub(crate) fn ephemeral_port_taken(&mut self, attempt: u16) {
        self.ports_given = self.ports_given.wrapping_add(attempt).wrapping_add(1);
    }
}

fn hash<T: Hash>(keyed: &SipHasher24, value: &T) -> u64 {
    let mut bytes = HashBytes::default();
    value.hash(&mut bytes);
    keyed.hash(bytes.as_slice())
}

/// The bytes that a value writes to a hasher, collected for one SipHash call over all bytes. One call for
/// each piece gives the same result, but a single call is cheaper.
pub(crate) struct HashBytes {
    bytes: [u8; 128],
    len: usize,
}

impl Default for HashBytes {
    fn default() -> Self {
        Self { bytes: [0; 128], len: 0 }
    }
}

impl HashBytes {
    /// All bytes that were written.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Hasher for HashBytes {
    /// # Panics
    /// If more than 128 bytes are written. A 4-tuple has at most 52 bytes, and a cookie has 20 more.
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Returns no hash: [`as_slice`](Self::as_slice) returns the bytes to hash.
    fn finish(&self) -> u64 {
        0
    }
}

/// Hashers for tables whose keys are values received from the network.
#[derive(Clone)]
pub(crate) struct KeyedState(SipHasher13);

impl std::fmt::Debug for KeyedState {
    /// Formats the value without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyedState").finish_non_exhaustive()
    }
}

impl BuildHasher for KeyedState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(remote_port: u16) -> FourTuple {
        FourTuple {
            local: IpAddress::v4(10, 0, 0, 1),
            local_port: 80,
            remote: IpAddress::v4(10, 0, 0, 2),
            remote_port,
        }
    }

    #[test]
    fn isns_follow_the_clock_and_differ_between_tuples_and_seeds() {
        let (a, b) = (Secrets::new([1; 32]), Secrets::new([2; 32]));
        let (t0, t1) = (Instant::from_micros(0), Instant::from_micros(4000));
        assert_eq!(a.isn(t1, &tuple(1)) - a.isn(t0, &tuple(1)), 1000);
        assert_ne!(a.isn(t0, &tuple(1)), a.isn(t0, &tuple(2)));
        assert_ne!(a.isn(t0, &tuple(1)), b.isn(t0, &tuple(1)));
        assert_eq!(a.isn(t0, &tuple(1)), Secrets::new([1; 32]).isn(t0, &tuple(1)));
    }

    #[test]
    fn a_hash_in_one_call_is_that_of_the_pieces() {
        let key = SipHasher24::new_with_keys(7, 9);
        let six = |last| IpAddress::v6(0x2001, 0xdb8, 1, 2, 3, 4, 5, last);
        for tuple in [tuple(1), FourTuple { local: six(1), remote: six(2), ..tuple(3) }] {
            let mut pieces = key;
            tuple.hash(&mut pieces);
            assert_eq!(hash(&key, &tuple), pieces.finish());
        }
        let (mut pieces, text) = (key, "probe wait");
        text.hash(&mut pieces);
        assert_eq!(hash(&key, &text), pieces.finish());
    }

    #[test]
    fn each_part_of_the_tuple_counts() {
        let (secrets, first) = (Secrets::new([1; 32]), tuple(1));
        let others = [
            FourTuple { local: IpAddress::v4(10, 0, 0, 3), ..first },
            FourTuple { local_port: 81, ..first },
            FourTuple { remote: IpAddress::v4(10, 0, 0, 3), ..first },
            FourTuple { remote_port: 2, ..first },
        ];
        for other in others {
            assert_ne!(secrets.isn(Instant::ZERO, &first), secrets.isn(Instant::ZERO, &other), "{other:?}");
            assert_ne!(secrets.timestamp_offset(&first), secrets.timestamp_offset(&other), "{other:?}");
            let port =
                |tuple: &FourTuple| secrets.ephemeral_port(&tuple.local, &tuple.remote, tuple.remote_port, 0);
            // The chosen port does not depend on the local port of the tuple.
            assert_eq!(port(&first) == port(&other), other.local_port != first.local_port, "{other:?}");
        }
    }

    #[test]
    fn ports_that_were_in_use_are_not_tried_again_by_the_next() {
        let mut secrets = Secrets::new([3; 32]);
        let remote = IpAddress::v4(10, 0, 0, 2);
        let port = |secrets: &Secrets, attempt| secrets.ephemeral_port(&remote, &remote, 5, attempt);
        let third = port(&secrets, 3);
        secrets.ephemeral_port_taken(2);
        assert_eq!(port(&secrets, 0), third);
    }

    #[test]
    fn attempts_walk_the_whole_dynamic_range() {
        let secrets = Secrets::new([3; 32]);
        let (local, remote) = (IpAddress::v4(10, 0, 0, 1), IpAddress::v4(10, 0, 0, 2));
        let mut ports: Vec<_> =
            (0..EPHEMERAL_PORTS).map(|n| secrets.ephemeral_port(&local, &remote, 5, n)).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), usize::from(EPHEMERAL_PORTS));
        assert_eq!(ports[0], EPHEMERAL_FIRST);
    }
}
