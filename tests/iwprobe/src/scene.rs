//! The texts that the probe and a target exchange, as TARGET.md describes them.

use crate::case::{CaseError, Check, deviates, require};
use crate::wire::crc32c;

/// The first word of every text.
pub const MAGIC: &str = "iwp1";

/// Returns byte `at` of pattern `index`.
pub fn pattern_byte(index: usize, at: usize) -> u8 {
    (at + 7 * (at / 256) + 59 * index + 13) as u8
}

/// Returns the first `length` bytes of pattern `index`.
pub fn pattern(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| pattern_byte(index, at)).collect()
}

/// The number of the pattern that a target writes and sends.
pub const SOURCE_PATTERN: usize = 100;

/// A registered region of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The STag of the region.
    pub stag: u32,
    /// Tagged offset of the region's first byte.
    pub to: u64,
    /// Length of the region, bytes.
    pub length: u64,
}

impl Region {
    /// Returns the tagged offset after the region's last byte.
    pub fn end(&self) -> u64 {
        self.to.wrapping_add(self.length)
    }
}

/// The objects that a target has set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    /// The regions in the requested order; `None` for a region that the target does not support.
    pub regions: Vec<Option<Region>>,
    /// The words of the scene that the target does not support.
    pub cannot: Vec<String>,
}

/// Returns the words of a target's text without the first word; `None` if `bytes` are not a target's text.
pub fn words(bytes: &[u8]) -> Option<Vec<String>> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut words = text.split(' ').map(str::to_owned);
    (words.next()? == MAGIC).then(|| words.collect())
}

impl Stage {
    /// Parses the text of a target; `None` if `bytes` are not a target's text.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut stage = Self::default();
        for word in words(bytes)? {
            match word.split_once('=') {
                Some(("stag", "-")) => stage.regions.push(None),
                Some(("stag", region)) => {
                    let mut fields = region.split(':');
                    let stag = u32::from_str_radix(fields.next()?, 16).ok()?;
                    let to = u64::from_str_radix(fields.next()?, 16).ok()?;
                    stage.regions.push(Some(Region { stag, to, length: fields.next()?.parse().ok()? }));
                }
                Some(("no", name)) => stage.cannot.push(name.to_owned()),
                _ => {}
            }
        }
        Some(stage)
    }

    /// Returns region `index` of the scene.
    ///
    /// # Errors
    /// `NotApplicable` if the target's stack cannot register such a region.
    pub fn region(&self, index: usize) -> Result<Region, CaseError> {
        self.regions
            .get(index)
            .copied()
            .flatten()
            .ok_or_else(|| CaseError::NotApplicable("the target cannot register such a region".into()))
    }
}

/// A completion at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// `R` for a Send, `V` for a Send with Invalidate, `I` for Immediate Data, or the letter of an operation.
    pub kind: String,
    /// The status, as in `enum ibv_wc_status`.
    pub status: u32,
    /// Number of transferred bytes.
    pub length: u64,
    /// CRC32c of the transferred bytes.
    pub crc: u32,
}

/// The changed bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The index of the region.
    pub region: usize,
    /// Offset of the first byte that differs.
    pub offset: usize,
    /// Number of bytes from the first to the last that differs.
    pub length: usize,
    /// CRC32c of the bytes from the first to the last that differs.
    pub crc: u32,
}

/// A target's report on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How the connection ended.
    pub end: String,
    /// The completions.
    pub completions: Vec<Completion>,
    /// STags that were invalidated.
    pub invalidated: Vec<u32>,
    /// Regions that changed.
    pub changes: Vec<Change>,
    /// Number of operations that could not be posted.
    pub unposted: u32,
    /// Number of events of the completion channel, if the scene asked for this number.
    pub events: Option<u32>,
}

