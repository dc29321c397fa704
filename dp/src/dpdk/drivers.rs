//! Limits of drivers that ethdev does not report: the longest buffer of a frame, the number of buffers,
//! and the segment sizes for TSO.
//!
//! `rte_eth_dev_info` has `tx_desc_lim.nb_seg_max` and `nb_mtu_seg_max`, and nothing else of this.
//! Beyond its limits, a driver drops the frame every time it is sent, or sends different bytes. A driver
//! without a row here gets the narrowest of the known limits. Files and names are those of DPDK
//! 22.11.11.

use dpdk_sys as sys;

use crate::mbuf::MAX_SEGMENTS;
use crate::{Mss, TsoLimits};

/// Limits of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Driver {
    /// Most bytes in one buffer of a frame (`data_len`).
    pub(super) buffer_bytes: usize,
    /// Most buffers of a frame that is not cut.
    pub(super) buffers: usize,
    /// Most buffers of a frame that is cut.
    pub(super) tso_buffers: usize,
    /// Segment sizes for TSO.
    pub(super) mss: Mss,
    /// Whether frames coalesced by LRO are delivered.
    pub(super) joins: bool,
    /// Bytes that a receive buffer needs in addition to the frame.
    pub(super) rx_header_bytes: usize,
    /// Whether the driver copies the frames that it sends, so that their bytes may lie in any memory.
    pub(super) copies: bool,
}

/// For a driver without a row.
const UNKNOWN: Driver = Driver {
    // Most descriptors have 14 bits for the length.
    buffer_bytes: (16 << 10) - 1,
    // Limited only by what the device reports.
    buffers: MAX_SEGMENTS,
    tso_buffers: MAX_SEGMENTS,
    // The minimum of i40e and iavf; below the maximum of all that have one.
    mss: Mss { least: 256, most: 9000 },
    joins: true,
    rx_header_bytes: 0,
    copies: false,
};

/// A virtual device: frames are copied, or described with 32-bit lengths.
const VIRTUAL: Driver = Driver { buffer_bytes: u16::MAX as usize, mss: Mss::ANY, ..UNKNOWN };

/// A virtual device whose driver copies each frame by its virtual address: lib/vhost/virtio_net.c,
/// mbuf_to_desc() with sync_fill_seg(). (net_af_packet and net_tap do as well; no test sends external memory
/// through them.)
const COPYING: Driver = Driver { copies: true, ..VIRTUAL };

/// virtio/virtio_ring.h, struct vring_desc and vring_packed_desc: uint32_t len. virtio/virtio_ethdev.c,
/// virtio_dev_configure(): a received frame counts with struct virtio_net_hdr_mrg_rxbuf, 12 bytes, though
/// that lies in the headroom.
const VIRTIO: Driver = Driver { rx_header_bytes: 12, ..VIRTUAL };

/// Drivers by their names in `rte_eth_dev_info`.
const DRIVERS: &[(&str, Driver)] = &[
    ("net_af_packet", VIRTUAL),
    ("net_memif", VIRTUAL),
    ("net_null", VIRTUAL),
    ("net_ring", VIRTUAL),
    ("net_tap", VIRTUAL),
    ("net_vhost", COPYING),
    ("net_virtio", VIRTIO),
    ("net_virtio_user", VIRTIO),
    // bnxt/bnxt_txr.c, bnxt_start_xmit(): BNXT_MAX_TSO_SEGS is 32, one of them a descriptor without
    // data. It reports no limit, and a frame with more buffers blocks the head of the ring for ever.
    ("net_bnxt", Driver { buffers: 31, tso_buffers: 31, ..UNKNOWN }),
    // e1000/igb_rxtx.c, eth_igb_prep_pkts(): IGB_TSO_MAX_MSS.
    ("net_e1000_igb", Driver { mss: Mss { least: 1, most: 9216 }, ..UNKNOWN }),
    // ena/ena_ethdev.c, eth_ena_prep_pkts(): fewer than sgl_size, which is at most ENA_PKT_MAX_BUFS, 17; it
    // reports sgl_size.
    ("net_ena", Driver { buffers: 16, tso_buffers: 16, ..UNKNOWN }),
    // enic/base/wq_enet_desc.h, wq_enet_desc_enc(): the length is masked with WQ_ENET_LEN_MASK, 14 bits.
    // enic/enic_rxtx.c, enic_prep_pkts(): headers and MSS up to ENIC_TX_MAX_PKT_SIZE, 9208.
    ("net_enic", Driver { mss: Mss { least: 1, most: 9000 }, ..UNKNOWN }),
    // i40e/i40e_rxtx.c: I40E_TXD_QW1_TX_BUF_SZ_MASK, 14 bits; i40e_prep_pkts(): I40E_MIN_TSO_MSS,
    // I40E_MAX_TSO_MSS.
    ("net_i40e", Driver { mss: Mss { least: 256, most: 9674 }, ..UNKNOWN }),
    // iavf/iavf_rxtx.h: IAVF_TXD_QW1_TX_BUF_SZ_MASK, 14 bits; IAVF_MIN_TSO_MSS, IAVF_MAX_TSO_MSS.
    ("net_iavf", Driver { mss: Mss { least: 256, most: 9668 }, ..UNKNOWN }),
    // ice/ice_rxtx.c: ICE_TXD_QW1_TX_BUF_SZ_S, 14 bits; ICE_MIN_TSO_MSS, ICE_MAX_TSO_MSS.
    ("net_ice", Driver { mss: Mss { least: 64, most: 9728 }, ..UNKNOWN }),
    // igc/igc_txrx.c, eth_igc_prep_pkts(): IGC_TSO_MAX_MSS.
    ("net_igc", Driver { mss: Mss { least: 1, most: 9216 }, ..UNKNOWN }),
    // vmxnet3/vmxnet3_rxtx.c, vmxnet3_xmit_pkts(): dword[2] = dw2 | data_len, of which the length has 14 bits
    // (base/vmxnet3_defs.h, Vmxnet3_TxDesc.len): a longer buffer is sent modulo 16,384, with a right TCP
    // checksum. msscof has 14 bits as well. The buffers of a frame that is cut are not bounded in this
    // release; Linux's driver and later releases have VMXNET3_MAX_TSO_TXD_PER_PKT, 24. With LRO on a tap that
    // passes superframes each of them was dropped by the receiving device (QEMU 10).
    (
        "net_vmxnet3",
        Driver { tso_buffers: 24, mss: Mss { least: 1, most: (16 << 10) - 1 }, joins: false, ..UNKNOWN },
    ),
];

