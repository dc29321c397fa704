//! The paths that a source file names: those that begin with `crate` or `super`, with their braces
//! resolved.
//!
//! Not a parser of Rust: it takes comments and literals out, and knows inline modules, as `super`
//! counts from them.

/// All paths that `text`, the file of module `module`, names within its crate, from the crate's
/// root.
pub(crate) fn named(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    // Inline modules that are open, each with the depth of its braces.
    let (mut inline, mut depth) = (Vec::<(&str, usize)>::new(), 0);
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at].as_str();
        let next = |ahead: usize| tokens.get(at + ahead).map_or("", String::as_str);
        let is_path = next(1) == "::" && (at == 0 || tokens[at - 1] != "::");
        match token {
            "mod" if next(2) == "{" => inline.push((next(1), depth)),
            "{" => depth += 1,
            "}" => {
                depth = usize::saturating_sub(depth, 1);
                inline.pop_if(|(_, outside)| *outside == depth);
            }
            "crate" if is_path => at = tree(&tokens, at + 2, &[], &mut found) - 1,
            "super" if is_path => {
                let mut base = module.to_vec();
                base.extend(inline.iter().map(|(name, _)| String::from(*name)));
                while tokens.get(at).is_some_and(|token| token == "super")
                    && tokens.get(at + 1).is_some_and(|token| token == "::")
                {
                    base.pop();
                    at += 2;
                }
                at = tree(&tokens, at, &base, &mut found) - 1;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads the path that begins at token `at` behind `base`, with all of its branches. Returns the position
/// behind it.
fn tree(tokens: &[String], mut at: usize, base: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = base.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while let Some(token) = tokens.get(at) {
                    match token.as_str() {
                        "}" => return at + 1,
                        "," => at += 1,
                        _ => at = tree(tokens, at, &path, found).max(at + 1),
                    }
                }
                return at;
            }
            Some(name) if is_name(name) => path.push(name.into()),
            _ => break,
        }
        at += 1;
        match tokens.get(at).map(String::as_str) {
            Some("::") => at += 1,
            // The new name is not part of the path.
            Some("as") => {
                at += 2;
                break;
            }
            _ => break,
        }
    }
    found.push(path);
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphanumeric() || first == '_')
}

/// Names, `::`, and single other characters, without comments and literals.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            literal(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'{'") || rest.starts_with("'}'") {
            3
        } else if is_name(rest) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(rest[..end].into());
            end
        } else if rest.starts_with("::") {
            tokens.push("::".into());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.into());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// Bytes of the string literal that `text` begins with.
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
