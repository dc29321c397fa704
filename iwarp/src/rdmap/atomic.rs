//! Atomic operations (RFC 7306 section 5): their effect on the 64-bit word, and the headers of Atomic Request
//! and Atomic Response (sections 5.2.1 and 5.2.2). Each header is the whole DDP payload of its message. "The
//! draft" is draft-ietf-storm-rdmap-ext, the draft of RFC 7306, which also had a Swap.
//!
//! This module does not access the word in memory. [`EpochGuard::check_atomic`](crate::memory::EpochGuard)
//! gives access to the word.

use crate::memory::Stag;
use crate::rdmap::error::TerminateError;
use crate::rdmap::opcode::Extensions;

/// The operation of an Atomic Request. All values are numbers, independent of the byte order of either
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Adds `add` to the word, field by field (RFC 7306 section 5.1.1).
    FetchAdd {
        /// The addend.
        add: u64,
        /// Each set bit marks the highest bit of a field, whose carry is dropped. 0 means one field of 64
        /// bits.
        mask: u64,
    },
    /// Compares the word with `compare`, in the bits that are set in `compare_mask`. If these bits are equal,
    /// replaces the bits of the word that are set in `swap_mask` by the bits of `swap` (RFC 7306 section
    /// 5.1.2).
    CmpSwap {
        /// The value to compare with.
        compare: u64,
        /// The bits to compare.
        compare_mask: u64,
        /// The new value.
        swap: u64,
        /// The bits to replace.
        swap_mask: u64,
    },
    /// Replaces the word unconditionally. The draft of RFC 7306 had this operation; the RFC does not have it.
    Swap {
        /// The new value.
        swap: u64,
    },
}

/// The bits of the AOpCode in the first word of a request. The 28 higher bits are reserved: they are sent as
/// 0 and ignored on receipt.
const AOPCODE_MASK: u32 = 0x0F;

impl AtomicOp {
    /// AOpCode of [`AtomicOp::FetchAdd`].
    pub const FETCH_ADD: u8 = 0x0;
    /// AOpCode of [`AtomicOp::Swap`]: the value of the draft, which RFC 7306 section 10.1 reserves.
    pub const SWAP: u8 = 0x1;
    /// AOpCode of [`AtomicOp::CmpSwap`].
    pub const CMP_SWAP: u8 = 0x2;

    /// Returns the AOpCode of the operation (RFC 7306 figure 5).
    pub const fn aopcode(&self) -> u8 {
        match self {
            Self::FetchAdd { .. } => Self::FETCH_ADD,
            Self::Swap { .. } => Self::SWAP,
            Self::CmpSwap { .. } => Self::CMP_SWAP,
        }
    }

    /// Whether a stream with these extensions executes the operation. [`Extensions::ATOMICS`] enables
    /// [`AtomicOp::FetchAdd`] and [`AtomicOp::CmpSwap`]; [`AtomicOp::Swap`] also needs [`Extensions::SWAP`].
    pub const fn is_understood(&self, extensions: Extensions) -> bool {
        let needed = match self {
            Self::FetchAdd { .. } | Self::CmpSwap { .. } => Extensions::ATOMICS,
            Self::Swap { .. } => Extensions::ATOMICS.union(Extensions::SWAP),
        };
        extensions.contains(needed)
    }

    /// Returns the new value of a word whose old value is `original`.
    pub const fn apply(&self, original: u64) -> u64 {
        match *self {
            Self::FetchAdd { add, mask } => {
                // The highest bit of each field is cleared in both numbers, so a carry from the lower bits
                // stops at this bit. The highest bits are then added without a carry, which is an XOR.
                let below = (original & !mask).wrapping_add(add & !mask);
                below ^ ((original ^ add) & mask)
            }
            Self::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                // RFC 7306 section 5.1.2, section 5.1.3 of the draft (EXT-055): if the compared bits are
                // equal, the bits under the swap mask take the swap data; otherwise the word keeps its value.
                if (original ^ compare) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
            Self::Swap { swap } => swap,
        }
    }
}

