//! Parses the target's messages: stages and reports, word by word as in `TARGET.md`.

use crate::contract::MAGIC;
use crate::lab::Result;
use crate::lab_error;
use iwarp::verbs::RemoteAddr;

/// A region of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagWord {
    /// The region's STag, and the tagged offset of its first byte.
    pub remote: RemoteAddr,
    /// Length in bytes of the region.
    pub length: usize,
}

/// The stage message: the objects that a target has set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    /// The region for each `mr` of the scene, in order; `None` if the target's stack does not support such a
    /// region.
    pub regions: Vec<Option<StagWord>>,
}

/// A completion of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// `R` for a Send, `V` for a Send with Invalidate, `I` for Immediate Data, or the letter of an operation.
    pub kind: char,
    /// A value of `enum ibv_wc_status`.
    pub status: u32,
    /// Number of bytes received or read.
    pub length: usize,
    /// The CRC32c of the received or read bytes.
    pub crc: u32,
}

impl Completion {
    /// Returns a successful completion over `bytes`.
    pub fn of(kind: char, bytes: &[u8]) -> Self {
        Self { kind, status: 0, length: bytes.len(), crc: crc32c::crc32c(bytes) }
    }
}

/// A change in a region of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The index of the region among the `mr` of the scene.
    pub region: usize,
    /// Offset of the first byte that changed.
    pub offset: usize,
    /// Number of bytes from the first to the last that changed.
    pub length: usize,
    /// The CRC32c of the bytes from the first to the last that changed.
    pub crc: u32,
}

impl Change {
    /// Returns the change to `bytes` at `offset` of a region. All of `bytes` have to differ from the region's
    /// pattern.
    pub fn of(region: usize, offset: usize, bytes: &[u8]) -> Self {
        Self { region, offset, length: bytes.len(), crc: crc32c::crc32c(bytes) }
    }
}

/// The report on a connection that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How the connection ended: `close`, `error`, `open`, `refused`, or `sent:` or `got:` and a Terminate's
    /// codes.
    pub end: String,
    /// The completions, in the order in which they were polled.
    pub completions: Vec<Completion>,
    /// Number of requests that were flushed.
    pub flushed: u32,
    /// Number of operations that could not be posted.
    pub unposted: u32,
    /// Number of events of the target's completion channel, if the scene asked only for solicited events.
    pub events: Option<u32>,
    /// Regions that changed.
    pub changes: Vec<Change>,
}

/// Returns the text that requests the scene `words`, with one space before each word.
pub(super) fn scene(words: &str) -> String {
    if words.is_empty() { MAGIC.to_owned() } else { format!("{MAGIC} {words}") }
}

fn words(text: &str) -> Result<impl Iterator<Item = &str>> {
    let mut words = text.trim_end_matches('\0').split(' ');
    if words.next() != Some(MAGIC) {
        return Err(lab_error!("not a message of a target: '{text}'"));
    }
    Ok(words)
}

/// Parses the number in a field of a word. Errors quote `word`.
fn number<T: TryFrom<u64>>(field: Option<&str>, base: u32, word: &str) -> Result<T> {
    let value = field.and_then(|digits| u64::from_str_radix(digits, base).ok());
    value.and_then(|value| T::try_from(value).ok()).ok_or_else(|| lab_error!("cannot read '{word}'"))
}

impl Stage {
    /// Parses a stage message.
    ///
    /// # Errors
    /// If the message is malformed, or says that the target could not read the scene.
    pub fn parse(text: &str) -> Result<Self> {
        let mut stage = Self::default();
        for word in words(text)? {
            if word == "bad" {
                return Err(lab_error!("the target cannot read the scene: '{text}'"));
            }
            match word.split_once('=') {
                Some(("stag", "-")) => stage.regions.push(None),
                Some(("stag", rest)) => {
                    let mut fields = rest.split(':');
                    let rkey = number(fields.next(), 16, word)?;
                    let addr = number(fields.next(), 16, word)?;
                    let length = number(fields.next(), 10, word)?;
                    stage.regions.push(Some(StagWord { remote: RemoteAddr { addr, rkey }, length }));
                }
                _ => {}
            }
        }
        Ok(stage)
    }

