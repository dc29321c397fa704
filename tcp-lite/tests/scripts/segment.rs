//! TCP segments in the notation of packetdrill, which the scripts use. Sequence and acknowledgement numbers
//! are relative to the SYN of the stream whose bytes they number. `wire.rs` converts the segments to bytes.

use std::fmt;

/// The ECN codepoint of the IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Codepoint {
    /// Not ECN-capable (Not-ECT).
    #[default]
    Plain,
    Ect1,
    Ect0,
    Ce,
}

impl Codepoint {
    const NAMES: [(Self, &str); 3] = [(Self::Ect1, "[ect1]"), (Self::Ect0, "[ect0]"), (Self::Ce, "[ce]")];
}

/// Control bits and their letters, in the order in which the letters are written.
pub(crate) const FLAGS: [(u8, char); 8] =
    [(0x02, 'S'), (0x01, 'F'), (0x04, 'R'), (0x08, 'P'), (0x20, 'U'), (0x40, 'E'), (0x80, 'W'), (0x10, '.')];
pub(crate) const SYN: u8 = 0x02;
pub(crate) const URG: u8 = 0x20;
pub(crate) const ACK: u8 = 0x10;

/// The timestamps option. Both values are milliseconds of the script's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timestamps {
    /// `TS`: the option is present, with any values.
    Any,
    /// `TS val V ecr E`: the option has these values.
    Exactly(i64, i64),
    /// `noTS`: the option is absent, although it was negotiated.
    Without,
}

/// The TCP options of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mss: Option<u16>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack: Vec<(i64, i64)>,
    /// Kind and total length in bytes (`kind 99/6`).
    pub(crate) unknown: Option<(u8, u8)>,
}

/// A segment. `None` stands for a field that the script does not contain. In an arriving segment, such a
/// field has a default value. `Peer::difference` compares a sent segment with the script's segment: for
/// example, it accepts any window if `window` is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) codepoint: Codepoint,
    pub(crate) flags: u8,
    pub(crate) seq: i64,
    pub(crate) len: u32,
    pub(crate) ack: Option<i64>,
    /// The window field of the header, not scaled.
    pub(crate) window: Option<u16>,
    pub(crate) urgent: Option<u16>,
    pub(crate) options: Option<Options>,
    /// Whether the segment is a part of a longer segment that the script gave the stack with `send`.
    pub(crate) cut: bool,
}

impl Segment {
    /// Parses the text after the arrow. `1:3001(3x1000)` stands for three segments.
    pub(crate) fn parse(text: &str) -> Result<Vec<Self>, String> {
        let (head, options) = match text.split_once('<') {
            Some((head, rest)) => {
                let (options, tail) = rest.split_once('>').ok_or("`<` without `>`")?;
                (format!("{head} {tail}"), Some(Options::parse(options)?))
            }
            None => (text.to_owned(), None),
        };
        let mut words = head.split_whitespace().peekable();
        let named = |word: &&str| Codepoint::NAMES.iter().find(|(_, name)| name == word);
        let codepoint = words.next_if(|word| named(word).is_some());
        let codepoint = codepoint.and_then(|word| named(&word)).map_or(Codepoint::Plain, |(it, _)| *it);
        let flags = parse_flags(words.next().ok_or("no flags")?)?;
        let (seq, lens) = parse_range(words.next().ok_or("no sequence numbers")?)?;
        let mut first = Self {
            codepoint,
            flags,
            seq,
            len: 0,
            ack: None,
            window: None,
            urgent: None,
            options,
            cut: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("`{word}` what?"));
            match word {
                "ack" => first.ack = Some(number(value()?)?),
                "win" => first.window = Some(number(value()?)?),
                "urg" => first.urgent = Some(number(value()?)?),
                "cut" => first.cut = true,
                _ => return Err(format!("`{word}` is nothing that a segment has")),
            }
        }
        if (flags & ACK != 0) != first.ack.is_some() {
            return Err("the flag `.` and `ack` go together".into());
        }
        let mut seq = seq;
        let each = lens.into_iter().map(|len| {
            let segment = Self { seq, len, ..first.clone() };
            seq += i64::from(len);
            segment
        });
        Ok(each.collect())
    }

    pub(crate) fn end(&self) -> i64 {
        self.seq + i64::from(self.len)
    }
}

