//! Properties of drivers, such as the maximum number and length of a frame's buffers, the segment sizes for
//! TSO, and offloads that do not work. Ethdev does not report most of these properties.
//!
//! Of the limits for the buffers of a frame to send, `rte_eth_dev_info` reports only `tx_desc_lim.nb_seg_max`
//! and `nb_mtu_seg_max`. If a frame exceeds another limit, the driver may drop the frame each time it is
//! sent, send different bytes, or block its ring. So the source of a new driver has to be checked before the
//! driver is added: a test requires a row for every linked driver, even if the limits of [`UNKNOWN`] are
//! right for this driver. File names (below `drivers/net`) and other names are those of DPDK 22.11.11.
//!
//! Some limits are not listed, because all frames of this crate's users comply with them. These limits are a
//! minimum length (17 bytes for i40e, iavf and ice, 14 bytes for ixgbe), and at most 512 bytes of headers for
//! TSO (igb, igc). Further limits are a TCP header within the first 255 bytes (em), and at most 256 KiB of a
//! frame for TSO (i40e, ice).

use dpdk_sys as sys;

use crate::mbuf::MAX_SEGMENTS;
use crate::{Mss, TsoLimits};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Driver {
    /// Maximum number of bytes in one buffer of a frame (`data_len`).
    pub(super) buffer_bytes: usize,
    /// Maximum number of buffers of a frame that is sent without TSO.
    pub(super) buffers: usize,
    /// Maximum number of buffers of a frame that is sent with TSO.
    pub(super) tso_buffers: usize,
    /// This number is subtracted from the maximum number of buffers that the device reports.
    spare_buffers: usize,
    /// `true` if TSO works with frames whose headers are in a buffer of their own, as in the frames of this
    /// crate's users.
    pub(super) tso: bool,
    /// The supported segment sizes for TSO.
    pub(super) mss: Mss,
    /// `true` if the device can deliver frames that LRO has coalesced.
    pub(super) joins: bool,
    /// Number of bytes of a VLAN tag that count toward the device's MTU.
    pub(super) mtu_tag_bytes: u16,
    /// Number of bytes that a receive buffer needs in addition to the frame.
    pub(super) rx_header_bytes: usize,
    /// The device rounds the size of a receive buffer down to a multiple of this number of bytes.
    pub(super) rx_unit: usize,
    /// Maximum number of bytes that the device receives into one buffer.
    pub(super) rx_buffer_bytes: usize,
    /// `true` if the peer or Linux spreads received flows over several queues without RSS.
    pub(super) spreads: bool,
    /// `true` if the driver copies the frames that it sends, so that the bytes of a frame may be in any
    /// memory.
    pub(super) copies: bool,
}

/// The limits of a driver without a row.
const UNKNOWN: Driver = Driver {
    // Most descriptors have at least 14 bits for the length.
    buffer_bytes: (16 << 10) - 1,
    buffers: MAX_SEGMENTS,
    tso_buffers: MAX_SEGMENTS,
    spare_buffers: 0,
    tso: true,
    // The lower bound is the bound of i40e and iavf, which is the highest lower bound of all drivers. The
    // upper bound is the bound of enic, which is the lowest upper bound of all drivers.
    mss: Mss { least: 256, most: 9000 },
    joins: true,
    mtu_tag_bytes: 0,
    rx_header_bytes: 0,
    rx_unit: 1,
    rx_buffer_bytes: u16::MAX as usize,
    spreads: false,
    copies: false,
};

/// A virtual device: the driver copies frames, passes on their buffers, or describes the buffers with 32-bit
/// lengths. The peer chooses the queue of a frame, or Linux chooses the queue from a hash of the flow
/// (PACKET_FANOUT_HASH of net_af_packet, queues of a tap, RSS of the interface under net_af_xdp).
const VIRTUAL: Driver = Driver { buffer_bytes: u16::MAX as usize, mss: Mss::ANY, spreads: true, ..UNKNOWN };

/// A virtual device whose driver copies each frame by its virtual address: lib/vhost/virtio_net.c,
/// mbuf_to_desc() with sync_fill_seg(). (net_af_packet and net_tap also copy frames, but no test sends
/// external memory through them.)
const COPYING: Driver = Driver { copies: true, ..VIRTUAL };

/// virtio/virtio_ring.h, struct vring_desc and vring_packed_desc: uint32_t len. virtio/virtio_ethdev.c,
/// virtio_dev_configure(): struct virtio_net_hdr_mrg_rxbuf, 12 bytes, counts as part of a received frame,
/// although it is stored in the headroom. VIRTIO 1.2 section 5.1.6.5.5: several queues are steered by flow,
/// even without RSS.
const VIRTIO: Driver = Driver { rx_header_bytes: 12, ..VIRTUAL };

