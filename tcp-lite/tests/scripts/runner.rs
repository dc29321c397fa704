//! Runs a script line by line. Every sent segment has to match the next line with `>`, at the time of that
//! line.

use std::fmt::Display;

use tcp_lite::State;

use crate::machine::{Machine, Seen, arrow};
use crate::peer::OUR_PORT;
use crate::script::{Action, Call, Expect, Line, Script, Time};
use crate::segment::Segment;
use crate::settings::Settings;
use crate::wire;

/// Runs a script.
///
/// # Errors
/// The expected and the actual result, and a log of everything before it.
pub(crate) fn run(name: &str, text: &str) -> Result<(), String> {
    let script = Script::parse(text).map_err(|reason| format!("{name}: {reason}"))?;
    let settings = Settings::new(&script).map_err(|reason| format!("{name}: {reason}"))?;
    let machine = Machine::new(settings).map_err(|reason| format!("{name}: {reason}"))?;
    let mut runner = Runner { machine, last_us: 0, our_port_before: 0 };
    let source: Vec<&str> = text.lines().collect();
    let failed = |runner: &Runner, number: usize, reason: String| {
        let line = source.get(number - 1).map_or("", |line| line.trim());
        Err(format!(
            "{name}:{number}: {reason}\n  the line  {line}\nwhat happened\n{}",
            runner.machine.transcript
        ))
    };
    for line in &script.lines {
        if let Err(reason) = runner.line(line) {
            return failed(&runner, line.number, reason);
        }
    }
    match runner.end() {
        Ok(()) => Ok(()),
        Err(reason) => failed(&runner, source.len().max(1), reason),
    }
}

struct Runner {
    machine: Machine,
    /// The time of the previous line.
    last_us: u64,
    our_port_before: u16,
}

