//! A script: its settings and its lines. README.md describes the language.

use crate::segment::{Segment, number};

/// The content of a script file.
pub(crate) struct Script {
    /// Keys and values of `config` lines, with their line numbers.
    pub(crate) settings: Vec<(usize, String, String)>,
    pub(crate) lines: Vec<Line>,
}

/// A line of a script, which begins with a time.
#[derive(Clone)]
pub(crate) struct Line {
    /// Line number in the file, starting at 1.
    pub(crate) number: usize,
    /// The text after the time.
    pub(crate) text: String,
    pub(crate) time: Time,
    /// The number of the peer that the line names; 1 if the line names no peer.
    pub(crate) peer: u8,
    pub(crate) action: Action,
}

/// The time of a line, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    /// `true` if the time is relative to the previous line, `false` if it is relative to the start.
    pub(crate) relative: bool,
    pub(crate) us: u64,
    /// Tolerance in both directions, in microseconds.
    pub(crate) slack_us: u64,
}

/// The action of a line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// `<`: a segment arrives.
    Arrives(Segment),
    /// `>`: this segment is sent.
    Sends(Segment),
    Call(Call),
    Expect(Expect),
}

/// An action of the application or the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Connects from a port that the stack chooses, or from the script's port.
    Connect {
        ephemeral: bool,
    },
    Listen,
    /// Pushes one segment for each entry, which contains the lengths of the segment's records.
    Send(Vec<Vec<usize>>),
    Close,
    Abort,
    Hold(usize),
    Release(usize),
    /// An ICMP error from a router, about the segment that was sent with sequence number `seq`.
    Icmp {
        what: String,
        mtu: Option<u16>,
        seq: i64,
    },
    /// Our next SYN starts a new sequence of numbers.
    Anew,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Bytes were delivered, in order or beyond a hole.
    Received {
        from: u64,
        to: u64,
        ahead: bool,
    },
    /// An event that is not a delivery of bytes. It has to be the next event of its kind.
    Event(String),
    /// The value of a counter of the stack, or a value of the connection.
    Value {
        name: String,
        value: u64,
        slack: u64,
    },
    State(String),
    /// Nothing is sent for this many microseconds.
    Quiet(u64),
    /// The difference between our port and our port of the previous connection.
    PortStep(i64),
    /// The send queue refuses a segment. The length is only shown in the message of a failure.
    Refused(usize),
}

impl Script {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut script = Self { settings: Vec::new(), lines: Vec::new() };
        for (at, line) in text.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default().trim();
            if !line.is_empty() {
                script.line(at + 1, line).map_err(|reason| format!("line {}: {reason}: {line}", at + 1))?;
            }
        }
        Ok(script)
    }

    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if word == "config" {
            if !self.lines.is_empty() {
                return Err("`config` stands before all that happens".into());
            }
            for setting in rest.split_whitespace() {
                let (key, value) = setting.split_once('=').ok_or("a setting is KEY=VALUE")?;
                self.settings.push((number, key.to_owned(), value.to_owned()));
            }
            return Ok(());
        }
        let time = parse_time(word)?;
        let text = rest.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (word, peer) = match word.split_once('@') {
            Some((word, peer)) => (word, self::number(peer)?),
            None => (word, 1),
        };
        // All segments of a line have the time of the line: each segment after the first has delay 0.
        let mut push =
            |time, action| self.lines.push(Line { number, text: text.to_owned(), time, peer, action });
        if let "<" | ">" = word {
            for (nr, segment) in Segment::parse(rest)?.into_iter().enumerate() {
                let later = Time { relative: true, us: 0, slack_us: 0 };
                let action = if word == "<" { Action::Arrives(segment) } else { Action::Sends(segment) };
                push(if nr == 0 { time } else { later }, action);
            }
            return Ok(());
        }
        let words: Vec<&str> = rest.split_whitespace().collect();
        if let ("again", [times, lines]) = (word, &words[..]) {
            let from = self.lines.len().checked_sub(self::number(lines)?).ok_or("not so many lines")?;
            for _ in 0..self::number(times)? {
                self.lines.extend_from_within(from..from + self::number::<usize>(lines)?);
            }
            return Ok(());
        }
        push(time, parse_action(word, &words)?);
        Ok(())
    }
}

