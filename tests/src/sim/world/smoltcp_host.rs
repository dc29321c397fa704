//! A host with smoltcp's own TCP sockets, as an independent peer.

use std::collections::{HashMap, HashSet};

use dp::Port;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpAddress, IpListenEndpoint};

use crate::port_device::PortDevice;
use crate::sim::port::mac;
use crate::sim::setup::{HostSetup, SmoltcpConfig, address, cidr};
use testkit::packet::{Tcp, flag, parse};

use super::streams::{End, Ending};

/// Maximum number of consecutive polls without a delay.
const POLLS: usize = 64;

/// Delay in microseconds of a poll for which smoltcp asks at once. Such a poll does not always do something.
const POLL_DELAY_US: u64 = 100;

/// The acknowledgement and the window of the last segment that reached smoltcp.
#[derive(Clone, Copy, Debug)]
struct LastAck {
    ack: u32,
    window: u16,
    /// Window scale of the SYN that preceded the segment.
    scale: u8,
    /// Number of bare segments that followed with the same acknowledgement and window.
    duplicates: u32,
}

struct Wire {
    device: PortDevice,
    /// The last bare segment sent from each port to each other port.
    last: HashMap<(u16, u16), Vec<u8>>,
    /// The sequence number of the FIN sent from each port to each other port.
    fins: HashMap<(u16, u16), u32>,
    /// The last acknowledgement that reached smoltcp, by the ports of the segments that smoltcp sends.
    last_acks: HashMap<(u16, u16), LastAck>,
    /// Pairs of ports whose connection a RST has ended. smoltcp answers all further segments only with a RST.
    reset: HashSet<(u16, u16)>,
}

impl Wire {
    /// Drops arriving bare segments that acknowledge all bytes of smoltcp's stream but not its FIN (sent from
    /// port `ports.0` to port `ports.1`). smoltcp must have received this acknowledgement before. At the
    /// third such segment, smoltcp would drop its timer and never retransmit the FIN. The peer may have
    /// refused the FIN because it was late (RFC 5961 section 5.2).
    fn drop_duplicate_acks_of_fin(&mut self, ports: (u16, u16)) {
        let Some(&fin) = self.fins.get(&ports) else { return };
        let only_duplicates =
            |tcp: &Tcp| (tcp.dst_port, tcp.src_port) == ports && tcp.is_bare() && tcp.ack == fin;
        self.device.retain(|frame| !parse(frame).is_some_and(|tcp| only_duplicates(&tcp)));
    }

    /// Drops a bare segment that has the same acknowledgement and window as the three segments before it, if
    /// the `unacknowledged` bytes from port `ports.0` to port `ports.1` exceed this window. At such a
    /// segment, smoltcp would retransmit bytes beyond the window. The peer drops these bytes, but smoltcp
    /// counts them as sent, and has no timer for them after the window was closed.
    fn drop_duplicate_acks_beyond_window(&mut self, ports: (u16, u16), unacknowledged: usize) {
        let Self { device, last_acks, .. } = self;
        // smoltcp accepts no segment now. The first segment is counted when smoltcp accepts it.
        if device.is_full() {
            return;
        }
        let mut keeps = |frame: &[u8]| {
            let of_it = |tcp: &Tcp| (tcp.dst_port, tcp.src_port) == ports && tcp.has(flag::ACK);
            let Some(tcp) = parse(frame).filter(of_it) else {
                return true;
            };
            let before = last_acks.get(&ports).copied();
            let scale = match before {
                Some(before) if !tcp.has(flag::SYN) => before.scale,
                _ => tcp.window_scale(frame).unwrap_or(0),
            };
            let same =
                before.filter(|before| tcp.is_bare() && (before.ack, before.window) == (tcp.ack, tcp.window));
            let duplicates = same.map_or(0, |same| same.duplicates + 1);
            let keep = duplicates < 3 || unacknowledged <= usize::from(tcp.window) << scale;
            if keep {
                last_acks.insert(ports, LastAck { ack: tcp.ack, window: tcp.window, scale, duplicates });
            }
            keep
        };
        // The check stops at the segment that smoltcp receives next.
        let mut kept = false;
        device.retain(|frame| {
            kept = kept || keeps(frame);
            kept
        });
    }

    /// Drops segments from port `ports.1` to port `ports.0` for a connection of smoltcp that is over. Answers
    /// each dropped segment that has payload, SYN or FIN (for example a late SYN-ACK) with the last
    /// acknowledgement, as TIME-WAIT does (RFC 9293 section 3.10.7.4). Bare acknowledgements and RSTs get no
    /// answer. A SYN without ACK is not dropped, since it may open another connection. A RST with the next
    /// expected sequence number ends TIME-WAIT.
    fn answer_as_time_wait(&mut self, ports: (u16, u16)) {
        let Self { device, last, reset, .. } = self;
        if reset.contains(&ports) {
            return;
        }
        let mut ended = false;
        let mut answers = Vec::new();
        device.retain(|frame| {
            let opens = |tcp: &Tcp| tcp.has(flag::SYN) && !tcp.has(flag::ACK);
            let of_it = |tcp: &Tcp| (tcp.dst_port, tcp.src_port) == ports && !opens(tcp);
            let Some(tcp) = parse(frame).filter(of_it).filter(|_| !ended) else {
                return true;
            };
            let next = last.get(&ports).and_then(|answer| parse(answer)).map(|answer| answer.ack);
            ended |= tcp.has(flag::RST) && next == Some(tcp.seq);
            let comes_again = !tcp.is_bare() && !tcp.has(flag::RST);
            answers.extend(last.get(&ports).filter(|_| comes_again));
            false
        });
        answers.into_iter().for_each(|answer| device.send(answer));
        if ended {
            reset.insert(ports);
        }
    }