/// e1000/igb_rxtx.c, eth_igb_prep_pkts(): IGB_TSO_MAX_MSS. eth_igb_xmit_pkts(): cmd_type_len | slen, a length
/// of 16 bits. eth_igb_rx_init() and eth_igbvf_rx_init(): E1000_SRRCTL_BSIZEPKT_SHIFT, buffers in KiB.
const IGB: Driver = Driver { mss: Mss { least: 1, most: 9216 }, rx_unit: 1 << 10, ..UNKNOWN };

/// ixgbe/ixgbe_rxtx.c, ixgbe_prep_pkts(): a frame has at most IXGBE_TX_MAX_SEG buffers, less WTHRESH. WTHRESH
/// is 0 unless it is set, so this maximum is as reported. ixgbe_xmit_pkts(): cmd_type_len | slen, a length of
/// 16 bits. ixgbe_dev_rx_init() and ixgbevf_dev_rx_init(): IXGBE_SRRCTL_BSIZEPKT_SHIFT, buffers in KiB. The
/// driver checks no bounds of the MSS.
const IXGBE: Driver = Driver { rx_unit: 1 << 10, ..UNKNOWN };

/// ice/ice_rxtx.c: ICE_TXD_QW1_TX_BUF_SZ_S, 14 bits (ICE_MAX_DATA_PER_TXD); ice_prep_pkts(): ICE_MIN_TSO_MSS,
/// ICE_MAX_TSO_MSS. ice_program_hw_rx_queue(): ICE_RLAN_CTX_DBUF_S, receive buffers in units of 128 bytes.
const ICE: Driver = Driver { mss: Mss { least: 64, most: 9728 }, rx_unit: 128, ..UNKNOWN };