    /// Returns region `index`.
    ///
    /// # Errors
    /// If the target has no region with this index.
    pub fn region(&self, index: usize) -> Result<StagWord> {
        let region = self.regions.get(index).copied().flatten();
        region.ok_or_else(|| lab_error!("the target has no region {index}: {self:?}"))
    }
}

impl Report {
    /// Parses a report.
    ///
    /// # Errors
    /// If the report is malformed or incomplete.
    pub fn parse(text: &str) -> Result<Self> {
        let mut report = Self::default();
        let mut is_report = false;
        for word in words(text)? {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let mut fields = value.split([':', '+']);
            match name {
                "report" => is_report = true,
                "end" => value.clone_into(&mut report.end),
                "flush" => report.flushed = number(Some(value), 10, word)?,
                "post" => report.unposted = number(Some(value), 10, word)?,
                "event" => report.events = Some(number(Some(value), 10, word)?),
                "c" => report.completions.push(Completion {
                    kind: fields.next().and_then(|kind| kind.chars().next()).unwrap_or('?'),
                    status: number(fields.next(), 10, word)?,
                    length: number(fields.next(), 10, word)?,
                    crc: number(fields.next(), 16, word)?,
                }),
                "d" => report.changes.push(Change {
                    region: number(fields.next(), 10, word)?,
                    offset: number(fields.next(), 10, word)?,
                    length: number(fields.next(), 10, word)?,
                    crc: number(fields.next(), 16, word)?,
                }),
                "more" => return Err(lab_error!("the report is incomplete: '{text}'")),
                _ => {}
            }
        }
        if is_report { Ok(report) } else { Err(lab_error!("no report: '{text}'")) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Completion, Report, StagWord, Stage, scene};
    use iwarp::verbs::RemoteAddr;

    #[test]
    fn a_scene_has_no_empty_word() {
        assert_eq!(scene(""), "iwp1");
        assert_eq!(scene("mr=64:r recv=1x16"), "iwp1 mr=64:r recv=1x16");
    }

    #[test]
    fn a_stage_is_read() {
        let stage = Stage::parse("iwp1 stag=5a1b2c00:7f0000001000:4096 stag=- no=m\0\0").unwrap();
        let remote = RemoteAddr { addr: 0x7f00_0000_1000, rkey: 0x5a1b_2c00 };
        assert_eq!(stage.regions, [Some(StagWord { remote, length: 4096 }), None]);
        assert!(stage.region(1).is_err());
        assert!(Stage::parse("iwp2").is_err());
        assert!(Stage::parse("iwp1 bad ").is_err() && Stage::parse("iwp1 bad mr=0:r").is_err());
        assert!(Stage::parse("iwp1 stag=5a:xyz:1").is_err());
    }

    #[test]
    fn a_report_is_read() {
        let text = "iwp1 report end=sent:010101 c=R:0:5:9a71bb4c flush=1 event=2 d=0:0+4:92c80a31";
        let report = Report::parse(text).unwrap();
        assert_eq!(report.end, "sent:010101");
        assert_eq!(report.completions, [Completion { kind: 'R', status: 0, length: 5, crc: 0x9a71_bb4c }]);
        assert_eq!(report.changes, [Change { region: 0, offset: 0, length: 4, crc: 0x92c8_0a31 }]);
        assert_eq!((report.flushed, report.events), (1, Some(2)));
        assert!(Report::parse("iwp1 stag=-").is_err());
        assert!(Report::parse("iwp1 report end=close more").is_err());
        assert!(Report::parse("iwp1 report c=R:0:5").is_err());
    }
}
