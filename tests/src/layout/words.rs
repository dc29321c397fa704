//! The words of a source file. This is not a parser of Rust: it only removes comments and literals.

/// Returns the names, `::` and single other characters of a source, without comments and literals.
pub fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            literal(rest)
        } else if let Some(len) = character(rest) {
            len
        } else if is_name(rest) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            words.push(rest[..end].into());
            end
        } else if rest.starts_with("::") {
            words.push("::".into());
            2
        } else {
            if !first.is_whitespace() {
                words.push(first.into());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    words
}

/// Returns `true` for a name, and `false` for `::` and for any other single character.
pub fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphanumeric() || first == '_')
}

/// Returns the length of the character literal with which `text` begins; `None` if `text` begins with
/// anything else, such as a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    if inside.starts_with('\\') {
        return Some(2 + inside.char_indices().skip(2).find(|(_, c)| *c == '\'')?.0);
    }
    let first = inside.chars().next()?.len_utf8();
    inside[first..].starts_with('\'').then_some(first + 2)
}

/// Returns the length of the string literal with which `text` begins.
fn literal(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

#[test]
fn comments_and_literals_are_no_words() {
    let text = "fn f<'a>(b: &'a str) { '{'; '\\''; b'\\n'; \"use c::d\"; /* e */ g::h } // i";
    assert_eq!(words(text).join(" "), "fn f < ' a > ( b : & ' a str ) { ; ; b ; ; g :: h }");
}
