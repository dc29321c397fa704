//! The blocks of code in a chapter of the guide (`docs`). A test takes each block by the text before it and
//! runs it; a block that no test takes is an error.
//!
//! Fenced blocks of the kind `text` cannot be run by a test. Each other block can, indented or fenced.

/// A chapter, and its blocks that no test has taken yet.
#[derive(Debug)]
pub struct Chapter {
    /// The blocks, each with the text before it.
    blocks: Vec<Block>,
}

#[derive(Debug, Default)]
struct Block {
    before: String,
    lines: Vec<String>,
    is_taken: bool,
}

impl Chapter {
    /// Reads the file of a chapter.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut blocks = Vec::new();
        let mut block = Block::default();
        let mut fence = None;
        for line in text.lines() {
            let is_code = match (line.strip_prefix("```"), fence) {
                (Some(kind), None) => {
                    fence = Some(kind);
                    continue;
                }
                (Some(_), Some(_)) => {
                    fence = None;
                    continue;
                }
                (None, Some("text")) => continue,
                (None, Some(_)) => Some(line),
                (None, None) => line.strip_prefix("    "),
            };
            if let Some(code) = is_code {
                block.lines.push(code.to_owned());
                continue;
            }
            if !block.lines.is_empty() {
                blocks.push(std::mem::take(&mut block));
            }
            block.before.push_str(line);
            block.before.push('\n');
        }
        if !block.lines.is_empty() {
            blocks.push(block);
        }
        Self { blocks }
    }

    /// The lines of the first block after a text.
    ///
    /// # Errors
    /// If the chapter has no such text before a block.
    pub fn block(&mut self, after: &str) -> Result<Vec<String>, String> {
        let found = self.blocks.iter_mut().find(|block| block.before.contains(after));
        let block = found.ok_or_else(|| format!("there is no code after '{after}'"))?;
        block.is_taken = true;
        Ok(block.lines.clone())
    }

    /// Fails if a block was not taken.
    ///
    /// # Errors
    /// Those blocks.
    pub fn is_complete(&self) -> Result<(), String> {
        let left: Vec<&[String]> =
            self.blocks.iter().filter(|block| !block.is_taken).map(|block| &block.lines[..]).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("no test runs these blocks: {left:#?}")) }
    }
}

/// A line of the shell without its comment.
#[must_use]
pub fn without_comment(line: &str) -> &str {
    line.split(" #").next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::{Chapter, without_comment};

    #[test]
    fn a_block_that_was_not_taken_is_found() {
        let text = "one\n\n    a\n    b # c\n\ntwo\n\n```text\nshown\n```\n\nthree\n\n```sh\nd\n```\n";
        let mut chapter = Chapter::parse(text);
        assert_eq!(chapter.block("one").unwrap(), ["a", "b # c"]);
        assert!(chapter.is_complete().unwrap_err().contains("\"d\""));
        assert_eq!(chapter.block("two").unwrap(), ["d"], "a block of text is not run");
        assert_eq!(chapter.is_complete(), Ok(()));
        assert!(chapter.block("four").is_err());
        assert_eq!(without_comment("b # c"), "b");
    }
}
