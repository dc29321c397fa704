//! Parts of documents that this program writes. Such a part is between two lines with the name of the part.

use std::path::PathBuf;

/// Returns the lines before and after the part `name` of a document.
pub(crate) fn markers(name: &str) -> [String; 2] {
    ["begin", "end"].map(|which| format!("<!-- {name}: {which} -->"))
}

/// Splits a document into the text before the part `name`, the part, and the text after the part. The part
/// does not include the markers.
///
/// # Errors
/// Fails if the document does not have the two markers in this order.
pub(crate) fn parts<'a>(document: &'a str, name: &str) -> Result<[&'a str; 3], String> {
    let [begin, end] = markers(name);
    let missing = || format!("no lines {begin} and {end}");
    let first = format!("{begin}\n");
    let begins = document.find(&first).ok_or_else(missing)? + first.len();
    let ends = begins + document[begins..].find(&end).ok_or_else(missing)?;
    Ok([&document[..begins], &document[begins..ends], &document[ends..]])
}

/// Returns the document with `text` in place of the part `name`.
///
/// # Errors
/// As [`parts`].
pub(crate) fn with(document: &str, name: &str, text: &str) -> Result<String, String> {
    let [before, _, behind] = parts(document, name)?;
    Ok([before, text, behind].concat())
}

/// Returns the path of a file of this repository.
pub(crate) fn of_repository(file: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_what_is_between_its_markers() {
        let [begin, end] = markers("runs");
        for part in ["", "b\nc\n"] {
            let document = format!("a\n{begin}\n{part}{end}\nd\n");
            assert_eq!(parts(&document, "runs").unwrap()[1], part);
            assert_eq!(with(&document, "runs", "new\n").unwrap(), format!("a\n{begin}\nnew\n{end}\nd\n"));
            assert!(parts(&document, "other").unwrap_err().contains("<!-- other: begin -->"));
        }
        for document in ["a\n".to_owned(), format!("{end}\n{begin}\n")] {
            assert!(parts(&document, "runs").unwrap_err().contains(&begin));
        }
    }
}
