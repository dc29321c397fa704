//! An edit of a file by its text: what is broken on purpose, to see who finds it.

/// Puts `replace` in the place of what occurs once in `text`.
///
/// # Errors
/// In words, when `find` does not occur exactly once, or nothing would change.
pub fn replace_once(text: &str, find: &str, replace: &str) -> Result<String, String> {
    match text.matches(find).count() {
        1 if find != replace => Ok(text.replacen(find, replace, 1)),
        1 => Err("changes nothing".into()),
        count => Err(format!("its text occurs {count} times")),
    }
}
