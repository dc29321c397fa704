//! A corpus as one file: thousands of small files would burden the repository.
//!
//! Entries are sorted by name and stored back to back. An entry consists of the name's length (one byte), the
//! name, the input's length (two bytes, big endian), and the input. An input that broke a rule is named after
//! the defect; any other input is named after a hash of its contents.

use std::collections::BTreeMap;

/// Maximum length in bytes of a stored input.
pub const MAX_INPUT: usize = 4096;

/// Inputs of a fuzz target, by name.
pub type Corpus = BTreeMap<String, Vec<u8>>;

/// Returns the corpus that the archive `bytes` contains, or `None` if `bytes` is not an archive.
pub fn unpack(mut bytes: &[u8]) -> Option<Corpus> {
    let mut corpus = Corpus::new();
    while let Some((&len, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(len))?;
        let (len, rest) = rest.split_first_chunk()?;
        let (input, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        corpus.insert(String::from_utf8(name.to_vec()).ok()?, input.to_vec());
        bytes = rest;
    }
    Some(corpus)
}

/// Returns the archive of a corpus.
///
/// # Panics
/// If a name has more than 255 bytes, or an input has more than [`MAX_INPUT`] bytes.
pub fn pack(corpus: &Corpus) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, input) in corpus {
        assert!(input.len() <= MAX_INPUT, "{name}: an input of {} bytes", input.len());
        bytes.push(u8::try_from(name.len()).expect("a short name"));
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&(input.len() as u16).to_be_bytes());
        bytes.extend_from_slice(input);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Corpus, pack, unpack};

    #[test]
    fn what_is_packed_is_unpacked() {
        let entry = |name: &str, input: &[u8]| (name.to_owned(), input.to_vec());
        let corpus = Corpus::from([entry("a", &[]), entry("some-defect", &[7; 300])]);
        let bytes = pack(&corpus);
        assert_eq!(unpack(&bytes), Some(corpus));
        assert_eq!(unpack(&bytes[..bytes.len() - 1]), None);
    }
}
