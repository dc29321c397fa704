//! Checks that memory of a caller is mapped, and that its mapping allows the access (RFC 5042 sections 2.2.2
//! and 7.3).
//!
//! The kernel's list of mappings is read, which touches no page and includes the access rights. If the
//! mapping changes later, the fault guard handles it.

use std::ops::Range;

use crate::memory::access::RegisterError;

/// Checks that `len` bytes (not 0) at `ptr` may be read, and written if `writable`.
///
/// RFC 5041 section 8.3.2 (DDP-237), RFC 5040 section 8.1.2 (RDMAP-367): this is before an STag is bound to
/// the buffer.
///
/// # Errors
/// [`RegisterError::NotMapped`], [`RegisterError::Protected`], [`RegisterError::Unverified`].
#[cfg(target_os = "linux")]
pub(super) fn check(ptr: *const u8, len: usize, writable: bool) -> Result<(), RegisterError> {
    use std::io::{BufRead, BufReader};

    let start = ptr.addr() as u64;
    let end = start.checked_add(len as u64).ok_or(RegisterError::NotMapped { at: start })?;
    // RFC 5042 section 7.3 (SEC-169): memory that the process itself may not access in this way is not
    // registered.
    let maps = std::fs::File::open("/proc/self/maps").map_err(|_| RegisterError::Unverified)?;
    let lines = BufReader::new(maps).lines().map(|line| line.map_err(|_| RegisterError::Unverified));
    covered(start..end, writable, lines.map(|line| parse(&line?).ok_or(RegisterError::Unverified)))
}

/// On other systems nothing is checked.
#[cfg(not(target_os = "linux"))]
pub(super) fn check(_ptr: *const u8, _len: usize, _writable: bool) -> Result<(), RegisterError> {
    Ok(())
}

/// One mapping of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    bytes: Range<u64>,
    readable: bool,
    writable: bool,
}

/// Parses a line such as `7f0000000000-7f0000001000 rw-p ...`.
fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let bytes = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let rights = fields.next()?.as_bytes();
    Some(Mapping { bytes, readable: *rights.first()? == b'r', writable: *rights.get(1)? == b'w' })
}

/// Checks that the mappings, sorted by address, cover `wanted` without a hole and with the rights.
fn covered(
    wanted: Range<u64>,
    writable: bool,
    mappings: impl Iterator<Item = Result<Mapping, RegisterError>>,
) -> Result<(), RegisterError> {
    let mut at = wanted.start;
    for mapping in mappings {
        let Mapping { bytes, readable, writable: may_write } = mapping?;
        if bytes.end <= at {
            continue;
        }
        if bytes.start > at {
            break;
        }
        if !readable || (writable && !may_write) {
            return Err(RegisterError::Protected { at });
        }
        at = bytes.end;
        if at >= wanted.end {
            return Ok(());
        }
    }
    Err(RegisterError::NotMapped { at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wanted: Range<u64>, writable: bool) -> Result<(), RegisterError> {
        let lines =
            ["1000-2000 r--p 0 00:00 0", "2000-3000 rw-p 0 00:00 0 [heap]", "4000-5000 ---p 0 00:00 0"];
        covered(wanted, writable, lines.iter().map(|line| Ok(parse(line).unwrap())))
    }

    #[test]
    fn mappings_cover_a_range_or_not() {
        assert_eq!(check(0x1000..0x3000, false), Ok(()));
        assert_eq!(check(0x1fff..0x2001, false), Ok(()));
        assert_eq!(check(0x2000..0x3000, true), Ok(()));
        assert_eq!(check(0x1fff..0x2001, true), Err(RegisterError::Protected { at: 0x1fff }));
        assert_eq!(check(0xfff..0x1001, false), Err(RegisterError::NotMapped { at: 0xfff }));
        assert_eq!(check(0x2fff..0x3001, false), Err(RegisterError::NotMapped { at: 0x3000 }));
        assert_eq!(check(0x4000..0x4001, false), Err(RegisterError::Protected { at: 0x4000 }));
        assert_eq!(check(0x5000..0x5001, false), Err(RegisterError::NotMapped { at: 0x5000 }));
        assert_eq!(parse("no mapping"), None);
    }
}