/// The fields of an Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// The identifier that the requester has chosen. The response contains the same identifier.
    pub id: u32,
    /// The STag of the buffer at the responder.
    pub stag: Stag,
    /// Tagged offset of the eight bytes.
    pub to: u64,
    /// The operation on the eight bytes.
    pub op: AtomicOp,
}

impl AtomicRequest {
    /// Number of bytes on the wire.
    pub const LEN: usize = 52;

    /// Parses the payload of a delivered Atomic Request. Ignores the fields that the request's operation does
    /// not use.
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] if the payload does not have 52 bytes (the RFCs name no code
    /// for this error), [`TerminateError::UnexpectedOpcode`] if the AOpCode is unknown.
    pub fn parse(payload: &[u8]) -> Result<Self, TerminateError> {
        let bytes: &[u8; Self::LEN] = payload.try_into().map_err(|_| TerminateError::OperationUnspecified)?;
        let u32_at = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (data, mask) = (u64_at(20), u64_at(28));
        // RFC 7306 sections 5 and 5.2.1 (EXT-171, EXT-187): FetchAdd and CmpSwap are both implemented.
        // Section 5.2.1 (EXT-077, EXT-079, EXT-081): FetchAdd and Swap ignore the compare fields, and Swap
        // ignores the mask of its data. Section 5.2.1 (EXT-190): an AOpCode other than those of FetchAdd,
        // Swap and CmpSwap is an error.
        let op = match (u32_at(0) & AOPCODE_MASK) as u8 {
            AtomicOp::FETCH_ADD => AtomicOp::FetchAdd { add: data, mask },
            AtomicOp::SWAP => AtomicOp::Swap { swap: data },
            AtomicOp::CMP_SWAP => AtomicOp::CmpSwap {
                compare: u64_at(36),
                compare_mask: u64_at(44),
                swap: data,
                swap_mask: mask,
            },
            _ => return Err(TerminateError::UnexpectedOpcode),
        };
        Ok(Self { id: u32_at(4), stag: Stag(u32_at(8)), to: u64_at(12), op })
    }

    /// Returns the bytes on the wire. In unused masks all bits are set, and unused data is 0.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let Self { id, stag, to, op } = *self;
        // RFC 7306 section 5.2.1 (EXT-076, EXT-078, EXT-080): Swap has a data mask of all ones; FetchAdd and
        // Swap have compare data of 0 and a compare mask of all ones.
        let (data, mask, compare, compare_mask) = match op {
            AtomicOp::FetchAdd { add, mask } => (add, mask, 0, u64::MAX),
            AtomicOp::Swap { swap } => (swap, u64::MAX, 0, u64::MAX),
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask } => {
                (swap, swap_mask, compare, compare_mask)
            }
        };
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&u32::from(op.aopcode()).to_be_bytes());
        bytes[4..8].copy_from_slice(&id.to_be_bytes());
        bytes[8..12].copy_from_slice(&stag.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&to.to_be_bytes());
        bytes[20..28].copy_from_slice(&data.to_be_bytes());
        bytes[28..36].copy_from_slice(&mask.to_be_bytes());
        bytes[36..44].copy_from_slice(&compare.to_be_bytes());
        bytes[44..52].copy_from_slice(&compare_mask.to_be_bytes());
        bytes
    }
}

/// The fields of an Atomic Response (RFC 7306 section 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// The identifier of the request.
    pub id: u32,
    /// The value of the word before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Number of bytes on the wire (figure 6; the "32 bytes" in section 4 are an error of the RFC).
    pub const LEN: usize = 12;

    /// Parses the payload of a delivered Atomic Response.
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] if the payload does not have 12 bytes (the RFCs name no code
    /// for this error).
    pub fn parse(payload: &[u8]) -> Result<Self, TerminateError> {
        let bytes: &[u8; Self::LEN] = payload.try_into().map_err(|_| TerminateError::OperationUnspecified)?;
        Ok(Self {
            id: u32::from_be_bytes(std::array::from_fn(|i| bytes[i])),
            original: u64::from_be_bytes(std::array::from_fn(|i| bytes[4 + i])),
        })
    }

    /// Returns the payload on the wire: identifier and original value, both big-endian.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.id.to_be_bytes());
        bytes[4..].copy_from_slice(&self.original.to_be_bytes());
        bytes
    }
}
