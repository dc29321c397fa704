//! Measures the work that is left at a receiver when a hole is filled, in real time.
//!
//! One segment is withheld until the receiver has received all later segments, and is then delivered. The
//! measured time is from the arrival of this segment to the last completion that the arrival allows. An
//! application sees this time in addition to the network's delay. Without markers, all bytes beyond the hole
//! are checked and copied during this time, so there is a burst of work. The wire is a queue in memory, one
//! core polls the receiver, and the sender receives nothing until the end.

use std::time::Instant;

use iwarp::memory::{Access, Base};
use iwarp::verbs::{MemoryRegion, MrOptions, RecvRequest, RemoteAddr, SendOp, SendRequest, WcStatus};
use tcp_lite::{Duration, TcpConfig};

use super::hosts::{Connected, Hosts, HostsConfig};
use super::{Quantiles, text};
use testkit::packet::parse;

const LOCAL_PORT: u16 = 40_000;

/// Length in bytes of a message.
const MESSAGE: usize = 64 << 10;

/// Length in bytes of the Send that announces a message.
const NOTE: usize = 8;

/// Maximum number of polls until the sender has sent its window, and until both hosts have delivered a round
/// of messages.
const TURNS: u32 = 100_000;

/// The parameters of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct FillSetting {
    /// MTU in bytes.
    pub mtu: u16,
    /// Payload in bytes beyond the hole. The length is rounded up to messages of 64 KiB. Each message is an
    /// RDMA Write followed by a Send.
    pub behind: usize,
    /// Whether the receiver asks for markers.
    pub markers: bool,
}

/// Two hosts with enough buffers for the measurement.
pub struct Fill {
    hosts: Hosts,
    connected: Connected,
    source: MemoryRegion,
    sink: MemoryRegion,
    messages: usize,
    posted: u64,
    completed: u64,
}

impl Fill {
    /// Connects the hosts, and opens the sender's window.
    ///
    /// # Errors
    /// If the hosts cannot be connected, or the first messages are not delivered.
    pub fn new(setting: &FillSetting) -> Result<Self, String> {
        let messages = setting.behind.div_ceil(MESSAGE);
        let window = (messages * MESSAGE * 2).max(1 << 20) as u32;
        // With such long timers, no timer handles the silence as a loss.
        let never = Duration::from_secs(1000);
        let tcp = TcpConfig {
            recv_window_bytes: window,
            send_buffer_bytes: window,
            rto_min: never,
            rto_max: never,
            tail_probe_min: never,
            user_timeout: Duration::from_secs(4000),
            ..TcpConfig::default()
        };
        let mbufs = (window as usize / usize::from(setting.mtu)).next_power_of_two() * 4;
        let mut hosts = Hosts::new(&HostsConfig { mtu: setting.mtu, mbufs, tcp, seed: 1, exchange_us: 1 })?;
        let connected = hosts.connect(LOCAL_PORT, setting.markers, &mut |_, _| ())?;
        let options =
            MrOptions { base: Base::Zero, ..MrOptions::new(Access::LOCAL_WRITE | Access::REMOTE_WRITE) };
        let bytes = (messages + 1) * MESSAGE;
        let source = hosts.hosts[0].pd.reg_mr_with(bytes, &options).map_err(text)?;
        let sink = hosts.hosts[1].pd.reg_mr_with(bytes, &options).map_err(text)?;
        let mut fill = Self { hosts, connected, source, sink, messages, posted: 0, completed: 0 };
        // The congestion window opens while these messages arrive.
        for _ in 0..4 {
            fill.post()?;
            fill.settle()?;
        }
        Ok(fill)
    }

