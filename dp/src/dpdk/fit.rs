//! Checks whether a frame can be sent unchanged, and copies the frame if not.

use super::drivers::Driver;
use crate::{Mbuf, Mempool};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The device can send the frame.
    AsIs,
    /// The device can send the same bytes in fewer or shorter buffers.
    Copy,
    /// The device cannot send the frame at all.
    Never,
}

/// The limits of a device for frames to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxLimits {
    /// Maximum number of bytes of a frame that is sent without TSO.
    pub(super) frame_bytes: usize,
    pub(super) driver: Driver,
}

impl TxLimits {
    /// Checks a frame of `bytes` bytes in `buffers` buffers. TSO divides the frame into segments of `cut_at`
    /// payload bytes (0 means that TSO is not used). `longest` returns the length of the longest buffer, and
    /// is called only if a buffer may be too long.
    pub(super) fn fit(
        &self,
        bytes: usize,
        buffers: usize,
        cut_at: u16,
        longest: impl FnOnce() -> usize,
    ) -> Fit {
        let cuts = cut_at != 0;
        let takes = match cuts {
            true => self.driver.mss.contains(usize::from(cut_at)),
            false => bytes <= self.frame_bytes,
        };
        if bytes == 0 || !takes {
            Fit::Never
        } else if buffers > self.buffers(cuts)
            || bytes > self.driver.buffer_bytes && longest() > self.driver.buffer_bytes
        {
            Fit::Copy
        } else {
            Fit::AsIs
        }
    }

    /// Copies the frame into as few buffers as possible, all from one pool. The pool is `small`, unless
    /// `small` has too few buffers or the copy would have more buffers than the device can send. Returns
    /// `None` if neither pool can be used.
    pub(super) fn copy(&self, frame: &Mbuf, small: &Mempool, large: Option<&Mempool>) -> Option<Mbuf> {
        let most = self.buffers(frame.tx_offload().tso_segment_bytes != 0);
        let room = |pool: &Mempool| pool.data_bytes().min(self.driver.buffer_bytes);
        [Some(small), large]
            .into_iter()
            .flatten()
            .filter(|pool| frame.len().div_ceil(room(pool)) <= most)
            .find_map(|pool| frame.copy_to_buffers(pool, room(pool)))
    }

    fn buffers(&self, cuts: bool) -> usize {
        if cuts { self.driver.tso_buffers } else { self.driver.buffers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dpdk::drivers;
    use crate::mbuf::TxOffload;

    fn limits(driver: &str) -> TxLimits {
        let reported = dpdk_sys::rte_eth_desc_lim {
            nb_max: 0,
            nb_min: 0,
            nb_align: 0,
            nb_seg_max: 0,
            nb_mtu_seg_max: 16,
        };
        TxLimits { frame_bytes: 1518, driver: drivers::find(driver).with_reported(&reported) }
    }

    /// Makes a frame in `buffers` buffers of `bytes` bytes each. TSO would cut the frame at `cut_at`.
    fn frame(buffers: usize, bytes: usize, cut_at: u16) -> Mbuf {
        let pool = Mempool::heap("frame", buffers, bytes);
        let mut frame: Option<Mbuf> = None;
        for nr in 0..buffers {
            let mut buffer = pool.alloc().unwrap();
            let room = buffer.append(bytes).unwrap();
            room.iter_mut().enumerate().for_each(|(at, byte)| *byte = (nr * bytes + at) as u8);
            match &mut frame {
                Some(frame) => frame.chain(buffer).unwrap(),
                None => frame = Some(buffer),
            }
        }
        let mut frame = frame.unwrap();
        frame.set_tx_offload(TxOffload {
            tcp_checksum: true,
            tso_segment_bytes: cut_at,
            ..TxOffload::default()
        });
        frame
    }

    fn longest(frame: &Mbuf) -> usize {
        frame.segments().map(<[u8]>::len).max().unwrap()
    }

    fn fit(limits: &TxLimits, frame: &Mbuf) -> Fit {
        let cut_at = frame.tx_offload().tso_segment_bytes;
        limits.fit(frame.len(), frame.segment_count(), cut_at, || longest(frame))
    }

    #[test]
    fn a_buffer_too_long_for_the_descriptor_is_not_given_to_the_device() {
        let vmxnet3 = limits("net_vmxnet3");
        assert_eq!(fit(&vmxnet3, &frame(2, 16_383, 1448)), Fit::AsIs);
        assert_eq!(fit(&vmxnet3, &frame(1, 16_384, 1448)), Fit::Copy);
        assert_eq!(fit(&vmxnet3, &frame(1, 32_000, 1448)), Fit::Copy);
        assert_eq!(fit(&limits("net_virtio"), &frame(1, 32_000, 1448)), Fit::AsIs);
    }

    #[test]
    fn too_many_buffers_are_made_fewer_whether_the_frame_is_cut_or_not() {
        let vmxnet3 = limits("net_vmxnet3");
        assert_eq!(fit(&vmxnet3, &frame(16, 80, 0)), Fit::AsIs);
        assert_eq!(fit(&vmxnet3, &frame(17, 80, 0)), Fit::Copy);
        assert_eq!(fit(&vmxnet3, &frame(24, 1448, 1448)), Fit::AsIs);
        assert_eq!(fit(&vmxnet3, &frame(25, 1448, 1448)), Fit::Copy);
    }

    #[test]
    fn what_is_empty_too_long_or_cut_where_it_cannot_be_is_not_sent() {
        let i40e = limits("net_i40e");
        assert_eq!(i40e.fit(0, 1, 0, || 0), Fit::Never);
        assert_eq!(fit(&i40e, &frame(1, 1519, 0)), Fit::Never);
        assert_eq!(fit(&i40e, &frame(2, 1000, 255)), Fit::Never);
        assert_eq!(fit(&i40e, &frame(2, 1000, 256)), Fit::AsIs);
    }

    #[test]
    fn a_copy_has_the_same_bytes_and_fits() {
        let (small, large) = (Mempool::heap("small", 64, 2048), Mempool::heap("large", 8, 32_768));
        let vmxnet3 = limits("net_vmxnet3");
        for (buffers, bytes, cut_at, expected) in [(17, 80, 0, 1), (44, 1448, 1448, 4), (1, 40_000, 1448, 20)]
        {
            let frame = frame(buffers, bytes, cut_at);
            let copy = vmxnet3.copy(&frame, &small, Some(&large)).unwrap();
            let flat = |frame: &Mbuf| frame.segments().flatten().copied().collect::<Vec<_>>();
            assert!(flat(&copy) == flat(&frame));
            assert_eq!((copy.tx_offload(), copy.segment_count()), (frame.tx_offload(), expected));
            assert_eq!(fit(&vmxnet3, &copy), Fit::AsIs);
        }
    }

    #[test]
    fn what_no_pool_can_hold_in_so_few_buffers_is_not_copied() {
        let (small, empty) = (Mempool::heap("small", 64, 2048), Mempool::heap("large", 1, 32_768));
        let vmxnet3 = limits("net_vmxnet3");
        let taken = empty.alloc();
        let frame = frame(44, 1448, 1448);
        assert!(vmxnet3.copy(&frame, &small, None).is_none());
        assert!(vmxnet3.copy(&frame, &small, Some(&empty)).is_none());
        assert_eq!((small.available(), taken.is_some()), (64, true));
    }
}
