//! Checks that the chapters of the guide contain the texts by which tests find blocks of code.
//!
//! The tests that use these texts run the commands of a chapter. These tests need programs or machines, so
//! they would report a missing text late.

use std::fs;
use std::path::{Path, PathBuf};

use crate::conformance::root;

/// Returns the texts in the calls of `testkit::chapter::Chapter::block` in a source file.
fn markers(source: &str) -> impl Iterator<Item = &str> {
    source.split("block(\"").skip(1).filter_map(|rest| rest.split_once("\")")).map(|(text, _)| text)
}

/// Returns the files in a folder without those in its subfolders, or the file itself if `path` is a file.
fn files(path: &str) -> Vec<PathBuf> {
    let path = root().join(path);
    if path.is_file() {
        return vec![path];
    }
    fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_text_before_a_block_of_code_is_in_a_chapter() {
    let chapters: Vec<String> =
        ["README.md", "docs"].into_iter().flat_map(files).map(|it| read(&it)).collect();
    let sources = [
        "ffi/verbs/tests/programs/docs.rs",
        "ffi/verbs/tests/programs/pods.rs",
        "iwarp/tokio/tests/examples.rs",
        "tests/src/nic_guide.rs",
    ];
    let mut found = 0;
    for path in sources.into_iter().flat_map(files) {
        for marker in markers(&read(&path)) {
            found += 1;
            let is_there = chapters.iter().any(|chapter| chapter.contains(marker));
            assert!(is_there, "{}: no chapter has '{marker}'", path.display());
        }
    }
    assert!(found >= 15, "{found}");
}
