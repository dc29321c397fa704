//! The user of the connection. Each byte that the user sends or expects is a function of the byte's offset in
//! the stream.

use tcp_lite::{CloseReason, ConnId, Event, Instant, Received, SendError, Stack};

use crate::sim::watch::Ranges;

/// Returns the byte at `offset` of the stream that `side` sends.
pub(super) fn byte(side: u8, offset: u64) -> u8 {
    testkit::stream::byte(offset.wrapping_add(u64::from(side)))
}

/// Returns `count` bytes, from `offset` on, of the stream that `side` sends.
pub(super) fn bytes(side: u8, offset: u64, count: usize) -> Vec<u8> {
    (offset..).take(count).map(|at| byte(side, at)).collect()
}

/// One side of the connection, as its user sees it.
#[derive(Default)]
pub(super) struct User {
    pub(super) conn: Option<ConnId>,
    pub(super) established: bool,
    /// Number of bytes passed to the stack.
    pub(super) sent: u64,
    pub(super) closing: bool,
    pub(super) aborted: bool,
    pub(super) got: Ranges,
    /// Number of bytes delivered but not released.
    pub(super) held: usize,
    /// Whether the user holds received bytes until the fuzz input releases them.
    pub(super) slow: bool,
    pub(super) peer_closed: bool,
    pub(super) over: Option<CloseReason>,
}

impl User {
    /// Whether the connection is established and not over.
    pub(super) fn is_alive(&self) -> bool {
        self.established && self.over.is_none()
    }

    /// Handles all events. `edge` is the highest right window edge that the stack has announced.
    pub(super) fn events(&mut self, stack: &mut Stack, edge: u64) {
        while let Some(event) = stack.event() {
            assert_eq!(self.over, None, "an event after Closed");
            let conn = match event {
                Event::Established { conn, .. } => {
                    assert!(!self.established, "established twice");
                    self.established = true;
                    self.conn.get_or_insert(conn);
                    conn
                }
                Event::Received { conn, received } => {
                    self.receive(stack, conn, received, edge);
                    conn
                }
                Event::Evict { conn, bytes } => {
                    self.give_up(stack, conn, bytes as u64);
                    conn
                }
                Event::Writable { conn } | Event::Acknowledged { conn } => conn,
                Event::AddressConflict { .. } | Event::Datagram => continue,
                Event::PeerClosed { conn } => {
                    assert!(!self.peer_closed, "the peer closed twice");
                    self.peer_closed = true;
                    conn
                }
                Event::Closed { conn, reason } => {
                    assert_eq!(self.aborted, reason == CloseReason::Aborted, "{reason}");
                    assert!(reason != CloseReason::Graceful || self.closing && self.peer_closed, "{reason}");
                    self.over = Some(reason);
                    conn
                }
            };
            assert_eq!(self.conn, Some(conn), "an event of another connection");
        }
    }

    /// Memory is low: drops at most `bytes` of the bytes that the user holds. The bytes furthest ahead of the
    /// next expected byte are dropped first. A user that is not slow holds no bytes.
    fn give_up(&mut self, stack: &mut Stack, conn: ConnId, bytes: u64) {
        let (mut left, frontier) = (if self.slow { bytes } else { 0 }, self.got.frontier());
        while left > 0
            && let Some((start, end)) = self.got.last().filter(|(start, _)| *start > frontier)
        {
            let bytes = (end - start).min(left).min(self.held as u64);
            if bytes == 0 || !stack.evict(conn, std::slice::from_ref(&(end - bytes..end))) {
                return;
            }
            self.got.remove(end - bytes, end);
            self.held -= bytes as usize;
            left -= bytes;
        }
    }

    fn receive(&mut self, stack: &mut Stack, conn: ConnId, received: Received, edge: u64) {
        assert!(self.established, "bytes before the connection is established");
        let Received { offset, buf, frontier } = received;
        let mut at = offset;
        for piece in buf.segments() {
            for &got in piece {
                assert_eq!(got, byte(0, at), "wrong byte {at}");
                at += 1;
            }
        }
        assert!(at > offset, "nothing was handed up");
        assert!(at <= edge, "bytes up to {at} handed up, the window ended at {edge}");
        assert_eq!(self.got.add(offset, at), 0, "bytes of {offset}..{at} were handed up before");
        assert_eq!(self.got.frontier(), frontier, "the frontier with {offset}..{at}");
        let (bytes, ahead) = ((at - offset) as usize, at > frontier);
        match (ahead, self.slow) {
            (true, false) => stack.release(conn, bytes),
            (true, true) => self.held += bytes,
            (false, true) => {
                stack.hold(conn, bytes);
                self.held += bytes;
            }
            (false, false) => {}
        }
    }

    /// Releases at most `bytes` of the received bytes that the user holds.
    pub(super) fn release(&mut self, stack: &mut Stack, bytes: usize) {
        let Some(conn) = self.conn.filter(|_| self.is_alive()) else { return };
        let bytes = bytes.min(self.held);
        self.held -= bytes;
        stack.release(conn, bytes);
    }

    /// Sends at most `bytes_wanted` bytes, in records of `record` bytes or as a plain stream. Returns the end
    /// of each record. For a plain stream, returns the end of each full segment and the end of the bytes that
    /// each call of the stack took.
    pub(super) fn send(
        &mut self,
        stack: &mut Stack,
        now: Instant,
        bytes_wanted: usize,
        record: Option<usize>,
    ) -> Vec<u64> {
        let mut borders = Vec::new();
        let Some(conn) = self.conn.filter(|_| self.is_alive()) else { return borders };
        let Some(emss) = stack.info(conn).map(|info| info.emss as u64) else { return borders };
        let end = self.sent + bytes_wanted as u64;
        while self.sent < end {
            let count = (end - self.sent) as usize;
            let taken = match record {
                None => stack.send(now, conn, &bytes(1, self.sent, count)),
                Some(record) => stack.sender(now, conn).and_then(|mut sender| {
                    let mut segment = sender.segment(0)?;
                    let count = count.min(record).min(segment.capacity());
                    let room = segment.append(count).expect("room for a segment");
                    room.copy_from_slice(&bytes(1, self.sent, count));
                    segment.push();
                    Ok(count)
                }),
            };
            match taken {
                Ok(taken) => {
                    let (from, to) = (self.sent, self.sent + taken as u64);
                    self.sent = to;
                    if record.is_none() {
                        borders.extend((from..to).step_by(emss as usize).skip(1));
                    }
                    borders.push(to);
                }
                Err(error) => {
                    assert_eq!(error == SendError::Closed, self.closing, "{error}");
                    break;
                }
            }
        }
        borders
    }
}