    /// Records the segments that smoltcp has sent.
    fn note_sent(&mut self) {
        let Self { device, last, fins, .. } = self;
        for frame in device.waiting() {
            let Some(tcp) = parse(&frame) else { continue };
            let ports = (tcp.src_port, tcp.dst_port);
            if tcp.is_bare() {
                last.insert(ports, frame.into_owned());
            } else if tcp.has(flag::FIN) {
                fins.insert(ports, tcp.seq.wrapping_add(tcp.len() as u32));
            }
        }
    }
}

pub(super) struct SmoltcpHost {
    side: usize,
    ipv6: bool,
    interface: Interface,
    sockets: SocketSet<'static>,
    handles: Vec<SocketHandle>,
    wire: Wire,
    pub(super) ends: Vec<End>,
    started: bool,
}

impl SmoltcpHost {
    pub(super) fn new(
        side: usize,
        setup: &HostSetup,
        smoltcp: SmoltcpConfig,
        port: Box<dyn Port>,
        ends: Vec<End>,
    ) -> Result<Self, String> {
        let mut wire = Wire {
            device: PortDevice::new(port),
            last: HashMap::new(),
            fins: HashMap::new(),
            last_acks: HashMap::new(),
            reset: HashSet::new(),
        };
        let mut config = Config::new(EthernetAddress(mac(side)).into());
        config.random_seed = u64::from_le_bytes(*setup.key.first_chunk().ok_or("a key has 32 bytes")?);
        let mut interface = Interface::new(config, &mut wire.device, Instant::ZERO);
        let address = cidr(side, setup.ipv6).parse().map_err(|()| "an address")?;
        interface.update_ip_addrs(|own| own.extend([address]));
        let mut sockets = SocketSet::new(Vec::new());
        let handles = ends
            .iter()
            .map(|end| {
                let ring = |bytes: usize| tcp::SocketBuffer::new(vec![0; bytes]);
                let mut socket = tcp::Socket::new(ring(smoltcp.rx_bytes), ring(smoltcp.tx_bytes));
                socket.set_nagle_enabled(smoltcp.nagle);
                if smoltcp.cubic {
                    socket.set_congestion_control(tcp::CongestionControl::Cubic);
                }
                if end.aborts {
                    socket.set_keep_alive(Some(Duration::from_secs(2)));
                }
                sockets.add(socket)
            })
            .collect();
        Ok(Self { side, ipv6: setup.ipv6, interface, sockets, handles, wire, ends, started: false })
    }

