//! Streaming mode before MPA, and the switch to MPA on the same connection (RFC 5044 sections 7.1, 7.1.3).
//!
//! Both buffers are bounded. When the receive buffer is full, the window of TCP closes. When the send buffer
//! is full, sends are refused until there is space.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::verbs::engine_handle::EngineHandle;
use crate::verbs::{QueuePair, VerbsError};

use super::identifier::{CmCommand, CmPhase};
use super::{CmId, ConnParam, ResponderOptions, StreamOptions};

/// The bytes of streaming mode that a user and its engine exchange: the received bytes, and the bytes to
/// send.
pub(crate) struct PlainBytes {
    buffers: Mutex<Buffers>,
    /// Whether the engine was notified and has not checked the buffers since.
    notified: AtomicBool,
}

struct Buffers {
    recv: VecDeque<u8>,
    send: VecDeque<u8>,
    /// Number of bytes that TCP has consumed from `send` so far, which is the position of the front of `send`
    /// in the user's stream.
    taken: u64,
    limits: StreamOptions,
    /// Whether the peer has closed, so that no bytes follow those in `recv`.
    ended: bool,
    /// Whether `StreamReadable` was reported for the bytes in `recv`.
    announced: bool,
    /// Whether a call has not accepted all its bytes, so that `StreamWritable` has to be reported.
    refused: bool,
}

/// The result of [`CmId::recv_stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRead {
    /// This many bytes were read.
    Bytes(usize),
    /// No bytes wait; `StreamReadable` follows when bytes arrive or the peer closes.
    Empty,
    /// The peer has closed, and all bytes were read.
    Ended,
}

impl PlainBytes {
    /// Allocates both buffers.
    pub(crate) fn new(limits: StreamOptions) -> Arc<Self> {
        let buffers = Buffers {
            recv: VecDeque::with_capacity(limits.recv_bytes),
            send: VecDeque::with_capacity(limits.send_bytes),
            taken: 0,
            limits,
            ended: false,
            announced: false,
            refused: false,
        };
        Arc::new(Self { buffers: Mutex::new(buffers), notified: AtomicBool::new(false) })
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().expect("no holder of this lock panics")
    }

    // ---- for the engine ----

    /// Called when the engine checks the buffers. From then on, the next change notifies the engine again.
    pub(crate) fn answer(&self) {
        self.notified.store(false, Ordering::Release);
    }

    /// Adds as many received bytes as fit into the user's buffer. Returns their number.
    pub(crate) fn fill(&self, bytes: &[u8]) -> usize {
        let mut buffers = self.buffers();
        let taken = bytes.len().min(buffers.limits.recv_bytes - buffers.recv.len());
        buffers.recv.extend(&bytes[..taken]);
        taken
    }

    pub(crate) fn set_ended(&self) {
        self.buffers().ended = true;
    }

    /// Returns whether `StreamReadable` has to be reported now, and records the report.
    pub(crate) fn take_readable(&self) -> bool {
        let mut buffers = self.buffers();
        let waits = buffers.ended || !buffers.recv.is_empty();
        waits && !std::mem::replace(&mut buffers.announced, true)
    }

    /// Passes bytes of the user to `send`, from the front up to position `end` of the user's stream. Returns
    /// whether `send` has accepted all these bytes.
    pub(crate) fn take_for_tcp(&self, end: u64, mut send: impl FnMut(&[u8]) -> usize) -> bool {
        let mut buffers = self.buffers();
        loop {
            let left = usize::try_from(end.saturating_sub(buffers.taken)).unwrap_or(usize::MAX);
            let (front, _) = buffers.send.as_slices();
            let front = &front[..front.len().min(left)];
            if front.is_empty() {
                return true;
            }
            let taken = send(front);
            if taken == 0 {
                return false;
            }
            buffers.send.drain(..taken);
            buffers.taken += taken as u64;
        }
    }

    /// Returns whether `StreamWritable` has to be reported now, and records the report.
    pub(crate) fn take_writable(&self) -> bool {
        let mut buffers = self.buffers();
        let room = buffers.send.len() <= buffers.limits.send_bytes / 2;
        room && std::mem::take(&mut buffers.refused)
    }

    /// Removes and returns the bytes that the user has not read.
    pub(crate) fn take_unread(&self) -> VecDeque<u8> {
        let mut buffers = self.buffers();
        buffers.announced = false;
        let room = buffers.limits.recv_bytes;
        std::mem::replace(&mut buffers.recv, VecDeque::with_capacity(room))
    }

    // ---- for the user ----

    /// Accepts as many bytes as fit; returns their number.
    fn send(&self, bytes: &[u8]) -> usize {
        let mut buffers = self.buffers();
        let taken = bytes.len().min(buffers.limits.send_bytes - buffers.send.len());
        buffers.send.extend(&bytes[..taken]);
        buffers.refused |= taken < bytes.len();
        taken
    }

    /// Accepts all bytes, or none if they do not fit together. Returns whether the bytes were accepted.
    fn send_whole(&self, bytes: &[u8]) -> bool {
        let mut buffers = self.buffers();
        let fits = bytes.len() <= buffers.limits.send_bytes - buffers.send.len();
        if fits {
            buffers.send.extend(bytes);
        }
        fits
    }

    fn recv(&self, out: &mut [u8]) -> StreamRead {
        let mut buffers = self.buffers();
        let taken = out.len().min(buffers.recv.len());
        for (place, byte) in out.iter_mut().zip(buffers.recv.drain(..taken)) {
            *place = byte;
        }
        // Once the buffer is empty, the next bytes, or the end of the stream, need a new event.
        buffers.announced &= !buffers.recv.is_empty() || (buffers.ended && taken == 0);
        match taken {
            0 if buffers.ended => StreamRead::Ended,
            0 => StreamRead::Empty,
            taken => StreamRead::Bytes(taken),
        }
    }

