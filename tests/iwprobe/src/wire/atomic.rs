//! Atomic Requests and Responses (RFC 7306 section 5.2).

/// Operation code of Fetch and Add.
pub const FETCH_ADD: u32 = 0;
/// Operation code of Compare and Swap.
pub const CMP_SWAP: u32 = 2;

/// The 52 bytes of an Atomic Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// 28 reserved bits, then the operation code.
    pub operation: u32,
    /// Request Identifier.
    pub id: u32,
    /// Remote STag.
    pub stag: u32,
    /// Remote Tagged Offset.
    pub to: u64,
    /// Add or Swap Data.
    pub data: u64,
    /// Add or Swap Mask.
    pub mask: u64,
    /// Compare Data.
    pub compare: u64,
    /// Compare Mask.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Returns a Fetch and Add.
    pub fn fetch_add(id: u32, stag: u32, to: u64, add: u64, mask: u64) -> Self {
        Self { operation: FETCH_ADD, id, stag, to, data: add, mask, compare: 0, compare_mask: u64::MAX }
    }

    /// Returns a Compare and Swap of the whole word.
    pub fn cmp_swap(id: u32, stag: u32, to: u64, compare: u64, swap: u64) -> Self {
        Self {
            operation: CMP_SWAP,
            id,
            stag,
            to,
            data: swap,
            mask: u64::MAX,
            compare,
            compare_mask: u64::MAX,
        }
    }

    /// Returns the 52 bytes of the Request.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.operation.to_be_bytes().to_vec();
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(self.stag.to_be_bytes());
        for long in [self.to, self.data, self.mask, self.compare, self.compare_mask] {
            bytes.extend(long.to_be_bytes());
        }
        bytes
    }
}

/// Returns the Request Identifier and the original value in an Atomic Response, or `None` if it does not have
/// 12 bytes.
pub fn decode_response(payload: &[u8]) -> Option<(u32, u64)> {
    let bytes: &[u8; 12] = payload.try_into().ok()?;
    let (id, value) = bytes.split_at(4);
    Some((u32::from_be_bytes(id.try_into().ok()?), u64::from_be_bytes(value.try_into().ok()?)))
}