/// The known drivers, each with its name in `rte_eth_dev_info`.
const DRIVERS: &[(&str, Driver)] = &[
    // af_packet/rte_eth_af_packet.c, eth_af_packet_tx(): rte_pktmbuf_read() copies frames of several buffers.
    ("net_af_packet", VIRTUAL),
    // af_xdp/rte_eth_af_xdp.c, af_xdp_tx_zc() and af_xdp_tx_cp(): one buffer (no multi-segment is reported),
    // and a length of 32 bits.
    ("net_af_xdp", VIRTUAL),
    // memif/rte_eth_memif.c, eth_memif_tx(): the driver copies a frame, and uses as many descriptors as the
    // frame needs.
    ("net_memif", VIRTUAL),
    ("net_null", VIRTUAL),
    ("net_ring", VIRTUAL),
    // tap/rte_eth_tap.c, pmd_tx_burst(): the driver drops a TSO frame if the sum of the MSS and the lengths
    // of all headers, including the Ethernet header, is more than the MTU. For full segments this sum is
    // always more than the MTU.
    ("net_tap", Driver { tso: false, ..VIRTUAL }),
    ("net_vhost", COPYING),
    ("net_virtio", VIRTIO),
    ("net_virtio_user", VIRTIO),
    // atlantic/hw_atl/hw_atl_utils.h, struct hw_atl_txd_s: a length of 16 bits for a buffer, and of 18 bits
    // for the frame. The number of buffers of a frame is as reported (ATL_TX_MAX_SEG). atl_rxtx.c,
    // atl_rx_init(): RTE_ALIGN_FLOOR(buff_size, 1024).
    ("net_atlantic", Driver { rx_unit: 1 << 10, ..UNKNOWN }),
    // bnxt/bnxt_txr.c, bnxt_start_xmit(): BNXT_MAX_TSO_SEGS is 32, and one of these segments is a descriptor
    // without data. The driver reports no limit. A frame with more buffers blocks the head of the ring for
    // ever.
    ("net_bnxt", Driver { buffers: 31, tso_buffers: 31, ..UNKNOWN }),
    // e1000/em_rxtx.c, eth_em_xmit_pkts(): cmd_type_len | slen, where slen has 16 bits. The driver has no TSO
    // and no RSS. em_rctl_bsize(): the size of a receive buffer is a power of two. Longer frames arrive in
    // chains.
    ("net_e1000_em", UNKNOWN),
    ("net_e1000_igb", IGB),
    ("net_e1000_igb_vf", IGB),
    // ena/ena_ethdev.c, eth_ena_prep_pkts(): a frame must have fewer buffers than sgl_size. The driver
    // reports sgl_size, which is at most ENA_PKT_MAX_BUFS, 17. ena_defs/ena_eth_io_defs.h:
    // ENA_ETH_IO_TX_DESC_LENGTH_MASK, 16 bits.
    ("net_ena", Driver { buffers: 16, tso_buffers: 16, spare_buffers: 1, ..UNKNOWN }),
    // enic/base/wq_enet_desc.h, wq_enet_desc_enc(): the length is masked with WQ_ENET_LEN_MASK, 14 bits.
    // enic/enic_rxtx.c, enic_prep_pkts(): headers and MSS up to ENIC_TX_MAX_PKT_SIZE, 9208.
    ("net_enic", Driver { mss: Mss { least: 1, most: 9000 }, ..UNKNOWN }),
    // gve/gve_tx.c, gve_tx_burst_ra(): the first descriptor of a frame of several buffers has the length of
    // the whole frame (hlen is pkt_len). For a TSO frame whose first buffer has only headers, a descriptor
    // has no data. gve_rx.c, gve_rx_queue_setup(): receive buffers have 2 or 4 KiB (GVE_RX_BUF_ALIGN_GQI,
    // GVE_RX_MAX_BUF_SIZE_GQI), with GVE_RX_PAD, 2 bytes, in front. A frame is received into one buffer.
    (
        "net_gve",
        Driver {
            buffers: 1,
            tso_buffers: 1,
            tso: false,
            rx_header_bytes: 2,
            rx_unit: 2 << 10,
            rx_buffer_bytes: 4 << 10,
            ..UNKNOWN
        },
    ),
    // i40e/i40e_rxtx.c: I40E_TXD_QW1_TX_BUF_SZ_MASK, 14 bits; i40e_prep_pkts(): I40E_MIN_TSO_MSS,
    // I40E_MAX_TSO_MSS. i40e_rx_queue_config(): I40E_RXQ_CTX_DBUFF_SHIFT, receive buffers of 128 bytes.
    ("net_i40e", Driver { mss: Mss { least: 256, most: 9674 }, rx_unit: 128, ..UNKNOWN }),
    // iavf/iavf_rxtx.h: IAVF_TXD_QW1_TX_BUF_SZ_MASK, 14 bits; IAVF_MIN_TSO_MSS, IAVF_MAX_TSO_MSS.
    // iavf_dev_rx_queue_setup(): IAVF_RXQ_CTX_DBUFF_SHIFT, receive buffers of 128 bytes.
    ("net_iavf", Driver { mss: Mss { least: 256, most: 9668 }, rx_unit: 128, ..UNKNOWN }),
    ("net_ice", ICE),
    ("net_ice_dcf", ICE),
    // igc/igc_txrx.c, eth_igc_prep_pkts(): IGC_TSO_MAX_MSS. igc_rx_init(): IGC_SRRCTL_BSIZEPKT_SHIFT, buffers
    // in KiB.
    ("net_igc", Driver { mss: Mss { least: 1, most: 9216 }, rx_unit: 1 << 10, ..UNKNOWN }),
    // ionic/ionic_rxtx.c, ionic_tx_tso(): the driver uses a descriptor for each TSO segment, but
    // ionic_xmit_pkts_sg() counts one descriptor for each frame. So a burst may overrun the ring. ionic_if.h,
    // struct ionic_txq_desc: a length of 16 bits. The number of buffers of a frame is as reported.
    ("net_ionic", Driver { tso: false, ..UNKNOWN }),
    ("net_ionic_pci", Driver { tso: false, ..UNKNOWN }),
    ("net_ixgbe", IXGBE),
    ("net_ixgbe_vf", IXGBE),
    // vmxnet3/vmxnet3_rxtx.c, vmxnet3_xmit_pkts(): dword[2] = dw2 | data_len. The length has 14 bits
    // (base/vmxnet3_defs.h, Vmxnet3_TxDesc.len). Of a longer buffer, the device sends only as many bytes as
    // the length modulo 16,384, with a right TCP checksum. msscof and Vmxnet3_RxDesc.len have 14 bits as
    // well. This release does not bound the number of buffers of a TSO frame. Linux's driver and later
    // releases have the bound VMXNET3_MAX_TSO_TXD_PER_PKT, 24. With LRO on a tap device that passes TSO
    // frames, the receiving device dropped each TSO frame (QEMU 10). At an MTU of 1500, frames of 1518 bytes
    // with a VLAN tag were lost.
    (
        "net_vmxnet3",
        Driver {
            tso_buffers: 24,
            mss: Mss { least: 1, most: (16 << 10) - 1 },
            joins: false,
            mtu_tag_bytes: 4,
            rx_buffer_bytes: (16 << 10) - 1,
            ..UNKNOWN
        },
    ),
];

