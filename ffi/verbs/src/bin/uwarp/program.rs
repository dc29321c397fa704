//! Whether a program can load the library: what its file says.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What is known of a program's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The dynamic linker starts the program.
    Dynamic,
    /// The dynamic linker starts the program, which is written in Go.
    DynamicGo,
    Static,
    /// The program is of another architecture.
    Foreign,
    /// The file begins with `#!`, or is no program.
    Script,
}

/// The most bytes of a file that are read: the headers.
const HEADERS: u64 = 1 << 16;

/// Finds the file of a program, as the shell does.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let can_run = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(can_run);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(can_run)
}

/// Whether the program has more privileges than this user, so that the dynamic linker ignores `LD_PRELOAD`.
pub(crate) fn is_privileged(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return false };
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let of_mode = found.mode() & 0o4000 != 0 && found.uid() != user
        || found.mode() & 0o2010 == 0o2010 && found.gid() != group;
    let has_capabilities = rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok();
    of_mode || has_capabilities && user != 0
}

pub(crate) fn kind(path: &Path) -> std::io::Result<Kind> {
    let mut bytes = Vec::new();
    File::open(path)?.take(HEADERS).read_to_end(&mut bytes)?;
    Ok(kind_of(&bytes))
}

/// The kind of a program with these headers (`elf(5)`).
fn kind_of(file: &[u8]) -> Kind {
    const MACHINE: u64 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    const PT_INTERP: u64 = 3;
    const PT_NOTE: u64 = 4;
    if !file.starts_with(b"\x7fELF") {
        return Kind::Script;
    }
    // A program of 64 bits in little-endian order.
    if file.get(4..6) != Some(&[2, 1]) || number(file, 18, 2) != Some(MACHINE) {
        return Kind::Foreign;
    }
    let (mut has_interpreter, mut is_go) = (false, false);
    let table = number(file, 32, 8).unwrap_or(0);
    let (size, count) = (number(file, 54, 2).unwrap_or(0), number(file, 56, 2).unwrap_or(0));
    for index in 0..count {
        let Some(at) = table.checked_add(index * size) else { break };
        match number(file, at, 4) {
            Some(PT_INTERP) => has_interpreter = true,
            // The name of a note is behind three numbers of four bytes.
            Some(PT_NOTE) => {
                let note = number(file, at + 8, 8).and_then(|note| usize::try_from(note).ok()).unwrap_or(0);
                is_go |= note
                    .checked_add(12)
                    .and_then(|name| file.get(name..))
                    .is_some_and(|name| name.starts_with(b"Go\0"));
            }
            _ => {}
        }
    }
    match (has_interpreter, is_go) {
        (true, true) => Kind::DynamicGo,
        (true, false) => Kind::Dynamic,
        (false, _) => Kind::Static,
    }
}

/// A number of `size` bytes, in little-endian order.
fn number(file: &[u8], at: u64, size: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = file.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of a program whose segments have these types.
    fn elf(segments: &[u32]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        file[32] = 64;
        file[54] = 56;
        file[56] = segments.len() as u8;
        for kind in segments {
            let mut segment = vec![0; 56];
            segment[..4].copy_from_slice(&kind.to_le_bytes());
            // The note is behind the segments.
            segment[8..10].copy_from_slice(&((64 + segments.len() * 56) as u16).to_le_bytes());
            file.extend(segment);
        }
        file
    }

    #[test]
    fn the_headers_say_how_a_program_is_started() {
        assert_eq!(kind_of(&elf(&[6, 3, 1])), Kind::Dynamic);
        assert_eq!(kind_of(&elf(&[1, 1])), Kind::Static);
        let note = [&[0; 12][..], b"Go\0\0"].concat();
        assert_eq!(kind_of(&[elf(&[3, 4]), note.clone()].concat()), Kind::DynamicGo);
        assert_eq!(kind_of(&[elf(&[4]), note].concat()), Kind::Static);
        assert_eq!(kind_of(b"#!/bin/sh\n"), Kind::Script);
        assert_eq!(kind_of(b"\x7fELF\x01\x01"), Kind::Foreign);
        let mut other = elf(&[3]);
        other[18] = 3;
        assert_eq!(kind_of(&other), Kind::Foreign);
        let whole = elf(&[3, 4]);
        for end in 0..whole.len() {
            kind_of(&whole[..end]);
        }
        let mut hostile = whole;
        hostile[32..40].copy_from_slice(&[0xff; 8]);
        hostile[54..58].copy_from_slice(&[0xff; 4]);
        kind_of(&hostile);
    }

    #[test]
    fn programs_are_found_by_the_search_path_or_their_path() {
        let shell = find("sh").unwrap();
        assert_eq!(find(shell.to_str().unwrap()), Some(shell.clone()));
        assert!(find("no_such_program").is_none() && find("/etc/passwd").is_none());
        assert!(!is_privileged(&shell));
    }
}
