//! Checks that memory of a caller is mapped, and that its mapping allows the access (RFC 5042 sections 2.2.2
//! and 7.3).
//!
//! | method | needs | cost |
//! |---|---|---|
//! | `query` asks the kernel about the memory | Linux 6.11 and `/proc` | takes a microsecond for each mapping of the memory |
//! | `populate` populates the pages of the memory | Linux 5.14 | these pages use physical memory from then on |
//! | `list` reads the list of mappings | `/proc` | reads all mappings of the process up to the memory |
//!
//! If the kernel supports `query`, the check uses this method. On an older kernel the check tries `populate`
//! for short memory, and uses `list` for long memory or if `populate` does not succeed. Without `/proc` the
//! check uses `populate` for memory of any length. `query` and `list` also read one byte for each mapping of
//! a file, the last byte to register in this mapping: memory beyond the end of a file is mapped but cannot be
//! accessed. If the mapping changes after the check, the fault guard, if the table uses it, catches a bad
//! access.

use std::ops::Range;

#[cfg(target_os = "linux")]
mod kernel;

use crate::memory::access::RegisterError;

/// The mappings of the process that made the value. A child process uses a value of its own. On systems other
/// than Linux nothing is checked.
#[derive(Default)]
pub(super) struct Mappings {
    #[cfg(target_os = "linux")]
    maps: kernel::Maps,
}

impl Mappings {
    /// Checks that the process may read the `len` bytes at `ptr` and, if `writable`, may write them. `len`
    /// must not be 0.
    ///
    /// RFC 5041 section 8.3.2 (DDP-237), RFC 5040 section 8.1.2 (RDMAP-367): the check is made before an STag
    /// is bound to the buffer.
    ///
    /// # Errors
    /// [`RegisterError::NotMapped`] if a byte is not mapped or is beyond the end of its file.
    /// [`RegisterError::Protected`] if a mapping does not allow the access. [`RegisterError::Unverified`] if
    /// no method works on this system.
    pub(super) fn check(&self, ptr: *const u8, len: usize, writable: bool) -> Result<(), RegisterError> {
        let start = ptr.addr() as u64;
        let end = start.checked_add(len as u64).ok_or(RegisterError::NotMapped { at: start })?;
        // RFC 5042 section 7.3 (SEC-169): memory that the process itself may not access in this way is not
        // registered.
        #[cfg(target_os = "linux")]
        self.maps.check(&(start..end), writable)?;
        #[cfg(not(target_os = "linux"))]
        let _ = (end, writable);
        Ok(())
    }
}

/// One mapping of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    bytes: Range<u64>,
    readable: bool,
    writable: bool,
    /// Whether a file is mapped. The file may be shorter than the mapping.
    of_file: bool,
}

/// Parses a line such as `7f0000000000-7f0000001000 rw-p 00000000 00:2a 4711 /dev/shm/a`. Returns `None` if
/// the line does not have this form.
fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let bytes = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let rights = fields.next()?.as_bytes();
    let of_file = fields.nth(2)? != "0";
    Some(Mapping { bytes, readable: *rights.first()? == b'r', writable: *rights.get(1)? == b'w', of_file })
}

/// Checks that the mappings, which are sorted by address, cover `wanted` without a hole and allow the access.
/// Also checks for each mapping of a file that the file contains the last wanted byte of the mapping.
fn covered(
    wanted: Range<u64>,
    writable: bool,
    mappings: impl Iterator<Item = Result<Mapping, RegisterError>>,
    is_there: impl Fn(u64) -> bool,
) -> Result<(), RegisterError> {
    let mut at = wanted.start;
    for mapping in mappings {
        let Mapping { bytes, readable, writable: may_write, of_file } = mapping?;
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
        let last = at.min(wanted.end) - 1;
        if of_file && !is_there(last) {
            return Err(RegisterError::NotMapped { at: last });
        }
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
        let lines = [
            "1000-2000 r--p 0 00:00 0",
            "2000-3000 rw-p 0 00:00 0 [heap]",
            "4000-5000 ---p 0 00:00 0",
            "6000-8000 rw-s 0 00:01 17 /memfd:a",
        ];
        let mappings = lines.iter().map(|line| Ok(parse(line).unwrap()));
        // The file has one page.
        covered(wanted, writable, mappings, |last| last < 0x7000)
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
        assert_eq!(check(0x6000..0x7000, true), Ok(()));
        assert_eq!(check(0x6000..0x7001, true), Err(RegisterError::NotMapped { at: 0x7000 }));
        assert_eq!(check(0x6000..0x8000, false), Err(RegisterError::NotMapped { at: 0x7fff }));
        assert_eq!(parse("no mapping"), None);
    }
}
