//! An edit that replaces one text of a file.

/// An edit of a file.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The name of the edit.
    pub name: String,
    /// The path of the file, relative to the root of the repository.
    pub file: String,
    /// A text that occurs in the file exactly once.
    pub find: String,
    /// The replacement.
    pub replace: String,
}

impl Edit {
    /// Returns the file's text with the edit.
    ///
    /// # Errors
    /// If the text to find does not occur exactly once, or nothing would change.
    pub fn apply(&self, text: &str) -> Result<String, String> {
        let Self { name, file, find, replace } = self;
        match text.matches(find).count() {
            1 if find != replace => Ok(text.replacen(find, replace, 1)),
            1 => Err(format!("{name}: {file}: changes nothing")),
            count => Err(format!("{name}: {file}: the text to find occurs {count} times instead of once")),
        }
    }

    /// Returns eight hexadecimal digits that depend on the edit and on `others`.
    pub fn digest(&self, others: impl IntoIterator<Item = String>) -> String {
        let own = [&self.file, &self.find, &self.replace].map(String::clone);
        digest(own.into_iter().chain(others))
    }
}

/// Returns eight hexadecimal digits that depend on some texts.
pub fn digest(parts: impl IntoIterator<Item = String>) -> String {
    let crc = parts.into_iter().fold(0, |crc, part| {
        // The digest includes the length of each part, so that the digest changes if text moves from one part
        // to another.
        let crc = crc32c::crc32c_append(crc, &(part.len() as u64).to_le_bytes());
        crc32c::crc32c_append(crc, part.as_bytes())
    });
    format!("{crc:08x}")
}

/// Returns the text of the functions of this name in a Rust file formatted by `rustfmt`, without comment
/// lines; `None` if the file has no such function.
pub fn function_text(text: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = String::new();
    for (at, line) in lines.iter().enumerate() {
        let words = line.trim_start();
        let indent = &line[..line.len() - words.len()];
        let begins = words.split_once("fn ").is_some_and(|(before, rest)| {
            before.split_whitespace().all(|word| word.starts_with("pub") || word == "async")
                && rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<']))
        });
        if begins {
            let end = lines[at..].iter().position(|line| line.strip_prefix(indent) == Some("}"));
            let body = &lines[at..end.map_or(lines.len(), |end| at + end + 1)];
            for line in body.iter().filter(|line| !line.trim_start().starts_with("//")) {
                found.push_str(line);
                found.push('\n');
            }
        }
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_ends_at_its_own_brace() {
        let text = "fn a() {\n    {\n    }\n}\nmod m {\n    pub(super) fn b<T>() {\n        // c\n        x;\n    }\n}\nfn ab() {\n}\n";
        assert_eq!(function_text(text, "a").as_deref(), Some("fn a() {\n    {\n    }\n}\n"));
        assert_eq!(
            function_text(text, "b").as_deref(),
            Some("    pub(super) fn b<T>() {\n        x;\n    }\n")
        );
        assert_eq!(function_text(text, "c"), None);
    }

    #[test]
    fn an_edit_applies_once_or_not_at_all() {
        let [name, file, find, replace] = ["n", "f", "a\nb", "c"].map(str::to_owned);
        let edit = Edit { name, file, find, replace };
        assert_eq!(edit.apply("xa\nby"), Ok("xcy".into()));
        assert!(edit.apply("ab").is_err() && edit.apply("a\nba\nb").is_err());
        let same = Edit { replace: edit.find.clone(), ..edit };
        assert!(same.apply("a\nb").is_err());
    }
}