fn parse_action(word: &str, words: &[&str]) -> Result<Action, String> {
    let call = |call| Ok(Action::Call(call));
    let expect = |expect| Ok(Action::Expect(expect));
    match (word, words) {
        ("connect", []) => call(Call::Connect { ephemeral: false }),
        ("connect", ["ephemeral"]) => call(Call::Connect { ephemeral: true }),
        ("listen", []) => call(Call::Listen),
        ("send", [what]) => call(Call::Send(parse_send(what)?)),
        ("close", []) => call(Call::Close),
        ("abort", []) => call(Call::Abort),
        ("hold", [bytes]) => call(Call::Hold(number(bytes)?)),
        ("release", [bytes]) => call(Call::Release(number(bytes)?)),
        ("anew", []) => call(Call::Anew),
        ("icmp", [what, details @ ..]) => {
            let (mut mtu, mut seq) = (None, None);
            for detail in details {
                match detail.split_once('=') {
                    Some(("mtu", value)) => mtu = Some(number(value)?),
                    Some(("seq", value)) => seq = Some(number(value)?),
                    _ => return Err(format!("`{detail}` is neither mtu= nor seq=")),
                }
            }
            let seq = seq.ok_or("about the segment at which seq=?")?;
            call(Call::Icmp { what: (*what).to_owned(), mtu, seq })
        }
        ("received", [range]) => expect(parse_received(range, false)?),
        ("received", [range, "ahead"]) => expect(parse_received(range, true)?),
        ("event", [_, ..]) => expect(Expect::Event(words.join(" "))),
        ("state", [state]) => expect(Expect::State((*state).to_owned())),
        ("quiet", [span]) => expect(Expect::Quiet(parse_span(span)?)),
        ("port", [step]) => expect(Expect::PortStep(number(step)?)),
        ("refused", ["send", bytes]) => expect(Expect::Refused(number(bytes)?)),
        ("counter", [assignment]) => {
            let (name, value) = assignment.split_once('=').ok_or("a counter is NAME=VALUE")?;
            expect(Expect::Value { name: name.to_owned(), value: number(value)?, slack: 0 })
        }
        (name, ["=", value]) => {
            let (value, slack) = value.split_once('~').unwrap_or((value, "0"));
            let (value, slack) = (parse_value(value)?, parse_value(slack)?);
            expect(Expect::Value { name: name.to_owned(), value, slack })
        }
        _ => Err(format!("`{word}` with that is nothing known")),
    }
}

/// Parses the lengths of records. `1000` is a segment of one record, `400+600` a segment of two records, and
/// `3x1000` three segments.
fn parse_send(what: &str) -> Result<Vec<Vec<usize>>, String> {
    let (count, records) = match what.split_once('x') {
        Some((count, records)) => (number(count)?, records),
        None => (1, what),
    };
    let records: Vec<usize> = records.split('+').map(number).collect::<Result<_, _>>()?;
    Ok(vec![records; count])
}

fn parse_received(range: &str, ahead: bool) -> Result<Expect, String> {
    let (from, to) = range.split_once("..").ok_or("bytes received are FROM..TO")?;
    Ok(Expect::Received { from: number(from)?, to: number(to)?, ahead })
}

/// Parses a number, or a time with a unit. A time is returned in microseconds.
fn parse_value(word: &str) -> Result<u64, String> {
    number(word).or_else(|_| parse_span(word))
}

/// Parses a time such as `1.5`, `+.010`, `+10ms` or `+.2~.05`.
fn parse_time(word: &str) -> Result<Time, String> {
    let (time, slack) = word.split_once('~').unwrap_or((word, "0"));
    let (relative, time) = time.strip_prefix('+').map_or((false, time), |time| (true, time));
    Ok(Time { relative, us: parse_span(time)?, slack_us: parse_span(slack)? })
}

/// Parses seconds, or a number with a unit (`us`, `ms`, `s`). Returns microseconds.
pub(crate) fn parse_span(word: &str) -> Result<u64, String> {
    let units = [("us", 0), ("ms", 3), ("s", 6), ("", 6)];
    let found = units.into_iter().find_map(|(unit, digits)| Some((word.strip_suffix(unit)?, digits)));
    let (value, digits) = found.unwrap_or((word, 6));
    let (whole, part) = value.split_once('.').unwrap_or((value, ""));
    let wrong = || format!("`{word}` is no time");
    if part.len() > digits || value.is_empty() || value == "." {
        return Err(wrong());
    }
    format!("{whole}{part:0<digits$}").parse().map_err(|_| wrong())
}
