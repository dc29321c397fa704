//! Checks files before a run, so that no results are lost because a file cannot be written.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::cli::TestArgs;
use crate::errors::Error;
use crate::lines;
use crate::report;

/// Checks all files for results that the options name. If one of the documents goes to standard output, the
/// lines go to standard error from now on.
///
/// # Errors
/// Returns [`Error::System`], which names a file that cannot be written, or [`Error::Usage`] if several
/// documents are to go to standard output.
pub(crate) fn check(args: &TestArgs) -> Result<(), Error> {
    let is_stdout = |path: &&PathBuf| path.as_path() == Path::new(lines::STDOUT);
    let perftest_json = args.perftest_json();
    let all = || args.json.iter().chain(&perftest_json).chain(&args.report);
    match all().filter(is_stdout).count() {
        0 => {}
        1 => lines::step_aside(),
        _ => return Err(Error::Usage("standard output (-) has room for one document".into())),
    }
    for file in args.json.iter().chain(&perftest_json).filter(|file| !is_stdout(file)) {
        named(file, writable(file))?;
    }
    match args.report.as_ref().filter(|file| !is_stdout(file)) {
        Some(page) if report::is_page(page) => named(page, writable(page)),
        Some(directory) => {
            let made = fs::create_dir_all(directory).and_then(|()| writable(&directory.join("index.html")));
            named(directory, made)
        }
        None => Ok(()),
    }
}

fn named(path: &Path, outcome: io::Result<()>) -> Result<(), Error> {
    outcome.map_err(|source| Error::System { what: format!("cannot write {}", path.display()), source })
}

/// Checks that the file can be opened for writing, without changing it. A file that did not exist is removed
/// again.
fn writable(path: &Path) -> io::Result<()> {
    let existed = path.symlink_metadata().is_ok();
    OpenOptions::new().append(true).create(true).open(path)?;
    if existed { Ok(()) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("iwperf-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (old, new) = (dir.join("old.json"), dir.join("new.json"));
        fs::write(&old, "old").unwrap();
        for file in [&old, &new] {
            check(&TestArgs { json: Some(file.clone()), ..Default::default() }).unwrap();
        }
        assert_eq!((fs::read_to_string(&old).unwrap().as_str(), new.exists()), ("old", false));
        let report = |path: &Path| check(&TestArgs { report: Some(path.into()), ..Default::default() });
        report(&dir.join("deep/er")).unwrap();
        report(&dir.join("page.html")).unwrap();
        assert!(!dir.join("page.html").exists());
        let error = report(&old).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write {}", old.display())), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
