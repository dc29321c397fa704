//! The feature bits of a virtio network device (virtio 1.2 sections 5.1.3 and 6).

use crate::Offloads;

/// The driver may send frames whose TCP checksum the device fills in.
pub(super) const CSUM: u64 = 1 << 0;
/// The driver accepts frames with a partial checksum.
pub(super) const GUEST_CSUM: u64 = 1 << 1;
/// The device reports its MTU. The frontend knows the MTU, since the configuration space belongs to the
/// frontend: for example, by QEMU's property `host_mtu`.
pub(super) const MTU: u64 = 1 << 3;
/// The driver accepts uncut TCP frames over IPv4.
pub(super) const GUEST_TSO4: u64 = 1 << 7;
/// The driver accepts uncut TCP frames over IPv6.
pub(super) const GUEST_TSO6: u64 = 1 << 8;
/// The driver accepts uncut TCP frames with CWR.
pub(super) const GUEST_ECN: u64 = 1 << 9;
/// The driver may send uncut TCP frames over IPv4.
pub(super) const HOST_TSO4: u64 = 1 << 11;
/// The driver may send uncut TCP frames over IPv6.
pub(super) const HOST_TSO6: u64 = 1 << 12;
/// The driver may send uncut TCP frames with CWR.
pub(super) const HOST_ECN: u64 = 1 << 13;
/// A frame may fill several receive buffers of the driver.
pub(super) const MRG_RXBUF: u64 = 1 << 15;
/// A descriptor may refer to a table of descriptors.
pub(super) const INDIRECT_DESC: u64 = 1 << 28;
/// Each side says at which index it wants to be notified.
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// The device has features of the vhost-user protocol.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The device follows virtio 1.0 or later.
pub(super) const VERSION_1: u64 = 1 << 32;

/// The features that a port with these offloads offers.
pub(super) fn offered(offloads: Offloads) -> u64 {
    let mut features = VERSION_1 | PROTOCOL_FEATURES | EVENT_IDX | INDIRECT_DESC | MTU;
    if offloads.contains(Offloads::TX_MULTI_SEGMENT) {
        features |= MRG_RXBUF;
    }
    if offloads.contains(Offloads::TX_TCP_CHECKSUM) {
        features |= GUEST_CSUM;
        if offloads.contains(Offloads::TX_TSO | Offloads::TX_MULTI_SEGMENT) {
            features |= GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN;
        }
    }
    if offloads.contains(Offloads::RX_TCP_CHECKSUM) {
        features |= CSUM;
        if offloads.contains(Offloads::RX_LRO) {
            features |= HOST_TSO4 | HOST_TSO6 | HOST_ECN;
        }
    }
    features
}

/// Whether a driver with these features accepts uncut TCP frames over IPv4 and IPv6. The frames need
/// mergeable buffers, since drivers may have small buffers.
pub(super) fn passes_large_frames(features: u64) -> bool {
    let needed = GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | MRG_RXBUF;
    features & needed == needed
}
