//! The sizes of a port's buffers and of the slots of its receive ring, by the MTU of its interface.

use super::rx_ring::SLOT_UNIT;

/// Ethernet header and a VLAN tag, bytes.
const L2_BYTES: usize = 18;

/// Maximum bytes of a slot in front of its frame: the kernel's headers, virtio's header, and the padding
/// that aligns the IP packet (`tpacket_rcv`).
const SLOT_FRONT_BYTES: usize = 112;

/// Smallest slot, bytes: superframes up to this length need no system call, and 1024 slots take 8 MiB. On a
/// veth pair at MTU 1500, Writes of 4 KiB (frames of a few segments) ran at 820 MiB/s, but at 720 with slots
/// of 2 KiB. Writes of 1 MiB (frames of 64 KiB) ran equally fast with slots of 2 to 64 KiB. Slots that are
/// too small for single frames cost more: 1010 MiB/s instead of 1330 at MTU 9000 without offloads.
const MIN_SLOT_BYTES: usize = 8192;

/// Smallest packet buffer, bytes: each boundary between two buffers of a superframe may split an FPDU, and a
/// split FPDU costs more than a contiguous one.
const MIN_MBUF_BYTES: usize = 4096;

/// Smallest large buffer, bytes.
const MIN_BULK_BYTES: usize = 32 << 10;

/// The sizes for an MTU, bytes. A frame of the MTU fits a slot, and one buffer of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// A slot of the ring, a multiple of [`SLOT_UNIT`].
    pub(super) slot: usize,
    /// A packet buffer.
    pub(super) mbuf: usize,
    /// A large packet buffer.
    pub(super) bulk: usize,
}

impl Sizes {
    /// The sizes for IP packets of up to `mtu` bytes.
    pub(super) fn of(mtu: u16) -> Self {
        let frame_bytes = usize::from(mtu) + L2_BYTES;
        let mbuf = frame_bytes.next_multiple_of(64).max(MIN_MBUF_BYTES);
        Self {
            slot: (frame_bytes + SLOT_FRONT_BYTES).next_multiple_of(SLOT_UNIT).max(MIN_SLOT_BYTES),
            mbuf,
            bulk: mbuf.max(MIN_BULK_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_any_mtu_fits_one_slot_and_one_buffer() {
        for mtu in 576..=9000 {
            let Sizes { slot, mbuf, bulk } = Sizes::of(mtu);
            // With a VLAN tag, behind the headers of the kernel.
            let frame_bytes = usize::from(mtu) + 18;
            assert!(slot >= frame_bytes + 112 && slot.is_multiple_of(SLOT_UNIT), "MTU {mtu}: {slot}");
            assert!(mbuf >= frame_bytes && bulk >= mbuf, "MTU {mtu}: {mbuf} {bulk}");
        }
        assert_eq!(Sizes::of(1500), Sizes { slot: 8192, mbuf: 4096, bulk: 32_768 });
        assert_eq!(Sizes::of(9000), Sizes { slot: 9216, mbuf: 9024, bulk: 32_768 });
    }
}
