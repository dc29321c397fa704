//! smoltcp's own TCP sockets, unmodified, below our MPA: one connection with Writes. One core drives both
//! sides over a wire in memory.
//!
//! | file | what |
//! |---|---|
//! | `buffers.rs` | FPDUs in the buffers of a socket, without a copy |
//!
//! The program is tuned as a user of smoltcp can tune it. Frames are built and read in packet buffers. The
//! client frames FPDUs and computes their CRCs while it copies the message into the socket's send buffer. The
//! server checks and places FPDUs directly from the socket's receive buffer. An FPDU that wraps in a buffer
//! is copied once more. There are no timestamps, no Nagle and no congestion control (no segment is lost), and
//! the buffers have the fastest of the tried sizes. There are no queue pairs, completions or registered
//! memory.

mod buffers;

use std::time::Duration;

use benches::errors::Error;
use dp::Clock;
use dp::link::{LinkConfig, pair};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use crate::fpdus::{Target, Writer};
use crate::pair::alternate::{Rate, TIME_LIMIT, timed};
use crate::pattern;
use testing::port_device::PortDevice;

use buffers::{drain, fill};

const PORT: u16 = 7471;

/// Number of bytes of each buffer of a socket. Sizes from 64 KiB to 2 MiB were tried. 64 KiB and 128 KiB were
/// the fastest, by a third, since larger buffers exceed the second-level cache.
const BUFFER_BYTES: usize = 128 << 10;

/// Number of polls of the hosts between two reads of the clock.
const POLLS: usize = 16;

/// An interface with one socket.
struct Host {
    device: PortDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl Host {
    fn new(port: Box<dyn dp::Port>, last: u8, seed: u64) -> Self {
        let mac = EthernetAddress(port.info().mac);
        let mut device = PortDevice::new(port);
        let mut config = Config::new(mac.into());
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let pushed = addresses.push(IpCidr::new(IpAddress::v4(10, 0, 0, last), 24));
            debug_assert!(pushed.is_ok(), "there is space for one address");
        });
        let buffer = || SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(CongestionControl::None);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self { device, interface, sockets, handle }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn poll(&mut self, now_us: u64) {
        self.device.poll_at(now_us);
        loop {
            self.interface.poll(Instant::from_micros(now_us as i64), &mut self.device, &mut self.sockets);
            let was_full = self.device.is_full();
            if !self.device.flush(now_us) || !was_full {
                break;
            }
        }
    }
}

/// Both hosts, their connection, and the message that is sent repeatedly.
pub(crate) struct Smoltcp {
    client: Host,
    server: Host,
    writer: Writer,
    target: Target,
    /// An FPDU that is not contiguous in the socket's buffer.
    apart: Vec<u8>,
    clock: Clock,
    paused_us: u64,
    stopped_us: u64,
}

impl Smoltcp {
    /// Connects two hosts over `link` for messages of `bytes` bytes.
    ///
    /// # Errors
    /// Returns [`Error::Silent`] if the hosts do not connect within the time limit, or [`Error::Exchange`] if
    /// a socket reports an error.
    pub(crate) fn connect(link: &LinkConfig, bytes: usize) -> Result<Self, Error> {
        let (client_port, server_port) = pair(link);
        let (mut client, mut server) = (Host::new(client_port, 2, 2), Host::new(server_port, 1, 1));
        let wrong = |what: String| Error::Exchange(what);
        server.socket().listen(PORT).map_err(|error| wrong(error.to_string()))?;
        let Host { interface, sockets, handle, .. } = &mut client;
        let socket = sockets.get_mut::<Socket<'_>>(*handle);
        socket
            .connect(interface.context(), (IpAddress::v4(10, 0, 0, 1), PORT), 49_152)
            .map_err(|error| wrong(error.to_string()))?;
        // Without timestamps, the payload of a segment has the MTU less an IPv4 header and a TCP header.
        let emss = usize::from(link.mtu) - 40;
        let mut stock = Self {
            client,
            server,
            writer: Writer::new(pattern::bytes(3, bytes), emss),
            target: Target::new(bytes),
            apart: Vec::with_capacity(1 << 16),
            clock: Clock::new(),
            paused_us: 0,
            stopped_us: 0,
        };
        stock.until("connecting", |stock| {
            stock.client.socket().may_send() && stock.server.socket().may_recv()
        })?;
        stock.stopped_us = stock.now_us();
        Ok(stock)
    }

    fn now_us(&self) -> u64 {
        self.clock.now_us() - self.paused_us
    }

    /// Polls each host once, and the server a second time if it has consumed bytes.
    fn poll(&mut self) -> Result<(), Error> {
        let now_us = self.now_us();
        fill(&mut self.writer, &mut self.apart, self.client.socket())?;
        self.client.poll(now_us);
        self.server.poll(now_us);
        if drain(&mut self.target, self.server.socket())? {
            // This poll tells the client that the window has opened again.
            self.server.poll(now_us);
        }
        Ok(())
    }

    fn until(&mut self, doing: &'static str, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), Error> {
        let start = std::time::Instant::now();
        while !done(self) {
            self.poll()?;
            if start.elapsed() > TIME_LIMIT {
                return Err(Error::Silent { doing, after: TIME_LIMIT });
            }
        }
        Ok(())
    }

    /// Continues for a time slice. Returns the number of bytes placed during the slice, and the duration of
    /// the slice.
    ///
    /// # Errors
    /// Returns [`Error::Exchange`] if an FPDU is wrong or a socket reports an error.
    pub(crate) fn run(&mut self, slice: Duration) -> Result<Rate, Error> {
        self.paused_us = self.clock.now_us() - self.stopped_us;
        self.writer.resume();
        let rate = timed(slice, || {
            let before = self.target.placed_bytes();
            for _ in 0..POLLS {
                self.poll()?;
            }
            Ok(self.target.placed_bytes() - before)
        })?;
        self.stopped_us = self.now_us();
        Ok(rate)
    }

    /// Checks the data apart from the measurement: finishes the messages in flight, then sends a message of
    /// new bytes, and checks every byte.
    ///
    /// # Errors
    /// Returns [`Error::Validation`] if a byte is wrong, [`Error::Silent`] if the message does not arrive
    /// within the time limit, or [`Error::Exchange`] if an FPDU is wrong or a socket reports an error.
    pub(crate) fn validate(mut self) -> Result<(), Error> {
        self.paused_us = self.clock.now_us() - self.stopped_us;
        self.writer.stop_at_end();
        self.until("finishing", |Self { writer, target, .. }| {
            writer.is_done() && target.placed_bytes() == writer.sent_bytes()
        })?;
        let expected = pattern::bytes(4, self.writer.message_bytes());
        self.target.clear();
        let whole = self.target.placed_bytes() + expected.len() as u64;
        self.writer.begin(expected.clone());
        self.until("writing", |stock| stock.target.placed_bytes() == whole)?;
        match pattern::difference(&expected, self.target.placed()) {
            None => Ok(()),
            Some(at) => Err(Error::Validation(format!("smoltcp: byte {at} differs from the byte sent"))),
        }
    }
}