fn parse_flags(word: &str) -> Result<u8, String> {
    if word == "-" {
        return Ok(0);
    }
    word.chars().try_fold(0, |flags, letter| {
        let known = FLAGS.iter().find(|(_, known)| *known == letter);
        known.map(|(bit, _)| flags | bit).ok_or_else(|| format!("`{letter}` of `{word}` is no flag"))
    })
}

/// Parses `SEQ:END(LEN)` or `SEQ:END(NxLEN)`.
fn parse_range(word: &str) -> Result<(i64, Vec<u32>), String> {
    let wrong = || format!("`{word}` is not SEQ:END(LEN)");
    let (seq, rest) = word.split_once(':').ok_or_else(wrong)?;
    let (end, len) = rest.strip_suffix(')').and_then(|rest| rest.split_once('(')).ok_or_else(wrong)?;
    let (seq, end): (i64, i64) = (number(seq)?, number(end)?);
    let (count, len) = match len.split_once('x') {
        Some((count, len)) => (number(count)?, number(len)?),
        None => (1_u32, number::<u32>(len)?),
    };
    if seq + i64::from(count) * i64::from(len) != end {
        return Err(format!("`{word}` does not add up"));
    }
    Ok((seq, vec![len; count as usize]))
}

pub(crate) fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is no number that fits here"))
}

impl Options {
    fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for item in text.split(',') {
            let words: Vec<&str> = item.split_whitespace().collect();
            match words[..] {
                // Options for alignment are ignored.
                [] | ["nop" | "eol"] => {}
                ["mss", mss] => options.mss = Some(number(mss)?),
                ["sackOK"] => options.sack_permitted = true,
                ["wscale", shift] => options.window_scale = Some(number(shift)?),
                ["TS"] => options.timestamps = Some(Timestamps::Any),
                ["noTS"] => options.timestamps = Some(Timestamps::Without),
                ["TS", "val", value, "ecr", echo] => {
                    options.timestamps = Some(Timestamps::Exactly(number(value)?, number(echo)?));
                }
                ["sack", ref blocks @ ..] if !blocks.is_empty() => {
                    for block in blocks {
                        let (start, end) = block.split_once(':').ok_or("a SACK block is FROM:TO")?;
                        options.sack.push((number(start)?, number(end)?));
                    }
                }
                ["kind", kind] => {
                    let (kind, bytes) = kind.split_once('/').ok_or("an unknown option is KIND/BYTES")?;
                    options.unknown = Some((number(kind)?, number(bytes)?));
                }
                _ => return Err(format!("`{}` is no option", item.trim())),
            }
        }
        Ok(options)
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = Vec::new();
        items.extend(self.mss.map(|mss| format!("mss {mss}")));
        items.extend(self.sack_permitted.then(|| "sackOK".to_owned()));
        items.extend(self.timestamps.map(|timestamps| match timestamps {
            Timestamps::Any => "TS".to_owned(),
            Timestamps::Without => "noTS".to_owned(),
            Timestamps::Exactly(value, echo) => format!("TS val {value} ecr {echo}"),
        }));
        items.extend(self.window_scale.map(|shift| format!("wscale {shift}")));
        items.extend(self.unknown.map(|(kind, bytes)| format!("kind {kind}/{bytes}")));
        if !self.sack.is_empty() {
            let blocks = self.sack.iter().map(|(start, end)| format!(" {start}:{end}"));
            items.push(format!("sack{}", blocks.collect::<String>()));
        }
        write!(f, "<{}>", items.join(","))
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = Codepoint::NAMES.iter().find(|(it, _)| *it == self.codepoint) {
            write!(f, "{name} ")?;
        }
        let letters: String =
            FLAGS.iter().filter(|(bit, _)| self.flags & bit != 0).map(|(_, it)| it).collect();
        let letters = if letters.is_empty() { "-" } else { &letters };
        write!(f, "{letters} {}:{}({})", self.seq, self.end(), self.len)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if let Some(urgent) = self.urgent {
            write!(f, " urg {urgent}")?;
        }
        match &self.options {
            Some(options) if *options != Options::default() => write!(f, " {options}")?,
            _ => {}
        }
        if self.cut { write!(f, " cut") } else { Ok(()) }
    }
}
