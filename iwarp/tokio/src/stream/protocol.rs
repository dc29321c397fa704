//! The messages that the two sides of a stream exchange.
//!
//! | message | bytes |
//! |---|---|
//! | hello | 1, the ring ([`RemoteRegion::to_bytes`]), the number of receive requests (u32) |
//! | credit | 2, the number of bytes that were read from the ring so far (u64), the number of Writes that were received so far (u64) |
//! | end | 3 |
//! | Immediate Data | the number of bytes of the Write (u64) |
//!
//! Numbers are in network byte order.

use iwarp::verbs::SendOp;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::region::RemoteRegion;

const HELLO: u8 = 1;
pub(super) const CREDIT: u8 = 2;
pub(super) const END: u8 = 3;

/// Length in bytes of the longest message.
pub(super) const HELLO_BYTES: usize = 1 + RemoteRegion::BYTES + size_of::<u32>();

/// Number of receive requests that are reserved for messages that a peer sends without flow control. At most
/// twelve such messages are outstanding at a time: five credit messages for Writes, five credit messages for
/// the ring, the hello, and the end message.
pub(super) const RESERVE: u64 = 12;

/// Maximum size in bytes of the peer's ring. This side allocates the same amount of memory.
pub(super) const LONGEST_RING: u64 = 64 << 20;

/// The progress of a stream: the number of bytes, and the number of Writes that carry them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) bytes: u64,
    pub(super) writes: u64,
}

/// Returns the hello for this ring and this number of receives.
pub(super) fn hello(ring: &RemoteRegion, receives: usize) -> Vec<u8> {
    let receives = u32::try_from(receives).unwrap_or(u32::MAX);
    [&[HELLO], &ring.to_bytes()[..], &receives.to_be_bytes()].concat()
}

/// Parses a hello. Returns the peer's ring, and the number of Writes that the peer accepts without a credit.
pub(super) fn parse_hello(data: &[u8]) -> Result<(RemoteRegion, u64)> {
    let Some((&HELLO, rest)) = data.split_first() else {
        return Err(Error::Protocol("its first message is no hello"));
    };
    let Some((ring, receives)) = rest.split_at_checked(RemoteRegion::BYTES) else {
        return Err(Error::Protocol("its hello is too short"));
    };
    let receives = receives.try_into().map_err(|_| Error::Protocol("its hello has another length"))?;
    let window = u64::from(u32::from_be_bytes(receives)).saturating_sub(RESERVE);
    let ring = RemoteRegion::try_from(ring)?;
    if window == 0 || ring.len == 0 || ring.len > LONGEST_RING {
        return Err(Error::Protocol("its ring or its receive queue is too short, or the ring too long"));
    }
    Ok((ring, window))
}

/// Sends a message without waiting for its completion. The caller has reserved a place in the send queue.
pub(super) fn send(connection: &Connection, parts: &[&[u8]]) -> Result<()> {
    let wr_id = connection.post_copy(SendOp::Send, parts)?;
    connection.router().forget(wr_id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(len: u64) -> RemoteRegion {
        RemoteRegion { addr: 7, rkey: 9, len }
    }

    #[test]
    fn a_hello_has_a_ring_and_receives_that_suffice() {
        for (len, receives, window) in [(1, 13, 1), (LONGEST_RING, 32, 20), (100, usize::MAX, 0xffff_fff3)] {
            assert_eq!(parse_hello(&hello(&ring(len), receives)).unwrap(), (ring(len), window));
        }
        let whole = hello(&ring(1), 13);
        assert_eq!(whole.len(), HELLO_BYTES);
        let mut other = whole.clone();
        other[0] = CREDIT;
        for refused in [
            hello(&ring(1), 12),
            hello(&ring(1), 0),
            hello(&ring(0), 13),
            hello(&ring(LONGEST_RING + 1), 13),
            whole[..HELLO_BYTES - 1].to_vec(),
            whole[..RemoteRegion::BYTES].to_vec(),
            [&whole[..], &[0]].concat(),
            Vec::new(),
            other,
        ] {
            assert!(matches!(parse_hello(&refused), Err(Error::Protocol(_))), "{refused:?}");
        }
    }
}
