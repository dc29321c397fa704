//! The names of offloads in the options of programs.

use std::str::FromStr;

use super::info::Offloads;

const WORDS: &[(&str, Offloads)] = &[
    ("none", Offloads::empty()),
    ("all", Offloads::all()),
    ("tx-checksum", Offloads::TX_IPV4_CHECKSUM.union(Offloads::TX_TCP_CHECKSUM)),
    ("rx-checksum", Offloads::RX_IPV4_CHECKSUM.union(Offloads::RX_TCP_CHECKSUM)),
    ("tso", Offloads::TX_TSO),
    ("lro", Offloads::RX_LRO),
    ("multi-segment", Offloads::TX_MULTI_SEGMENT),
    ("scatter", Offloads::RX_SCATTER),
    ("rss", Offloads::RX_RSS),
    ("external", Offloads::TX_EXTERNAL),
];

/// A word that names no offload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no offload '{word}': there are {}, each with '-' before it to leave it out", words())]
pub struct UnknownOffload {
    /// The word that names no offload.
    pub word: String,
}

fn words() -> String {
    WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" ")
}

/// Parses a comma-separated list of names: `tx-checksum,tso`. A name with a leading `-` removes an offload. A
/// list that begins with a removal starts from all offloads: `-tso,-lro`. Later names override earlier names.
impl FromStr for Offloads {
    type Err = UnknownOffload;

    fn from_str(text: &str) -> Result<Self, UnknownOffload> {
        let mut offloads = if text.starts_with('-') { Self::all() } else { Self::empty() };
        for word in text.split(',') {
            let (name, is_left_out) = word.strip_prefix('-').map_or((word, false), |name| (name, true));
            let found = WORDS.iter().find(|(known, _)| *known == name);
            let &(_, named) = found.ok_or_else(|| UnknownOffload { word: word.to_owned() })?;
            offloads.set(named, !is_left_out);
        }
        Ok(offloads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Offloads {
        text.parse().unwrap()
    }

    #[test]
    fn a_list_names_the_offloads_or_those_left_out() {
        let checksums = Offloads::TX_IPV4_CHECKSUM | Offloads::TX_TCP_CHECKSUM;
        assert_eq!(list("none"), Offloads::empty());
        assert_eq!(list("all"), Offloads::all());
        assert_eq!(list("tx-checksum,tso"), checksums | Offloads::TX_TSO);
        assert_eq!(list("-tso"), Offloads::all() - Offloads::TX_TSO);
        assert_eq!(list("-tso,-lro"), Offloads::all() - Offloads::TX_TSO - Offloads::RX_LRO);
        assert_eq!(list("all,-rx-checksum,rx-checksum"), Offloads::all());
        assert_eq!(list("tso,none"), Offloads::TX_TSO, "none adds nothing");
    }

    #[test]
    fn each_offload_has_a_word() {
        let named = WORDS.iter().filter(|(word, _)| *word != "all");
        assert_eq!(named.fold(Offloads::empty(), |all, (_, offloads)| all | *offloads), Offloads::all());
    }

    #[test]
    fn what_is_no_offload_is_named_together_with_those_there_are() {
        for (text, word) in [("tso,gso", "'gso'"), ("", "''"), ("-", "'-'"), ("tso,", "''"), ("TSO", "'TSO'")]
        {
            let told = text.parse::<Offloads>().unwrap_err().to_string();
            assert!(told.contains(word) && told.contains("tx-checksum rx-checksum tso lro"), "{told}");
        }
    }
}