impl Runner {
    fn line(&mut self, line: &Line) -> Result<(), String> {
        let Time { relative, us, slack_us } = line.time;
        let at_us = if relative { self.last_us + us } else { us };
        if at_us < self.last_us {
            return Err("time goes back".into());
        }
        match &line.action {
            Action::Sends(expected) => self.sends(line.peer, expected, at_us, slack_us)?,
            Action::Expect(Expect::Quiet(span_us)) => {
                self.wait(at_us, true)?;
                self.wait(at_us + span_us, true)?;
                self.last_us = at_us + span_us;
            }
            action => {
                // An arrival is processed before the timers that are due at its time, and a check after them.
                // (A call polls the stack first, so these timers run before it.) Segments that are sent at
                // this time may be matched by later lines, but not after another arrival.
                let looks = matches!(action, Action::Expect(_));
                if at_us > self.machine.now_us || matches!(action, Action::Arrives(_)) {
                    self.nothing_sent()?;
                }
                self.machine.run_to(at_us, looks)?;
                if at_us > self.machine.now_us {
                    self.nothing_sent()?;
                }
                self.last_us = at_us;
                match action {
                    Action::Arrives(segment) => self.arrives(line.peer, segment)?,
                    Action::Call(call) => {
                        self.machine.note(&line.text);
                        self.call(line.peer, call)?;
                    }
                    Action::Expect(expect) => self.expect(line.peer, expect)?,
                    Action::Sends(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Advances the time. Checks that nothing is sent in this time.
    fn wait(&mut self, until_us: u64, inclusive: bool) -> Result<(), String> {
        self.machine.run_to(until_us, inclusive)?;
        self.nothing_sent()
    }

    fn nothing_sent(&self) -> Result<(), String> {
        match self.machine.sent.front() {
            Some(sent) => {
                let (at, arrow) = (seconds(sent.at_us), arrow('>', sent.peer));
                Err(mismatch(
                    "an unexpected segment",
                    "nothing is sent",
                    format!("{at} {arrow} {}", sent.segment),
                ))
            }
            None => Ok(()),
        }
    }

    fn sends(&mut self, peer: u8, expected: &Segment, at_us: u64, slack_us: u64) -> Result<(), String> {
        self.machine.run_to(at_us + slack_us, true)?;
        let wanted = format!("{} {} {expected}", seconds(at_us), arrow('>', peer));
        let Some(sent) = self.machine.sent.pop_front() else {
            return Err(mismatch("nothing was sent", wanted, "nothing"));
        };
        let came = format!("{} {} {}", seconds(sent.at_us), arrow('>', sent.peer), sent.segment);
        if sent.peer != peer {
            return Err(mismatch("a segment for another peer", wanted, came));
        }
        let difference = self.machine.peer(peer).difference(expected, &sent.segment, sent.at_us);
        if let Some(what) = difference {
            return Err(mismatch(what, wanted, came));
        }
        if sent.at_us.abs_diff(at_us) > slack_us {
            return Err(mismatch("another time", wanted, came));
        }
        self.last_us = sent.at_us;
        Ok(())
    }

    fn arrives(&mut self, peer: u8, segment: &Segment) -> Result<(), String> {
        let now_us = self.machine.now_us;
        let (raw, written) = self.machine.peer(peer).write(segment, now_us);
        self.machine.note(format_args!("{} {written}", arrow('<', peer)));
        let frame = raw.emit(&self.machine.settings.addresses);
        self.machine.arrives(&frame)
    }

    fn call(&mut self, peer: u8, call: &Call) -> Result<(), String> {
        let machine = &mut self.machine;
        let now = machine.now();
        // The stack receives the time first, as at the beginning of any poll.
        machine.stack.poll(now);
        match call {
            Call::Connect { ephemeral } => {
                self.our_port_before = machine.peer(peer).our_port;
                let remote = machine.remote(peer);
                let port = (!ephemeral).then_some(OUR_PORT);
                let conn = machine.stack.connect(now, remote, port).map_err(|error| error.to_string())?;
                machine.peer(peer).conn = Some(conn);
            }
            Call::Listen => {
                machine.stack.listen(OUR_PORT).map_err(|error| error.to_string())?;
            }
            Call::Send(segments) => {
                let conn = machine.conn(peer)?;
                for records in segments {
                    let len = records.iter().sum();
                    let bytes = machine.peer(peer).push(len);
                    let mut sender = machine.stack.sender(now, conn).map_err(|error| error.to_string())?;
                    let mut segment = sender.segment(0).map_err(|error| error.to_string())?;
                    let capacity = segment.capacity();
                    let room =
                        segment.append(len).ok_or_else(|| format!("a segment holds {capacity} bytes"))?;
                    room.copy_from_slice(&bytes);
                    segment.push();
                }
            }
            Call::Close => {
                let conn = machine.conn(peer)?;
                machine.stack.close(now, conn);
            }
            Call::Abort => {
                let conn = machine.conn(peer)?;
                machine.stack.abort(now, conn);
            }
            Call::Hold(bytes) => {
                let conn = machine.conn(peer)?;
                machine.stack.hold(conn, *bytes);
            }
            Call::Release(bytes) => {
                let conn = machine.conn(peer)?;
                machine.stack.release(conn, *bytes);
            }
            Call::Icmp { what, mtu, seq } => {
                let addresses = machine.settings.addresses;
                let peer = machine.peer(peer);
                let quoted = peer.packet_at(*seq).map(<[u8]>::to_vec);
                let quoted = quoted.unwrap_or_else(|| {
                    wire::made_up(&addresses, [peer.our_port, peer.port], peer.our_seq(*seq))
                });
                let frame = wire::icmp(&addresses, what, mtu.unwrap_or(0), &quoted);
                return machine.arrives(&frame.ok_or_else(|| format!("no ICMP error is called {what}"))?);
            }
            Call::Anew => machine.peer(peer).anew(),
        }
        machine.poll()
    }

    fn expect(&mut self, peer: u8, expect: &Expect) -> Result<(), String> {
        match expect {
            Expect::Received { from, to, ahead } => self.received(peer, *from, *to, *ahead),
            Expect::Event(event) => self.event(peer, event),
            Expect::State(expected) => same("another state", expected, &self.state(peer)),
            Expect::Value { name, value, slack } => {
                let came = self.value(peer, name)?;
                if came.abs_diff(*value) <= *slack {
                    return Ok(());
                }
                Err(mismatch("another value", format!("{name} = {value}"), format!("{name} = {came}")))
            }
            Expect::PortStep(step) => {
                let port = self.machine.peer(peer).our_port;
                let came = i64::from(port) - i64::from(self.our_port_before);
                if (came - step).rem_euclid(16_384) == 0 && port >= 49_152 {
                    return Ok(());
                }
                Err(mismatch("another port", format!("{step:+}"), format!("{came:+}: {port}")))
            }
            Expect::Refused(bytes) => {
                let conn = self.machine.conn(peer)?;
                let now = self.machine.now();
                match self.machine.stack.sender(now, conn).and_then(|mut sender| sender.segment(0).map(drop))
                {
                    Err(_) => Ok(()),
                    Ok(_) => Err(mismatch("nothing refused", format!("no send of {bytes}"), "it is taken")),
                }
            }
            Expect::Quiet(_) => Ok(()),
        }
    }

    /// Checks that one event, or several consecutive events, delivered the bytes `from..to` of the stream.
    fn received(&mut self, peer: u8, from: u64, to: u64, ahead: bool) -> Result<(), String> {
        let mut at = from;
        while at < to {
            let next = self
                .machine
                .seen
                .iter()
                .position(|(number, seen)| *number == peer && matches!(seen, Seen::Received { .. }));
            let came = next.map(|next| self.machine.seen.remove(next).1);
            match came {
                Some(Seen::Received { from, to: end, ahead: how })
                    if from == at && end <= to && how == ahead =>
                {
                    at = end;
                }
                came => {
                    let wanted = format!("received {from}..{to}{}", if ahead { " ahead" } else { "" });
                    return Err(mismatch("other bytes", wanted, format!("{came:?}")));
                }
            }
        }
        Ok(())
    }

    fn event(&mut self, peer: u8, event: &str) -> Result<(), String> {
        let kind = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        let next = self.machine.seen.iter().position(|(number, seen)| {
            *number == peer && matches!(seen, Seen::Plain(text) if kind(text) == kind(event))
        });
        let came = next.map(|next| self.machine.seen.remove(next).1);
        match came {
            Some(Seen::Plain(text)) => same("another event", event, &text),
            _ => Err(mismatch("no such event", event, "nothing")),
        }
    }

    fn state(&mut self, peer: u8) -> String {
        let conn = self.machine.peer(peer).conn;
        let info = conn.and_then(|conn| self.machine.stack.info(conn));
        let name = info.map_or("none", |info| match info.state {
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECEIVED",
            State::Established => "ESTABLISHED",
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
            State::Closed => "CLOSED",
        });
        name.to_owned()
    }

    /// Returns a value of the connection, or the value of one of the stack's counters.
    fn value(&mut self, peer: u8, name: &str) -> Result<u64, String> {
        let conn = self.machine.peer(peer).conn;
        let info = conn.and_then(|conn| self.machine.stack.info(conn));
        let of_connection = info.and_then(|info| match name {
            "cwnd" => Some(info.cwnd.into()),
            "ssthresh" => Some(info.ssthresh.into()),
            "rto" => Some(info.rto_us.into()),
            "srtt" => Some(info.srtt_us.into()),
            "emss" => Some(info.emss as u64),
            "unacked" => Some(info.unacknowledged),
            "frontier" => Some(info.frontier),
            _ => None,
        });
        let counters = format!("{:?}", self.machine.stack.counters());
        let counter =
            counters.split([' ', '{', '}', ',']).skip_while(|word| *word != format!("{name}:")).nth(1);
        of_connection
            .or_else(|| counter.and_then(|value| value.parse().ok()))
            .ok_or_else(|| format!("nothing is called {name}"))
    }

    /// Checks that every sent segment and every end of a connection was matched by a line.
    fn end(&mut self) -> Result<(), String> {
        self.nothing_sent()?;
        let closed = self.machine.seen.iter().find_map(|(_, seen)| match seen {
            Seen::Plain(text) if text.starts_with("closed") => Some(text.clone()),
            _ => None,
        });
        match closed {
            Some(text) => Err(mismatch("an unexpected event", "the connection stands", text)),
            None => Ok(()),
        }
    }
}

fn same(what: &str, expected: &str, came: &str) -> Result<(), String> {
    if expected == came { Ok(()) } else { Err(mismatch(what, expected, came)) }
}

fn mismatch(what: &str, expected: impl Display, came: impl Display) -> String {
    format!("{what}\n  expected  {expected}\n  came      {came}")
}

fn seconds(us: u64) -> String {
    format!("{:.6}", us as f64 / 1e6)
}