    fn start(&mut self) -> Result<(), String> {
        self.started = true;
        for (end, handle) in self.ends.iter().zip(&self.handles) {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(*handle);
            if end.opens {
                let remote = IpAddress::from(address(1 - self.side, self.ipv6));
                socket
                    .connect(self.interface.context(), (remote, end.server_port()), end.port)
                    .map_err(|error| error.to_string())?;
            } else {
                socket
                    .listen(IpListenEndpoint::from(end.server_port()))
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    pub(super) fn poll(&mut self, now_us: u64) -> Result<bool, String> {
        let mut busy = !self.started;
        if !self.started {
            self.start()?;
        }
        for _ in 0..POLLS {
            let mut worked = self.wire.device.poll_at(now_us);
            self.receive_frames(now_us);
            for number in 0..self.ends.len() {
                worked |= self.work(number, now_us)?;
            }
            let now = Instant::from_micros(now_us as i64);
            self.interface.poll(now, &mut self.wire.device, &mut self.sockets);
            self.wire.note_sent();
            worked |= self.wire.device.poll_at(now_us);
            busy |= worked;
            if !worked {
                break;
            }
        }
        Ok(busy)
    }

    /// Passes frames to smoltcp one by one, and sends its answers.
    fn receive_frames(&mut self, now_us: u64) {
        let now = Instant::from_micros(now_us as i64);
        loop {
            self.extend_time_wait();
            self.spare();
            let first = self.wire.device.arrived().next();
            let reset = first.and_then(|frame| parse(&frame)).filter(|tcp| tcp.has(flag::RST));
            let taken = self.interface.poll_ingress_single(now, &mut self.wire.device, &mut self.sockets);
            self.wire.note_sent();
            if let Some(tcp) = reset {
                self.note_reset((tcp.dst_port, tcp.src_port));
            }
            if taken == PollIngressSingleResult::None {
                break;
            }
        }
        self.interface.poll(now, &mut self.wire.device, &mut self.sockets);
        self.wire.note_sent();
    }

    /// Handles a RST from port `ports.1` to port `ports.0`: records whether it has ended the connection.
    fn note_reset(&mut self, ports: (u16, u16)) {
        let mut ends = self.ends.iter().zip(&self.handles);
        let of_it = ends.find(|(end, _)| end.ports(self.side) == ports);
        let state = of_it.map(|(_, handle)| self.sockets.get::<tcp::Socket<'_>>(*handle).state());
        if state == Some(tcp::State::Closed) {
            self.wire.reset.insert(ports);
        }
    }

    fn spare(&mut self) {
        for (end, handle) in self.ends.iter().zip(&self.handles) {
            let socket = self.sockets.get::<tcp::Socket<'_>>(*handle);
            let closing =
                matches!(socket.state(), tcp::State::FinWait1 | tcp::State::Closing | tcp::State::LastAck);
            if closing && socket.send_queue() == 0 {
                self.wire.drop_duplicate_acks_of_fin(end.ports(self.side));
            }
            self.wire.drop_duplicate_acks_beyond_window(end.ports(self.side), socket.send_queue());
        }
    }

    /// Extends smoltcp's TIME-WAIT from the moment at which the socket is closed. Therefore smoltcp does not
    /// answer a segment with a RST. smoltcp's own TIME-WAIT ends after ten seconds, and a timer of the peer
    /// may expire later. The user gets the event of the end later, and may still have to read bytes.
    fn extend_time_wait(&mut self) {
        for (end, handle) in self.ends.iter().zip(&self.handles) {
            let closed = self.sockets.get::<tcp::Socket<'_>>(*handle).state() == tcp::State::Closed;
            if closed && end.closing && end.over != Some(Ending::Reset) {
                self.wire.answer_as_time_wait(end.ports(self.side));
            }
        }
    }

    fn work(&mut self, number: usize, now_us: u64) -> Result<bool, String> {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handles[number]);
        let end = &mut self.ends[number];
        if end.over.is_some() {
            return Ok(false);
        }
        let mut busy = false;
        if !end.established && socket.may_send() {
            end.established = true;
            end.step();
            busy = true;
        }
        busy |= read(socket, end, now_us)?;
        if !end.peer_closed && end.established && !socket.may_recv() && !socket.can_recv() {
            let aborted = end.aborts && socket.state() == tcp::State::Closed;
            if !aborted {
                end.on_peer_closed()?;
                busy = true;
            }
        }
        if end.wants_abort() {
            socket.abort();
            end.on_over(Ending::Reset, "aborted")?;
            return Ok(true);
        }
        while socket.can_send() && end.sent < end.plan.bytes {
            let bytes = end.next_bytes(1 << 15);
            let taken = socket.send_slice(&bytes).map_err(|error| error.to_string())?;
            end.sent += taken as u64;
            busy |= taken > 0;
        }
        if end.wants_close() {
            end.closing = true;
            socket.close();
            busy = true;
        }
        // A closed socket may have unread bytes.
        let closed = matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait);
        if end.established && closed && !socket.can_recv() {
            let graceful = end.peer_closed && end.closing;
            end.on_over(if graceful { Ending::Graceful } else { Ending::Reset }, "the socket is closed")?;
            busy = true;
        }
        Ok(busy)
    }

    pub(super) fn next_us(&mut self, now_us: u64) -> Option<u64> {
        if !self.started {
            return Some(now_us);
        }
        let poll = self.interface.poll_at(Instant::from_micros(now_us as i64), &self.sockets);
        let poll_us = poll.map(|at| (at.total_micros() as u64).max(now_us + POLL_DELAY_US));
        let waits = |handle: &SocketHandle| self.sockets.get::<tcp::Socket<'_>>(*handle).can_recv();
        let readers =
            self.ends.iter().zip(&self.handles).filter(|(end, handle)| end.over.is_none() && waits(handle));
        let reads = readers.map(|(end, _)| end.read_again_us).min();
        [poll_us, reads].into_iter().flatten().min()
    }
}

/// Reads as many bytes as the reader accepts now. Returns whether any byte was read.
fn read(socket: &mut tcp::Socket<'_>, end: &mut End, now_us: u64) -> Result<bool, String> {
    let mut left = match end.plan.reader {
        None => u64::MAX,
        // smoltcp drops unread bytes at the end of TIME-WAIT.
        Some(_) if socket.state() == tcp::State::TimeWait => u64::MAX,
        Some(_) if now_us < end.read_again_us => 0,
        Some(reader) => reader.bytes,
    };
    let mut busy = false;
    while left > 0 && socket.can_recv() {
        let mut bytes = vec![0; left.min(1 << 16) as usize];
        let taken = socket.recv_slice(&mut bytes).map_err(|error| error.to_string())?;
        if taken == 0 {
            break;
        }
        end.receive(end.got.frontier(), &bytes[..taken])?;
        end.read += taken as u64;
        left -= taken as u64;
        busy = true;
    }
    if let Some(reader) = end.plan.reader
        && busy
    {
        end.read_again_us = now_us + reader.every_us;
    }
    Ok(busy)
}
