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

/// The text of the functions of this name in a Rust file that `rustfmt` has formatted; `None` where there is none.
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
            for line in &lines[at..end.map_or(lines.len(), |end| at + end + 1)] {
                found.push_str(line);
                found.push('\n');
            }
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Which of `len` things are in the slice of `seed`, `count` of them side by side: over seeds, each has its turn.
pub fn slice(seed: &str, count: usize, len: usize) -> std::ops::Range<usize> {
    if count == 0 || len == 0 {
        return 0..0;
    }
    let start = crc32c::crc32c(seed.as_bytes()) as usize % len.div_ceil(count) * count;
    start..len.min(start + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_ends_at_its_own_brace() {
        let text = "fn a() {\n    {\n    }\n}\nmod m {\n    pub(super) fn b<T>() {\n        x;\n    }\n}\nfn ab() {\n}\n";
        assert_eq!(function_text(text, "a").as_deref(), Some("fn a() {\n    {\n    }\n}\n"));
        assert_eq!(
            function_text(text, "b").as_deref(),
            Some("    pub(super) fn b<T>() {\n        x;\n    }\n")
        );
        assert_eq!(function_text(text, "c"), None);
    }

    #[test]
    fn each_thing_has_its_turn() {
        let mut seen = [false; 38];
        for seed in 0..500 {
            let slice = slice(&format!("{seed:08x}"), 3, seen.len());
            assert!((1..=3).contains(&slice.len()), "{slice:?}");
            seen[slice].fill(true);
        }
        assert_eq!(seen, [true; 38]);
        assert_eq!((slice("a", 5, 3), slice("a", 0, 3)), (0..3, 0..0));
    }
}
