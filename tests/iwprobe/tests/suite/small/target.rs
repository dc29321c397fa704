//! The small endpoint's target: regions, receives and operations of a scene, and the report (`TARGET.md`).

use std::collections::VecDeque;

use iwprobe::scene::{SOURCE_PATTERN, pattern, words};
use iwprobe::wire::crc32c;

/// The report on the previous connection.
#[derive(Clone, Debug)]
pub(super) struct Report(pub(super) String);

impl Report {
    pub(super) fn refused() -> Self {
        Self("iwp1 report end=refused".into())
    }
}

#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) stag: u32,
    pub(super) to: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) rights: String,
    /// The letter that a scene gives for the region's scope; `-` if the scene gives no scope.
    pub(super) scope: char,
    pub(super) valid: bool,
}

/// An operation of a scene.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) kind: char,
    pub(super) length: usize,
    pub(super) to: u64,
    pub(super) fenced: bool,
}

/// A scene that has been set up, and its results.
#[derive(Clone, Debug, Default)]
pub(super) struct Target {
    pub(super) regions: Vec<Region>,
    pub(super) receives: VecDeque<usize>,
    pub(super) ird: Option<u16>,
    pub(super) ord: Option<u16>,
    pub(super) peer: u32,
    pub(super) at_once: VecDeque<Operation>,
    pub(super) then: VecDeque<Operation>,
    pub(super) close: bool,
    pub(super) reject: bool,
    pub(super) solicited: bool,
    pub(super) wants_report: bool,
    pub(super) bye: bool,
    pub(super) told: Vec<String>,
    pub(super) events: u32,
}

impl Target {
    pub(super) fn new(text: &[u8], serial: u32) -> Self {
        let mut target = Self::default();
        let words = words(text).unwrap_or_default();
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
        let mut peer_to = 0;
        if let Some((stag, to)) = value("peer=").and_then(|peer| peer.split_once(':')) {
            target.peer = u32::from_str_radix(stag, 16).unwrap();
            peer_to = u64::from_str_radix(to, 16).unwrap();
        }
        for word in &words {
            match word.split_once('=') {
                Some(("mr", wish)) => {
                    let fields: Vec<&str> = wish.split(':').collect();
                    let index = target.regions.len();
                    let scope = fields.get(2).and_then(|scope| scope.chars().next()).unwrap_or('-');
                    target.regions.push(Region {
                        // The STags of a connection are not adjacent, and the distance between the STags of
                        // two connections varies.
                        stag: serial.wrapping_mul(serial).wrapping_mul(0x1000) ^ (index as u32 + 1) << 8,
                        to: 0x10_0000 * (index as u64 + 1),
                        bytes: pattern(index, fields[0].parse().unwrap()),
                        rights: fields[1].into(),
                        scope,
                        valid: scope != 'z',
                    });
                }
                Some(("recv", wish)) => {
                    let (count, length) = wish.split_once('x').unwrap();
                    let length: usize = length.parse().unwrap();
                    target.receives.extend(std::iter::repeat_n(length, count.parse().unwrap()));
                }
                Some(("ird", depth)) => target.ird = depth.parse().ok(),
                Some(("ord", depth)) => target.ord = depth.parse().ok(),
                Some(("do", list)) => target.at_once = operations(list, peer_to),
                Some(("then", list)) => target.then = operations(list, peer_to),
                _ => {}
            }
        }
        let has = |name: &str| words.iter().any(|word| word == name);
        target.close = has("close");
        target.reject = has("reject");
        target.solicited = has("solicited");
        target.wants_report = has("report");
        target.bye = has("bye");
        target
    }

    /// Returns the text of the stage.
    pub(super) fn stage(&self) -> String {
        let told = self.regions.iter().map(|r| format!(" stag={:x}:{:x}:{}", r.stag, r.to, r.bytes.len()));
        format!("iwp1{}", told.collect::<String>())
    }

    /// Records a completion.
    pub(super) fn tell(&mut self, kind: char, bytes: &[u8]) {
        let crc = if bytes.is_empty() { 0 } else { crc32c(bytes) };
        self.told.push(format!("c={kind}:0:{}:{crc:x}", bytes.len()));
    }

    /// Returns the report on the connection. `end`: how the connection ended.
    pub(super) fn report(&self, end: &str) -> Report {
        let mut text = format!("iwp1 report end={end}");
        let changes = self.regions.iter().enumerate().filter_map(|(index, region)| {
            let was = pattern(index, region.bytes.len());
            let differs = |at: &usize| was[*at] != region.bytes[*at];
            let first = (0..was.len()).find(differs)?;
            let last = (0..was.len()).rfind(differs)?;
            let bytes = &region.bytes[first..=last];
            Some(format!("d={index}:{first}+{}:{:x}", bytes.len(), crc32c(bytes)))
        });
        let events = self.solicited.then(|| format!("event={}", self.events));
        for word in self.told.iter().cloned().chain(changes).chain(events) {
            text += &format!(" {word}");
        }
        Report(text)
    }
}

fn operations(list: &str, peer_to: u64) -> VecDeque<Operation> {
    let operation = |text: &str| {
        let (text, fenced) = text.strip_suffix('+').map_or((text, false), |text| (text, true));
        let (text, offset) = text.split_once('@').unwrap_or((text, "0"));
        let kind = text.chars().next().unwrap();
        let length = text[1..].parse().unwrap_or(if matches!(kind, 'f' | 'c') { 8 } else { 0 });
        Operation { kind, length, to: peer_to + offset.parse::<u64>().unwrap(), fenced }
    };
    list.split(',').map(operation).collect()
}

/// Returns the bytes that the target writes and sends.
pub(super) fn source(length: usize) -> Vec<u8> {
    pattern(SOURCE_PATTERN, length)
}