    /// Returns the position in the user's stream after the bytes sent so far.
    fn end(&self) -> u64 {
        let buffers = self.buffers();
        buffers.taken + buffers.send.len() as u64
    }

    fn unread(&self) -> usize {
        self.buffers().recv.len()
    }
}

impl CmId {
    /// Connects to `remote` in streaming mode. Plain bytes flow in both directions until one side starts MPA
    /// as initiator and the other as responder. A `StreamEstablished` or `ConnectError` event follows. Of
    /// `param`, only the engine, the local port, the timeout, the keepalive policy and the idle timeout are
    /// used. This idle timeout applies only in streaming mode.
    ///
    /// # Errors
    /// [`VerbsError`] if the identifier is in use, a parameter is out of range, or there is no engine.
    pub fn connect_stream(
        &self,
        remote: SocketAddr,
        options: StreamOptions,
        param: &ConnParam,
    ) -> Result<(), VerbsError> {
        param.check()?;
        options.check()?;
        let engine = self.shared.context.engine(param.engine)?;
        let mut state = self.shared.state();
        if !matches!(state.phase, CmPhase::Idle) {
            return Err(super::in_use());
        }
        let stream = PlainBytes::new(options);
        state.stream = Some(Arc::clone(&stream));
        state.phase = CmPhase::Connected { engine: Arc::clone(&engine) };
        drop(state);
        let id = Arc::clone(&self.shared);
        engine.command(CmCommand::ConnectStream { id, stream, remote, param: Box::new(param.clone()) });
        Ok(())
    }

    /// Sends bytes in streaming mode. Returns the number of accepted bytes. If not all were accepted, a
    /// [`StreamWritable`](super::CmEventKind::StreamWritable) event follows.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the connection is not in streaming mode, or the user has closed it.
    pub fn send_stream(&self, bytes: &[u8]) -> Result<usize, VerbsError> {
        let (engine, stream) = self.shared.state().streaming()?;
        let taken = stream.send(bytes);
        self.notify(&engine, &stream);
        Ok(taken)
    }

    /// Reads bytes that the peer sent in streaming mode.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the connection is not in streaming mode.
    pub fn recv_stream(&self, out: &mut [u8]) -> Result<StreamRead, VerbsError> {
        let (engine, stream) = self.shared.state().readable()?;
        let read = stream.recv(out);
        if matches!(read, StreamRead::Bytes(_)) {
            self.notify(&engine, &stream);
        }
        Ok(read)
    }

    /// Starts MPA as initiator on a connection in streaming mode. The Request follows the bytes sent so far,
    /// and no more bytes can be sent in streaming mode. The events are those of [`connect`](Self::connect).
    /// Each side has to know that the other side starts MPA now: if the peer sends more bytes in streaming
    /// mode, these bytes end the connection (MPA's error code 4).
    ///
    /// # Errors
    /// [`VerbsError`] if the connection is not in streaming mode, some bytes of the peer are unread, the
    /// queue pair is not idle or of another context, a parameter is out of range, or a limit is reached.
    pub fn start_initiator(&self, qp: &QueuePair, param: &ConnParam) -> Result<(), VerbsError> {
        param.check_for(qp)?;
        let mut state = self.shared.state();
        let (engine, stream) = state.streaming()?;
        if stream.unread() > 0 {
            return Err(VerbsError::Invalid(
                "bytes of the peer are unread: read them before MPA starts".into(),
            ));
        }
        qp.shared.reserve(
            &self.shared.context.resources,
            engine.doorbells(),
            param.mpa_config(true).max_ird,
        )?;
        state.qp = Some(Arc::downgrade(&qp.shared));
        let after = stream.end();
        state.phase = CmPhase::Connected { engine: Arc::clone(&engine) };
        drop(state);
        let (id, qp) = (Arc::clone(&self.shared), Arc::clone(&qp.shared));
        engine.command(CmCommand::StartInitiator { id, qp, param: Box::new(param.clone()), after });
        Ok(())
    }

    /// Starts MPA as responder on a connection in streaming mode, after sending `last_message`. These bytes,
    /// which may be empty, can be a request to the peer to send its Request (RFC 5044 section 7.1.5). Unread
    /// bytes of the peer belong to the Request. A `ConnectRequest` or `ConnectError` event follows.
    ///
    /// # Errors
    /// [`VerbsError`] if the connection is not in streaming mode, `last_message` does not fit the send buffer
    /// as a whole, or a parameter is out of range.
    pub fn start_responder(&self, last_message: &[u8], options: &ResponderOptions) -> Result<(), VerbsError> {
        options.check()?;
        let mut state = self.shared.state();
        let (engine, stream) = state.streaming()?;
        if !stream.send_whole(last_message) {
            return Err(VerbsError::QueueFull("stream send"));
        }
        let after = stream.end();
        state.phase = CmPhase::Awaiting { engine: Arc::clone(&engine) };
        drop(state);
        let id = Arc::clone(&self.shared);
        engine.command(CmCommand::StartResponder { id, options: Box::new(options.clone()), after });
        Ok(())
    }

    fn notify(&self, engine: &EngineHandle, stream: &PlainBytes) {
        if !stream.notified.swap(true, Ordering::AcqRel) {
            engine.command(CmCommand::PlainBytes { id: Arc::clone(&self.shared) });
        }
    }
}
