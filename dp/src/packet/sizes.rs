//! The sizes of a port's buffers and of the slots of the port's receive ring. The sizes depend on the port's
//! MTU.

use super::rx_ring::SLOT_UNIT;

/// Number of bytes of an Ethernet header with a VLAN tag.
const L2_BYTES: usize = 18;

/// Maximum number of bytes of a slot in front of its frame: the kernel's headers, virtio's header, and the
/// padding that aligns the IP packet (`tpacket_rcv`).
const SLOT_FRONT_BYTES: usize = 112;

/// Minimum number of bytes of a slot. Superframes that fit in a slot need no system call, and 1024 slots of
/// this size need 8 MiB of memory. On a veth pair at MTU 1500, Writes of 4 KiB (frames of a few segments) ran
/// at 820 MiB/s. With slots of 2 KiB, these Writes ran at 720 MiB/s. Writes of 1 MiB (frames of 64 KiB) ran
/// equally fast with slots of 2 to 64 KiB. Slots that are too small for single frames cost more: 1010 MiB/s
/// instead of 1330 MiB/s at MTU 9000 without offloads.
const MIN_SLOT_BYTES: usize = 8192;

/// Minimum number of bytes of a packet buffer. Each boundary between two buffers of a superframe may split an
/// FPDU, and a split FPDU costs more than a contiguous FPDU.
const MIN_MBUF_BYTES: usize = 4096;

const MIN_BULK_BYTES: usize = 32 << 10;

/// The sizes for an MTU in bytes. A frame of the MTU fits in a slot, and in one buffer of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Number of bytes of a slot of the ring, a multiple of [`SLOT_UNIT`].
    pub(super) slot: usize,
    pub(super) mbuf: usize,
    pub(super) bulk: usize,
}

impl Sizes {
    /// Computes the sizes for IP packets of at most `mtu` bytes.
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
            // The frame has a VLAN tag, and the headers of the kernel are in front of the frame.
            let frame_bytes = usize::from(mtu) + 18;
            assert!(slot >= frame_bytes + 112 && slot.is_multiple_of(SLOT_UNIT), "MTU {mtu}: {slot}");
            assert!(mbuf >= frame_bytes && bulk >= mbuf, "MTU {mtu}: {mbuf} {bulk}");
        }
        assert_eq!(Sizes::of(1500), Sizes { slot: 8192, mbuf: 4096, bulk: 32_768 });
        assert_eq!(Sizes::of(9000), Sizes { slot: 9216, mbuf: 9024, bulk: 32_768 });
    }
}
