//! Rows of the index of requirements. Each row is one requirement.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::{Error, Result, SPEC, read};

/// The documents, in the order of the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doc {
    /// RFC 5044.
    Mpa,
    /// RFC 6581.
    Mpa2,
    /// RFC 5041.
    Ddp,
    /// RFC 5040.
    Rdmap,
    /// RFC 7306.
    Ext,
    /// RFC 5042.
    Sec,
}

impl Doc {
    /// All documents.
    pub const ALL: [Self; 6] = [Self::Mpa, Self::Mpa2, Self::Ddp, Self::Rdmap, Self::Ext, Self::Sec];

    /// Returns the prefix of the ids of the document's rows.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Mpa => "MPA",
            Self::Mpa2 => "MPA2",
            Self::Ddp => "DDP",
            Self::Rdmap => "RDMAP",
            Self::Ext => "EXT",
            Self::Sec => "SEC",
        }
    }

    /// Returns the name of the document's csv files.
    pub fn file(self) -> &'static str {
        match self {
            Self::Mpa => "mpa",
            Self::Mpa2 => "mpa-v2",
            Self::Ddp => "ddp",
            Self::Rdmap => "rdmap",
            Self::Ext => "rdmap-ext",
            Self::Sec => "security",
        }
    }

    /// Returns the number and subject of the document.
    pub fn title(self) -> &'static str {
        match self {
            Self::Mpa => "RFC 5044, MPA",
            Self::Mpa2 => "RFC 6581, enhanced connection setup",
            Self::Ddp => "RFC 5041, DDP",
            Self::Rdmap => "RFC 5040, RDMAP",
            Self::Ext => "RFC 7306, RDMAP extensions",
            Self::Sec => "RFC 5042, security",
        }
    }
}

impl FromStr for Doc {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = Self::ALL.into_iter().find(|doc| doc.prefix() == text);
        known.ok_or_else(|| format!("`{text}` is not a document: use MPA, MPA2, DDP, RDMAP, EXT or SEC"))
    }
}

/// The id of a row: `DOC-NNN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowId {
    /// The document.
    pub doc: Doc,
    /// The number of the row in the document, from 1.
    pub number: u16,
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:03}", self.doc.prefix(), self.number)
    }
}

impl FromStr for RowId {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (doc, number) = text.split_once('-').ok_or_else(|| format!("`{text}` is no id like DDP-001"))?;
        let doc = doc.parse()?;
        if number.len() != 3 || !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(format!("`{text}` is no id: three digits follow the document"));
        }
        Ok(Self { doc, number: number.parse().map_err(|error| format!("`{text}`: {error}"))? })
    }
}

/// The key word of RFC 2119.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// MUST, SHALL, REQUIRED.
    Must,
    /// MUST NOT.
    MustNot,
    /// SHOULD, RECOMMENDED.
    Should,
    /// SHOULD NOT.
    ShouldNot,
    /// MAY.
    May,
    /// No key word: the requirement is a statement.
    Fact,
}

impl Level {
    /// Whether the level is MUST or MUST NOT; such a row may not stay open.
    pub fn binds(self) -> bool {
        matches!(self, Self::Must | Self::MustNot)
    }

    /// Whether the level is SHOULD or SHOULD NOT.
    pub fn advises(self) -> bool {
        matches!(self, Self::Should | Self::ShouldNot)
    }

    /// Returns the key word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::MustNot => "MUST NOT",
            Self::Should => "SHOULD",
            Self::ShouldNot => "SHOULD NOT",
            Self::May => "MAY",
            Self::Fact => "FACT",
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [Self::Must, Self::MustNot, Self::Should, Self::ShouldNot, Self::May, Self::Fact];
        all.into_iter().find(|level| level.name() == text).ok_or_else(|| format!("`{text}` is no level"))
    }
}

/// A requirement.
#[derive(Clone, Debug)]
pub struct Row {
    /// The section of the document.
    pub section: String,
    /// The key word of the requirement.
    pub level: Level,
    /// The party that has to obey the requirement.
    pub role: String,
    /// The requirement.
    pub requirement: String,
    /// How the requirement could be observed.
    pub test: String,
}

/// All rows of all documents.
pub type Index = BTreeMap<RowId, Row>;

/// Reads the rows of all documents.
///
/// # Errors
/// If a table cannot be read, or does not have the form `id,section,level,role,requirement,test` with
/// ascending ids.
pub fn load(root: &Path) -> Result<Index> {
    let mut index = Index::new();
    for doc in Doc::ALL {
        let path = format!("{SPEC}/{}.csv", doc.file());
        let rows = parse(doc, &read(root, &path)?).map_err(|reason| Error::Form { path, reason })?;
        index.extend(rows);
    }
    Ok(index)
}

fn parse(doc: Doc, text: &str) -> std::result::Result<Index, String> {
    let mut rows = Index::new();
    for record in csv::Reader::from_reader(text.as_bytes()).records() {
        let record = record.map_err(|error| error.to_string())?;
        let [id, section, level, role, requirement, test] =
            std::array::from_fn(|i| record.get(i).unwrap_or(""));
        let id: RowId = id.parse()?;
        if id.doc != doc || rows.last_key_value().is_some_and(|(&last, _)| last >= id) {
            return Err(format!("{id} is out of order"));
        }
        let (section, role) = (section.to_owned(), role.to_owned());
        let (requirement, test) = (requirement.to_owned(), test.to_owned());
        rows.insert(id, Row { section, level: level.parse()?, role, requirement, test });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_form() {
        let id: RowId = "MPA2-007".parse().unwrap();
        assert_eq!((id.doc, id.number, id.to_string().as_str()), (Doc::Mpa2, 7, "MPA2-007"));
        for bad in ["MPA2-7", "MPA3-007", "DDP-0001", "DDP-+01", "DDP001", "ddp-001", ""] {
            assert!(bad.parse::<RowId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_of_another_document_or_out_of_order_are_refused() {
        let head = "id,section,level,role,requirement,test\n";
        let good = format!("{head}DDP-001,1,MUST,rx,\"a, b\",c\nDDP-002,1,MUST NOT,rx,d,e\n");
        let rows = parse(Doc::Ddp, &good).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows.values().next().unwrap().requirement, "a, b");
        assert!(parse(Doc::Mpa, &good).is_err());
        assert!(parse(Doc::Ddp, &format!("{head}DDP-002,1,MUST,rx,a,b\nDDP-001,1,MUST,rx,a,b\n")).is_err());
        assert!(parse(Doc::Ddp, &format!("{head}DDP-001,1,SHALL,rx,a,b\n")).is_err());
    }

    #[test]
    fn the_index_of_the_repository_is_whole() {
        assert_eq!(load(super::super::root()).unwrap().len(), 1574);
    }
}
