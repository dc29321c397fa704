//! Terminate codes by name (RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044 section 8).

use crate::wire::Code;

pub(super) const PROTECTION_STAG: Code = Code(0, 1, 0x00);
pub(super) const PROTECTION_BOUNDS: Code = Code(0, 1, 0x01);
pub(super) const PROTECTION_ACCESS: Code = Code(0, 1, 0x02);
pub(super) const PROTECTION_STREAM: Code = Code(0, 1, 0x03);
pub(super) const PROTECTION_WRAP: Code = Code(0, 1, 0x04);
pub(super) const PROTECTION_INVALIDATE: Code = Code(0, 1, 0x09);
pub(super) const PROTECTION_UNSPECIFIED: Code = Code(0, 1, 0xff);
pub(super) const OPERATION_VERSION: Code = Code(0, 2, 0x05);
pub(super) const OPERATION_OPCODE: Code = Code(0, 2, 0x06);
pub(super) const OPERATION_STREAM: Code = Code(0, 2, 0x07);
pub(super) const OPERATION_INVALIDATE: Code = Code(0, 2, 0x09);
pub(super) const OPERATION_UNSPECIFIED: Code = Code(0, 2, 0xff);
pub(super) const TAGGED_STAG: Code = Code(1, 1, 0x00);
pub(super) const TAGGED_BOUNDS: Code = Code(1, 1, 0x01);
pub(super) const TAGGED_STREAM: Code = Code(1, 1, 0x02);
pub(super) const TAGGED_WRAP: Code = Code(1, 1, 0x03);
pub(super) const TAGGED_VERSION: Code = Code(1, 1, 0x04);
pub(super) const UNTAGGED_QN: Code = Code(1, 2, 0x01);
pub(super) const UNTAGGED_NO_BUFFER: Code = Code(1, 2, 0x02);
pub(super) const UNTAGGED_MSN: Code = Code(1, 2, 0x03);
pub(super) const UNTAGGED_MO: Code = Code(1, 2, 0x04);
pub(super) const UNTAGGED_TOO_LONG: Code = Code(1, 2, 0x05);
pub(super) const UNTAGGED_VERSION: Code = Code(1, 2, 0x06);
pub(super) const LLP_CRC: Code = Code(2, 0, 0x02);
pub(super) const LLP_MARKER: Code = Code(2, 0, 0x03);

/// Codes allowed as the answer to an opcode that is unknown, or that is not allowed in its message.
pub(super) const ANY_OPERATION: &[Code] = &[OPERATION_OPCODE, OPERATION_UNSPECIFIED, OPERATION_STREAM];
/// Codes allowed as the answer to an MSN without a buffer: RFC 5041 does not say which code applies to which
/// MSN.
pub(super) const ANY_MSN: &[Code] = &[UNTAGGED_NO_BUFFER, UNTAGGED_MSN];
