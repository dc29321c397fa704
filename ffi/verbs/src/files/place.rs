//! The paths of this library's files, and how a path of the program leads to one of them.
//!
//! The files are below four places. The *tree* is a real folder with a copy of the places (`tree.rs`): the
//! file `/sys/class/infiniband/uwarp0` is `TREE/sys/class/infiniband/uwarp0`. So a path is changed by a
//! prefix, and the kernel does the rest. A path with `..` may leave the places. Such a path is resolved here,
//! and may lead to a file that is not ours.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::ffi::abi::{Errno, Outcome};
use crate::ibverbs::device::DEV_NAME;

/// Maximum number of symbolic links in a path. The kernel has the same limit.
const MAX_LINKS: usize = 40;

/// A folder of which this library has all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The devices, by the names that programs know.
    Class,
    /// The devices, by the names of their nodes.
    Verbs,
    /// The folders of the devices, to which the entries of the other two lead.
    Devices,
    /// The nodes of the devices.
    Nodes,
}

impl Place {
    pub(super) const ALL: [Self; 4] = [Self::Class, Self::Verbs, Self::Devices, Self::Nodes];

    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Class => "/sys/class/infiniband",
            Self::Verbs => "/sys/class/infiniband_verbs",
            Self::Devices => "/sys/devices/virtual/uwarp",
            Self::Nodes => "/dev/infiniband",
        }
    }
}

/// A node of a character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Uverbs,
    RdmaCm,
}

impl Node {
    pub(super) const ALL: [Self; 2] = [Self::Uverbs, Self::RdmaCm];
    /// The file that is opened in place of a node. It takes every write, and its reads end at once.
    pub(super) const STAND_IN: &'static CStr = c"/dev/null";

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Uverbs => DEV_NAME,
            Self::RdmaCm => "rdma_cm",
        }
    }

    /// The major and the minor number. The kernel has fixed numbers for `uverbs0`, and chooses the minor
    /// number of `rdma_cm`.
    pub(super) const fn numbers(self) -> (u32, u32) {
        match self {
            Self::Uverbs => (231, 192),
            Self::RdmaCm => (10, 58),
        }
    }
}

/// A path of the program that begins with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ours<'a> {
    place: Place,
    /// The rest of the path: empty, or a text that begins with a slash.
    rest: &'a [u8],
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// To this path in the tree.
    InTree(CString),
    Node(Node),
    /// To this path, which is not ours.
    Elsewhere(CString),
}

/// The path as one of ours, or `None`. For most paths of other files, the check ends after one or two bytes.
///
/// # Safety
/// `path` is NULL or a C string, which is not changed while the result is used.
#[inline]
pub(super) unsafe fn ours<'a>(path: *const c_char) -> Option<Ours<'a>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a C string has at least its terminating zero.
    if unsafe { *path } as u8 != b'/' {
        return None;
    }
    // SAFETY: the first byte is not the terminating zero, so there is a second byte.
    let second = unsafe { path.add(1) };
    // SAFETY: `second` is the address of this byte.
    match unsafe { *second } as u8 {
        // SAFETY: the caller passes a C string, which is not changed while the result is used.
        b's' | b'd' | b'/' | b'.' => Ours::of(unsafe { CStr::from_ptr(path) }.to_bytes()),
        _ => None,
    }
}

impl<'a> Ours<'a> {
    /// The path as one of ours, or `None`.
    pub(super) fn of(path: &'a [u8]) -> Option<Self> {
        if let Some(rest) = after(path, b"dev") {
            return Some(Self { place: Place::Nodes, rest: after(rest, b"infiniband")? });
        }
        let rest = after(path, b"sys")?;
        if let Some(rest) = after(rest, b"class") {
            if let Some(rest) = after(rest, b"infiniband") {
                return Some(Self { place: Place::Class, rest });
            }
            return Some(Self { place: Place::Verbs, rest: after(rest, b"infiniband_verbs")? });
        }
        let rest = after(after(rest, b"devices")?, b"virtual")?;
        Some(Self { place: Place::Devices, rest: after(rest, b"uwarp")? })
    }

