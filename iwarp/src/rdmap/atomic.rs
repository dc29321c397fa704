//! Atomic operations (RFC 7306 section 5): what is done to the 64-bit word, and the headers of Atomic Request
//! and Atomic Response (sections 5.2.1 and 5.2.2), each the whole DDP payload of its message.
//!
//! What it is not: the access to the word, which is `crate::memory`'s
//! ([`EpochGuard::check_atomic`](crate::memory::EpochGuard)).

use crate::memory::Stag;
use crate::rdmap::control::Extensions;
use crate::rdmap::error::TerminateError;

/// What an Atomic Request asks for. All values are numbers, whatever the byte order of either machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Adds, field by field (RFC 7306 section 5.1.1).
    FetchAdd {
        /// What is added.
        add: u64,
        /// A set bit is the highest of a field: its carry is dropped. 0: one field of 64 bits.
        mask: u64,
    },
    /// Replaces where the word compares equal (RFC 7306 section 5.1.2).
    CmpSwap {
        /// What the word is compared with.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// What replaces it.
        swap: u64,
        /// The bits that are replaced.
        swap_mask: u64,
    },
    /// Replaces unconditionally: the draft's, without a place in RFC 7306.
    Swap {
        /// What replaces it.
        swap: u64,
    },
}

/// Where the AOpCode is in the first word of a request; the 28 bits above are reserved, sent as 0 and never
/// looked at.
const AOPCODE_MASK: u32 = 0x0F;

impl AtomicOp {
    /// AOpCode of [`AtomicOp::FetchAdd`].
    pub const FETCH_ADD: u8 = 0x0;
    /// AOpCode of [`AtomicOp::Swap`]: the draft's, reserved in RFC 7306 section 10.1.
    pub const SWAP: u8 = 0x1;
    /// AOpCode of [`AtomicOp::CmpSwap`].
    pub const CMP_SWAP: u8 = 0x2;

    /// Its AOpCode (RFC 7306 figure 5).
    pub const fn aopcode(&self) -> u8 {
        match self {
            Self::FetchAdd { .. } => Self::FETCH_ADD,
            Self::Swap { .. } => Self::SWAP,
            Self::CmpSwap { .. } => Self::CMP_SWAP,
        }
    }

    /// Whether a stream with these extensions carries it out: [`AtomicOp::FetchAdd`] and
    /// [`AtomicOp::CmpSwap`] come together, [`AtomicOp::Swap`] has a switch of its own.
    pub const fn is_understood(&self, extensions: Extensions) -> bool {
        let needed = match self {
            Self::FetchAdd { .. } | Self::CmpSwap { .. } => Extensions::ATOMICS,
            Self::Swap { .. } => Extensions::ATOMICS.union(Extensions::SWAP),
        };
        extensions.contains(needed)
    }

    /// What the word holds afterwards, when it held `original` before.
    pub const fn apply(&self, original: u64) -> u64 {
        match *self {
            Self::FetchAdd { add, mask } => {
                // Below the highest bits of the fields carries stop at those bits, which are 0 in both
                // numbers; the highest bits themselves are added without a carry, so by XOR.
                let below = (original & !mask).wrapping_add(add & !mask);
                below ^ ((original ^ add) & mask)
            }
            Self::CmpSwap { compare, compare_mask, swap, swap_mask } => {
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

/// An Atomic Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// The requester's name for it; the response has it again.
    pub id: u32,
    /// The responder's buffer.
    pub stag: Stag,
    /// Where in it: eight bytes from here on.
    pub to: u64,
    /// What to do with them.
    pub op: AtomicOp,
}

impl AtomicRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 52;

    /// Parses the payload of a delivered Atomic Request. Fields that its operation does not use are not
    /// looked at.
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] when there are not 52 bytes (the documents name no code),
    /// [`TerminateError::UnexpectedOpcode`] for an AOpCode that is none.
    pub fn parse(payload: &[u8]) -> Result<Self, TerminateError> {
        let bytes: &[u8; Self::LEN] = payload.try_into().map_err(|_| TerminateError::OperationUnspecified)?;
        let u32_at = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (data, mask) = (u64_at(20), u64_at(28));
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

    /// The bytes on the wire. Masks that the operation does not use are all ones, its unused data is 0.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let Self { id, stag, to, op } = *self;
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

/// An Atomic Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// That of the request.
    pub id: u32,
    /// What the word held before.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes on the wire (figure 6; the "32 bytes" of section 4 are a slip).
    pub const LEN: usize = 12;

    /// Parses the payload of a delivered Atomic Response.
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] when there are not 12 bytes (the documents name no code).
    pub fn parse(payload: &[u8]) -> Result<Self, TerminateError> {
        let bytes: &[u8; Self::LEN] = payload.try_into().map_err(|_| TerminateError::OperationUnspecified)?;
        Ok(Self {
            id: u32::from_be_bytes(std::array::from_fn(|i| bytes[i])),
            original: u64::from_be_bytes(std::array::from_fn(|i| bytes[4 + i])),
        })
    }

    /// The bytes on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.id.to_be_bytes());
        bytes[4..].copy_from_slice(&self.original.to_be_bytes());
        bytes
    }
}
