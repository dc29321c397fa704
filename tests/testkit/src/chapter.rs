//! The blocks of code in a chapter of the guide (`docs`). A test finds each block by the text before it, and
//! runs the block. A block that no test has taken is an error.
//!
//! A fenced block of the kind `text` is no code. All other blocks, indented or fenced, are code.

/// A chapter, and its blocks that no test has taken yet.
#[derive(Debug)]
pub struct Chapter {
    /// The blocks of code, each with the text before it.
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
    /// If the file cannot be read.
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

    /// Returns the lines of the first block after the text `after`.
    ///
    /// # Errors
    /// If the chapter has no such text before a block.
    pub fn block(&mut self, after: &str) -> Result<Vec<String>, String> {
        let found = self.blocks.iter_mut().find(|block| block.before.contains(after));
        let block = found.ok_or_else(|| format!("there is no code after '{after}'"))?;
        block.is_taken = true;
        Ok(block.lines.clone())
    }

    /// Checks that every block was taken.
    ///
    /// # Errors
    /// The blocks that were not taken.
    pub fn is_complete(&self) -> Result<(), String> {
        let left: Vec<&[String]> =
            self.blocks.iter().filter(|block| !block.is_taken).map(|block| &block.lines[..]).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("no test runs these blocks: {left:#?}")) }
    }
}

/// Returns a line of a shell script without its comment.
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