    /// Finds the file in the tree. The last part of the path is not resolved if it is a symbolic link.
    ///
    /// # Errors
    /// Returns the error number that the kernel has for such a path.
    pub(super) fn find(&self, tree: &Path) -> Outcome<Found> {
        let has_parent = self.rest.split(|byte| *byte == b'/').any(|part| part == b"..");
        if !has_parent {
            return self.find_plain(tree);
        }
        match self.resolve(tree, Last::Kept)? {
            path if Ours::of(&path).is_some() => Ours::of(&path).ok_or(Errno(libc::EIO))?.find_plain(tree),
            path => Ok(Found::Elsewhere(c_string(path)?)),
        }
    }

    fn find_plain(&self, tree: &Path) -> Outcome<Found> {
        if let Some(node) = self.node() {
            return Ok(Found::Node(node));
        }
        let mut path = tree.as_os_str().as_bytes().to_vec();
        path.extend_from_slice(self.place.path().as_bytes());
        path.extend_from_slice(self.rest);
        if path.len() >= libc::PATH_MAX as usize {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        Ok(Found::InTree(c_string(path)?))
    }

    fn node(&self) -> Option<Node> {
        let name = self.rest.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let name: Vec<&[u8]> = name.collect();
        let is_of = |node: &Node| self.place == Place::Nodes && name == [node.name().as_bytes()];
        Node::ALL.into_iter().find(|node| !self.rest.ends_with(b"/") && is_of(node))
    }

    /// The absolute path without `..`, `.` and symbolic links. If the path leaves the places, the result is
    /// the path at which it does, with the rest of the path unchanged.
    ///
    /// # Errors
    /// Returns the error number that the kernel has for such a path.
    pub(super) fn resolve(&self, tree: &Path, last: Last) -> Outcome<Vec<u8>> {
        let mut way = self.place.path().as_bytes().to_vec();
        let mut left: VecDeque<Vec<u8>> = parts(self.rest).map(<[u8]>::to_vec).collect();
        let mut links = 0;
        let mut is_folder = true;
        while let Some(part) = left.pop_front() {
            if !is_folder {
                return Err(Errno(libc::ENOTDIR));
            }
            if part == b".." {
                way.truncate(way.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
                continue;
            }
            let before = way.len();
            way.push(b'/');
            way.extend_from_slice(&part);
            let Some(ours) = Ours::of(&way) else {
                if is_above(&way) {
                    continue;
                }
                let mut way = left.iter().fold(way, |way, part| [&way, &b"/"[..], part].concat());
                if self.rest.ends_with(b"/") {
                    way.push(b'/');
                }
                return Ok(way);
            };
            if ours.node().is_some() {
                is_folder = false;
                continue;
            }
            let at = tree.join(OsStr::from_bytes(&way[1..]));
            let found = match fs::symlink_metadata(&at) {
                Ok(found) => found.file_type(),
                Err(error)
                    if error.kind() == ErrorKind::NotFound && left.is_empty() && last == Last::Kept =>
                {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            is_folder = found.is_dir();
            if found.is_symlink() && (last == Last::Followed || !left.is_empty() || self.rest.ends_with(b"/"))
            {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno(libc::ELOOP));
                }
                let target = PathBuf::into_os_string(fs::read_link(&at)?).into_vec();
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(part.to_vec());
                }
                way.truncate(before);
                is_folder = true;
            }
        }
        if self.rest.ends_with(b"/") && !is_folder {
            return Err(Errno(libc::ENOTDIR));
        }
        Ok(if way.is_empty() { b"/".to_vec() } else { way })
    }
}

/// What is done with a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// It is not followed, and need not exist.
    Kept,
    Followed,
}

/// The parts of a path, without `.`.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Whether a place is below this path.
fn is_above(path: &[u8]) -> bool {
    Place::ALL
        .iter()
        .any(|place| place.path().as_bytes().strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/")))
}

/// The rest of a path after its first part, if this part is `word`.
fn after<'a>(path: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let mut rest = path.strip_prefix(b"/")?;
    while let Some(next) = rest.strip_prefix(b"/").or_else(|| rest.strip_prefix(b"./")) {
        rest = next;
    }
    let rest = rest.strip_prefix(word)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn c_string(path: Vec<u8>) -> Outcome<CString> {
    CString::new(path).map_err(|_| Errno(libc::EINVAL))
}

#[cfg(test)]
mod tests;
