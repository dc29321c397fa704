//! The header in front of each frame (`struct virtio_net_hdr`, virtio 1.2 section 5.1.6).

use super::features;
use crate::packet::vnet;
use crate::{Checksum, Mbuf};

/// Number of bytes of the longest header.
pub(super) const MAX_BYTES: usize = 12;

/// The offset of the number of buffers, in a header of 12 bytes.
const BUFFERS_AT: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum has to be filled in.
const NEEDS_CSUM: u8 = 1;

/// Number of bytes of the header with these features. Only drivers from before virtio 1.0 that have no
/// mergeable buffers have a header without the number of buffers.
pub(super) fn bytes(features: u64) -> usize {
    if features & (features::VERSION_1 | features::MRG_RXBUF) != 0 { MAX_BYTES } else { vnet::VNET_BYTES }
}

/// The state of the checksum of a frame that has arrived with this header.
pub(super) fn checksum(header: &[u8; MAX_BYTES]) -> Checksum {
    if header[0] & NEEDS_CSUM != 0 { Checksum::Partial } else { Checksum::Unknown }
}

/// Makes the header for a frame that fills `buffers` buffers of the driver.
pub(super) fn make(frame: &Mbuf, buffers: u16) -> [u8; MAX_BYTES] {
    let mut out = [0; MAX_BYTES];
    // The fields have the byte order of the machine, and the module is built only for little-endian machines.
    out[..vnet::VNET_BYTES].copy_from_slice(&vnet::header(frame));
    out[BUFFERS_AT..].copy_from_slice(&buffers.to_le_bytes());
    out
}