impl Report {
    /// Parses the text of a target; `None` if `bytes` are not a target's text.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let words = words(bytes)?;
        let mut report = Self::default();
        for word in words {
            let Some((name, value)) = word.split_once('=') else { continue };
            let fields: Vec<&str> = value.split(':').collect();
            match (name, fields.as_slice()) {
                ("end", _) => report.end = value.to_owned(),
                ("c", [kind, status, length, crc]) => report.completions.push(Completion {
                    kind: (*kind).to_owned(),
                    status: status.parse().ok()?,
                    length: length.parse().ok()?,
                    crc: u32::from_str_radix(crc, 16).ok()?,
                }),
                ("inv", [stag]) => report.invalidated.push(u32::from_str_radix(stag, 16).ok()?),
                ("d", [region, range, crc]) => {
                    let (offset, length) = range.split_once('+')?;
                    report.changes.push(Change {
                        region: region.parse().ok()?,
                        offset: offset.parse().ok()?,
                        length: length.parse().ok()?,
                        crc: u32::from_str_radix(crc, 16).ok()?,
                    });
                }
                ("post", [count]) => report.unposted = count.parse().ok()?,
                ("event", [count]) => report.events = Some(count.parse().ok()?),
                _ => {}
            }
        }
        (!report.end.is_empty()).then_some(report)
    }

    /// Returns the receives that completed successfully, in order.
    pub fn received(&self) -> Vec<&Completion> {
        let receive = |c: &&Completion| c.status == 0 && matches!(c.kind.as_str(), "R" | "V" | "I");
        self.completions.iter().filter(receive).collect()
    }

    /// Checks that the target received exactly these messages.
    ///
    /// # Errors
    /// A deviation if the messages differ.
    pub fn expect_received(&self, messages: &[&[u8]]) -> Check {
        let got: Vec<(u64, u32)> = self.received().iter().map(|c| (c.length, c.crc)).collect();
        let wanted: Vec<(u64, u32)> = messages.iter().map(|m| (m.len() as u64, crc32c(m))).collect();
        require(got == wanted, || {
            format!("the target received (length, CRC) {got:x?}, sent were {wanted:x?}")
        })
    }

    /// Checks that no region changed.
    ///
    /// # Errors
    /// A deviation if a region changed.
    pub fn expect_untouched(&self) -> Check {
        match self.changes.first() {
            None => Ok(()),
            Some(change) => deviates(format!(
                "region {} of the target changed: {} bytes from offset {}",
                change.region, change.length, change.offset
            )),
        }
    }

    /// Checks that `region` has changed to `bytes` at `offset`, and that no other byte of any region changed.
    ///
    /// # Errors
    /// A deviation if the regions changed in another way, or not at all.
    pub fn expect_written(&self, region: usize, offset: usize, bytes: &[u8]) -> Check {
        let written = Change { region, offset, length: bytes.len(), crc: crc32c(bytes) };
        require(self.changes == [written], || {
            format!("expected one change, {written:x?}, the target saw {:x?}", self.changes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_the_example_are_understood() {
        let stage = Stage::parse(b"iwp1 stag=5a1b2c00:7f0000001000:4096 stag=-\0\0").unwrap();
        let region = Region { stag: 0x5a1b_2c00, to: 0x7f00_0000_1000, length: 4096 };
        assert_eq!(stage.regions, [Some(region), None]);
        assert!(stage.region(0).is_ok() && stage.region(1).is_err() && stage.region(2).is_err());
        let report = b"iwp1 report end=sent:010101 c=R:0:5:9a71bb4c flush=1 d=0:0+4:92c80a31";
        let report = Report::parse(report).unwrap();
        assert_eq!(report.end, "sent:010101");
        report.expect_received(&[b"hello"]).unwrap();
        report.expect_written(0, 0, b"abcd").unwrap();
        assert!(report.expect_received(&[b"hallo"]).is_err());
        assert!(report.expect_written(0, 0, b"abce").is_err());
        assert!(report.expect_untouched().is_err());
    }

    #[test]
    fn other_private_data_is_no_stage() {
        for other in [&b""[..], b"iwp12", b"hello", &[0xff; 9], b"IWP1 stag=-", b"iwp1 stag=zz:0:0"] {
            assert_eq!(Stage::parse(other), None, "{other:?}");
        }
        assert_eq!(Stage::parse(b"iwp1").unwrap(), Stage::default());
    }

    #[test]
    fn patterns_are_those_of_the_contract() {
        assert_eq!(pattern(0, 3), [13, 14, 15]);
        assert_eq!(pattern_byte(1, 256), (256 + 7 + 59 + 13) as u8);
    }
}