    /// Posts a round of messages.
    fn post(&mut self) -> Result<(), String> {
        let [sender, receiver] = &self.connected.qps;
        let notes = self.messages * MESSAGE;
        for message in 0..self.messages {
            let at = message * MESSAGE;
            let note = self.sink.sge(notes + message * NOTE, NOTE);
            receiver.post_recv(&RecvRequest::new(self.posted, note)).map_err(text)?;
            let remote = RemoteAddr { addr: at as u64, rkey: self.sink.rkey() };
            let write = SendRequest::new(self.posted, SendOp::Write { remote }, self.source.sge(at, MESSAGE));
            sender.post_send(&write).map_err(text)?;
            let told = SendRequest::new(self.posted, SendOp::Send, self.source.sge(notes, NOTE));
            sender.post_send(&told).map_err(text)?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Polls completions. Returns whether the receiver has received all messages.
    fn complete(&mut self) -> Result<bool, String> {
        for side in [0, 1] {
            while let Some(wc) = self.hosts.hosts[side].cq.poll_one() {
                if wc.status != WcStatus::Success {
                    return Err(format!("a request failed: {wc:?}"));
                }
                self.completed += side as u64;
            }
        }
        Ok(self.completed == self.posted)
    }

    /// Polls both hosts until all messages are delivered and acknowledged.
    fn settle(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..TURNS {
            let mut frames = 0;
            self.hosts.exchange(&mut |_, _| frames += 1);
            // The receiver may delay its last acknowledgement.
            let done = self.complete()?;
            quiet = if done && frames == 0 { quiet + 1 } else { 0 };
            if quiet > 10 {
                self.hosts.now_us += TcpConfig::default().delayed_ack.total_micros();
                self.hosts.exchange(&mut |_, _| ());
                self.hosts.exchange(&mut |_, _| ());
                return Ok(());
            }
        }
        Err(format!("only {} of {} messages were delivered", self.completed, self.posted))
    }

    /// Makes and fills one hole. Returns the time from the missing segment's arrival to the last completion,
    /// in nanoseconds.
    ///
    /// # Errors
    /// If the sender's window is too small, or if a message is not delivered.
    pub fn once(&mut self) -> Result<u64, String> {
        self.post()?;
        let mut frames = Vec::new();
        let mut silent = 0;
        for _ in 0..TURNS {
            self.hosts.now_us += 1;
            let busy = self.hosts.hosts[0].poll_us(self.hosts.now_us);
            let sent = self.hosts.sockets[0].take_sent();
            silent = if busy || !sent.is_empty() { 0 } else { silent + 1 };
            frames.extend(sent.into_iter().filter(|frame| parse(frame).is_some_and(|tcp| !tcp.is_empty())));
            if silent > 100 {
                break;
            }
        }
        let payload: usize = frames.iter().filter_map(|frame| parse(frame)).map(|tcp| tcp.len()).sum();
        if payload < self.messages * MESSAGE {
            return Err(format!("the sender's window holds {payload} bytes"));
        }
        let missing = frames.remove(0);
        for burst in frames.chunks(dp::BURST) {
            self.hosts.now_us += 1;
            burst.iter().for_each(|frame| self.hosts.sockets[1].deliver(frame.clone()));
            while self.hosts.hosts[1].poll_us(self.hosts.now_us) {}
            // The acknowledgements that the receiver sends because of the hole never reach the sender.
            self.hosts.sockets[1].take_sent();
        }
        let before = self.completed;
        if self.complete()? || self.completed != before {
            return Err("a message was delivered before the hole was filled".into());
        }
        self.hosts.now_us += 1;
        self.hosts.sockets[1].deliver(missing);
        let start = Instant::now();
        while !self.complete()? {
            if !self.hosts.hosts[1].poll_us(self.hosts.now_us) {
                return Err("the hole was filled, but a message is missing".into());
            }
        }
        let took = start.elapsed();
        for frame in self.hosts.sockets[1].take_sent() {
            self.hosts.sockets[0].deliver(frame);
        }
        self.settle()?;
        Ok(took.as_nanos() as u64)
    }

    /// Measures this many holes, one after the other.
    ///
    /// # Errors
    /// The same errors as [`once`](Self::once).
    pub fn measure(&mut self, holes: usize) -> Result<Quantiles, String> {
        let mut values = Quantiles::default();
        for _ in 0..holes {
            values.add(self.once()?);
        }
        Ok(values)
    }
}
