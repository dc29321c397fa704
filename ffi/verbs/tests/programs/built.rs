//! Copies of the launcher and the library, which are made when the tests begin. The reason is that another
//! test run may build with other features at the same time, and replace cargo's files.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn folder() -> PathBuf {
    env::temp_dir().join(format!("uwarp-built-{}", std::process::id()))
}

/// Makes the copies.
pub(crate) fn keep() -> Result<(), String> {
    let launcher = PathBuf::from(env!("CARGO_BIN_EXE_uwarp"));
    let built = launcher.parent().unwrap_or(Path::new("."));
    // If the library is only a dependency of tests, cargo leaves it in `deps`.
    let libraries = [built.join("deps/libuwarp.so"), built.join("libuwarp.so")];
    let library = libraries.iter().find(|path| path.is_file()).unwrap_or(&libraries[1]);
    fs::create_dir_all(folder()).map_err(|error| error.to_string())?;
    for (from, to) in [(&launcher, self::launcher()), (library, self::library())] {
        fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    }
    Ok(())
}

/// Removes the copies.
pub(crate) fn remove() {
    // Errors are ignored: the copies are in a folder for temporary files.
    let _ = fs::remove_dir_all(folder());
}

pub(crate) fn launcher() -> PathBuf {
    folder().join("uwarp")
}

pub(crate) fn library() -> PathBuf {
    folder().join("libuwarp.so")
}
