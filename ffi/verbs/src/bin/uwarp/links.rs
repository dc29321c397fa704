//! Links to libuwarp.so under the names of libibverbs and librdmacm, for programs that open these libraries
//! with `dlopen`.
//!
//! Some programs open libibverbs.so.1 and look up symbols in it (`dlopen` and `dlsym`, as NCCL does). A
//! preloaded library has no effect on such a program. If the folder of links is first in `LD_LIBRARY_PATH`,
//! the program opens the file that is also preloaded. The dynamic linker identifies a file by its inode, so
//! it loads the library once.
//!
//! Each libuwarp.so has its own folder of links, beside the folders of the wires. Later launchers use this
//! folder again.

use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use dp::local::private_folder;

/// The file names that programs open for libibverbs and librdmacm.
pub(crate) const NAMES: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"];

/// Makes the links to `library` that are missing or wrong, and returns the folder of the links.
///
/// # Errors
/// Returns one line that describes the error.
pub(crate) fn make(library: &Path) -> Result<PathBuf, String> {
    let folder = uwarp::net::status_folder()?.with_file_name(".links").join(name_of(library));
    private_folder(&folder).map_err(|error| error.to_string())?;
    for name in NAMES {
        link(library, &folder.join(name)).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    Ok(folder)
}

/// The name of the folder for a library: a hash (FNV-1a) of the library's path.
fn name_of(library: &Path) -> String {
    let bytes = library.as_os_str().as_encoded_bytes();
    format!("{:016x}", uwarp::net::fnv1a(bytes.iter().copied()))
}

/// Makes one link by an atomic rename, unless the link already leads to `library`. So the link never
/// disappears, even if other launchers make the same link at the same time.
fn link(library: &Path, at: &Path) -> io::Result<()> {
    if std::fs::read_link(at).is_ok_and(|target| target == library) {
        return Ok(());
    }
    let draft = at.with_extension(format!("{}.new", std::process::id()));
    remove(&draft)?;
    symlink(library, &draft)?;
    std::fs::rename(&draft, at)
}

/// Removes a file, if it exists.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The search path `before`, with `folder` moved or added to its beginning.
pub(crate) fn search_path(folder: &Path, before: &str) -> String {
    let folder = folder.display().to_string();
    let others = before.split(':').filter(|other| !other.is_empty() && *other != folder);
    others.fold(folder.clone(), |path, other| path + ":" + other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_first_and_once_in_a_search_path() {
        let path = |before: &str| search_path(Path::new("/run/links"), before);
        assert_eq!(path(""), "/run/links");
        assert_eq!(path("/a"), "/run/links:/a");
        assert_eq!(path("/a::/b/c:"), "/run/links:/a:/b/c");
        assert_eq!(path("/a:/run/links:/b"), "/run/links:/a:/b");
    }

    #[test]
    fn each_library_has_a_folder_of_its_own() {
        let names =
            ["/usr/lib/libuwarp.so", "/usr/lib/libuwarp.so2", "/opt/libuwarp.so"].map(Path::new).map(name_of);
        assert!(
            names.iter().all(|name| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
        );
        assert!(names[0] != names[1] && names[0] != names[2] && names[1] != names[2]);
        assert_eq!(name_of(Path::new("/usr/lib/libuwarp.so")), names[0]);
    }
}