/// Returns the properties of the driver `name`, or [`UNKNOWN`] if the driver has no row.
pub(super) fn find(name: &str) -> Driver {
    DRIVERS.iter().find(|(known, _)| *known == name).map_or(UNKNOWN, |(_, driver)| *driver)
}

impl Driver {
    /// Combines the limits of the driver with the limits that the device reports: the maximum number of
    /// buffers of any frame, and of a frame that is sent without TSO. For TSO, only the maximum of any frame
    /// applies. A reported zero means no limit.
    pub(super) fn with_reported(self, limits: &sys::rte_eth_desc_lim) -> Self {
        let at_most = |known: usize, reported: u16| match reported {
            0 => known,
            reported => known.min(usize::from(reported).saturating_sub(self.spare_buffers).max(1)),
        };
        let tso_buffers = at_most(self.tso_buffers, limits.nb_seg_max);
        let buffers = at_most(at_most(self.buffers, limits.nb_seg_max), limits.nb_mtu_seg_max);
        Self { buffers, tso_buffers, ..self }
    }

    /// The MTU to configure so that the device also accepts frames with a VLAN tag. The result is at most the
    /// larger of `most` and `mtu`.
    pub(super) fn mtu_with_tag(&self, mtu: u16, most: u16) -> u16 {
        mtu.saturating_add(self.mtu_tag_bytes).min(most.max(mtu))
    }

    /// Maximum number of bytes of a frame in a receive buffer of this size.
    pub(super) fn rx_room(&self, mbuf_bytes: usize) -> usize {
        mbuf_bytes.min(self.rx_buffer_bytes) / self.rx_unit * self.rx_unit
    }

    /// The limits for TSO, which senders must observe.
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
        assert_eq!(counts("net_bnxt", reported(0, 0)), (31, 31));
        assert_eq!(counts("net_virtio", reported(0, 0)), (MAX_SEGMENTS, MAX_SEGMENTS));
        // The limit for any frame also applies to frames that are sent without TSO.
        assert_eq!(counts("net_of_tomorrow", reported(4, 0)), (4, 4));
    }

    #[test]
    fn ena_takes_fewer_buffers_than_it_reports() {
        let of = |most| find("net_ena").with_reported(&reported(most, most)).buffers;
        assert_eq!([17, 16, 2, 1, 0].map(of), [16, 15, 1, 1, 16]);
    }

    #[test]
    fn frames_with_a_tag_pass_where_the_device_counts_the_tag() {
        let vmxnet3 = find("net_vmxnet3");
        let mtus = [1500, 9000, 16_382, 16_384].map(|mtu| vmxnet3.mtu_with_tag(mtu, 16_384));
        assert_eq!(mtus, [1504, 9004, 16_384, 16_384]);
        assert_eq!(find("net_virtio").mtu_with_tag(1500, 9000), 1500);
    }

    #[test]
    fn a_receive_buffer_takes_as_much_as_the_device_uses_of_it() {
        for (name, mbuf_bytes, room) in [
            ("net_ixgbe", 9088, 8192),
            ("net_ixgbe", 9216, 9216),
            ("net_gve", 3072, 2048),
            ("net_gve", 10_240, 4096),
            ("net_vmxnet3", 20_000, 16_383),
            ("net_virtio", 1601, 1601),
        ] {
            assert_eq!(find(name).rx_room(mbuf_bytes), room, "{name} {mbuf_bytes}");
        }
    }

    #[test]
    fn each_driver_that_is_linked_in_has_a_row() {
        for linked in sys::DRIVERS {
            let has_row = DRIVERS.iter().any(|(name, _)| {
                *name == *linked || name.strip_prefix(linked).is_some_and(|rest| rest.starts_with('_'))
            });
            assert!(has_row, "{linked}: read its limits, and add a row");
        }
    }

    #[test]
    fn no_driver_is_given_what_it_would_send_wrong_or_lose() {
        for (name, buffers, tso) in
            [("net_gve", 1, false), ("net_ionic_pci", 16, false), ("net_tap", 64, false)]
        {
            let driver = find(name).with_reported(&reported(buffers, buffers));
            assert_eq!((driver.buffers, driver.tso), (usize::from(buffers), tso), "{name}");
        }
    }

    #[test]
    fn a_driver_has_one_row() {
        let names: Vec<_> = DRIVERS.iter().map(|(name, _)| *name).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
