//! The keys of a UD message: the P_Key names its partition, and the Q_Key is known to all queue pairs that
//! may send to a queue pair.

/// The P_Key of the default partition with full membership, the only entry of this side's P_Key table.
pub const DEFAULT_PKEY: u16 = 0xFFFF;

/// The Q_Key of queue pair 1.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// The bit of a P_Key that is set for full members of the partition.
const FULL_MEMBER: u16 = 0x8000;

/// The bit of a Q_Key that makes a send request use the Q_Key of its queue pair.
const CONTROLLED_QKEY: u32 = 0x8000_0000;

/// Returns the Q_Key that a message carries: `request`, the Q_Key of the send request, unless its most
/// significant bit is set. In this case the message carries `own`, the Q_Key of the sending queue pair (IBA
/// volume 1, section 10.2.5). So only a privileged program can send with such a Q_Key.
pub const fn effective_qkey(request: u32, own: u32) -> u32 {
    if request & CONTROLLED_QKEY != 0 { own } else { request }
}

/// Whether a message with this P_Key may be received. This side is a full member of the default partition,
/// so it may receive from full and limited members (IBA volume 1, section 10.9.3).
pub(super) const fn is_own_partition(pkey: u16) -> bool {
    pkey | FULL_MEMBER == DEFAULT_PKEY
}

#[cfg(test)]
mod tests {
    use super::{GSI_QKEY, effective_qkey, is_own_partition};

    #[test]
    fn a_controlled_qkey_of_a_request_means_the_queue_pairs_own() {
        let own = 0x1234_5678;
        for (request, carried) in [
            (0x1ee7_a330, 0x1ee7_a330),
            (0x7fff_ffff, 0x7fff_ffff),
            (0x8000_0000, own),
            (GSI_QKEY, own),
            (0xffff_ffff, own),
            (0, 0),
        ] {
            assert_eq!(effective_qkey(request, own), carried);
        }
        // Queue pair 1 has a controlled Q_Key, which it uses for its own messages.
        assert_eq!(effective_qkey(GSI_QKEY, GSI_QKEY), GSI_QKEY);
    }

    #[test]
    fn full_and_limited_members_of_the_default_partition_are_heard() {
        let heard: Vec<u16> = (0..=u16::MAX).filter(|pkey| is_own_partition(*pkey)).collect();
        assert_eq!(heard, [0x7fff, 0xffff]);
    }
}
