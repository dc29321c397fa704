//! Checks that the links of the documents lead somewhere: to a file of the repository, and to a heading in
//! it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::conformance::root;

/// Returns the targets of all links in a document that do not lead to other hosts.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
}

/// Returns the anchors of the headings of a document, as hosted repositories and mdBook name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut all = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if !is_code && heading.len() < line.len() && heading.starts_with(' ') {
            all.insert(anchor(heading.trim()));
        }
    }
    all
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|&c| c.is_alphanumeric() || c == '_' || c == '-' || c == ' ');
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns what is wrong with a link in `document`, a path from the root of the repository.
fn fault(document: &Path, link: &str) -> Option<&'static str> {
    let (path, heading) = link.split_once('#').map_or((link, None), |(path, at)| (path, Some(at)));
    let folder = document.parent().unwrap_or(Path::new(""));
    let target = if path.is_empty() { document.to_owned() } else { folder.join(path) };
    let file = root().join(target);
    if !file.exists() {
        return Some("there is no such file");
    }
    let is_text = file.extension().is_some_and(|kind| kind == "md");
    let leads = |heading: &str| fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(heading));
    match heading {
        Some(heading) if is_text && !leads(heading) => Some("the file has no such heading"),
        _ => None,
    }
}

/// Returns the documents of the repository.
fn documents() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(root()).output().unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().map(PathBuf::from).collect()
}

#[test]
fn each_link_of_a_document_leads_somewhere() {
    let mut found = 0;
    for document in documents() {
        let text = fs::read_to_string(root().join(&document)).unwrap();
        for link in links(&text) {
            found += 1;
            assert_eq!(fault(&document, link), None, "{}: {link}", document.display());
        }
    }
    assert!(found > 100, "{found}");
}

#[test]
fn a_dead_link_is_found() {
    let text = "[a](b.md) and [c](https://d/e) `x](y z)` [f](#g-h)";
    assert_eq!(links(text).collect::<Vec<_>>(), ["b.md", "#g-h"]);
    let headings = anchors("# A `b`: c's\n```\n# no\n```\ntext\n## D-e_f\n#no\n");
    assert_eq!(headings.into_iter().collect::<Vec<_>>(), ["a-b-cs", "d-e_f"]);
    let of = |link| fault(Path::new("docs/ci.md"), link);
    assert_eq!(of("absent.md"), Some("there is no such file"));
    assert_eq!(of("../README.md#absent"), Some("the file has no such heading"));
    assert_eq!(of("#a-job"), None);
    assert_eq!(of("../README.md#two-commands"), None);
}