/// The limits of the driver with this name.
pub(super) fn find(name: &str) -> Driver {
    DRIVERS.iter().find(|(known, _)| *known == name).map_or(UNKNOWN, |(_, driver)| *driver)
}

impl Driver {
    /// Narrowed by the limits that the device reports: buffers of any frame (for TSO), and of a frame
    /// that is not cut. Zero means not reported.
    pub(super) fn with_reported(self, limits: &sys::rte_eth_desc_lim) -> Self {
        let at_most = |known: usize, reported: u16| match reported {
            0 => known,
            reported => known.min(usize::from(reported)),
        };
        let tso_buffers = at_most(self.tso_buffers, limits.nb_seg_max);
        let buffers = at_most(at_most(self.buffers, limits.nb_seg_max), limits.nb_mtu_seg_max);
        Self { buffers, tso_buffers, ..self }
    }

    /// The limits that senders must keep.
    pub(super) fn tso_limits(&self) -> TsoLimits {
        TsoLimits { buffers: self.tso_buffers, mss: self.mss }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(nb_seg_max: u16, nb_mtu_seg_max: u16) -> sys::rte_eth_desc_lim {
        sys::rte_eth_desc_lim { nb_max: 0, nb_min: 0, nb_align: 0, nb_seg_max, nb_mtu_seg_max }
    }

    #[test]
    fn a_buffer_for_vmxnet3_has_a_length_of_14_bits_and_received_frames_are_not_joined() {
        let driver = find("net_vmxnet3");
        assert_eq!((driver.buffer_bytes, driver.joins), (16_383, false));
    }

    #[test]
    fn a_driver_without_a_row_gets_the_narrowest_of_all_rows() {
        let unknown = find("net_of_tomorrow");
        assert_eq!(unknown.buffer_bytes, 16_383);
        for (name, driver) in DRIVERS {
            assert!(driver.buffer_bytes >= unknown.buffer_bytes, "{name}");
            assert!(driver.mss.least <= unknown.mss.least && driver.mss.most >= unknown.mss.most, "{name}");
        }
    }

    #[test]
    fn virtual_devices_take_what_a_buffer_can_hold() {
        for name in ["net_vhost", "net_virtio", "net_virtio_user", "net_ring"] {
            assert!(find(name).buffer_bytes >= crate::mempool::dpdk::MAX_DATA_BYTES, "{name}");
        }
    }

    #[test]
    fn what_a_device_reports_narrows_its_row_and_zero_reports_nothing() {
        let counts = |name, report| {
            let driver = find(name).with_reported(&report);
            (driver.buffers, driver.tso_buffers)
        };
        assert_eq!(counts("net_vmxnet3", reported(255, 16)), (16, 24));
        assert_eq!(counts("net_i40e", reported(255, 8)), (8, MAX_SEGMENTS));
        assert_eq!(counts("net_ixgbe", reported(40, 40)), (40, 40));
        assert_eq!(counts("net_ena", reported(17, 17)), (16, 16));
        assert_eq!(counts("net_bnxt", reported(0, 0)), (31, 31));
        assert_eq!(counts("net_virtio", reported(0, 0)), (MAX_SEGMENTS, MAX_SEGMENTS));
        // The whole bounds what is not cut, too.
        assert_eq!(counts("net_of_tomorrow", reported(4, 0)), (4, 4));
    }

    #[test]
    fn a_driver_has_one_row() {
        let names: Vec<_> = DRIVERS.iter().map(|(name, _)| *name).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
