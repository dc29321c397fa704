//! A burst of frames as messages for `sendmmsg`. The kernel reads packet buffers and external memory in
//! place.

use std::os::fd::BorrowedFd;

use libc::{iovec, mmsghdr, msghdr};
use rustix::io::Errno;

use super::sys;
use super::vnet::{self, VNET_BYTES};
use crate::mbuf::MAX_SEGMENTS;
use crate::{BURST, Burst};

/// The memory of the messages of a burst. The memory is allocated once.
pub(super) struct TxBatch {
    /// The virtio headers, one for each message.
    headers: Box<[[u8; VNET_BYTES]; BURST]>,
    /// The parts of all messages, one after another.
    parts: Vec<iovec>,
    messages: Vec<mmsghdr>,
    /// `true` if the socket expects virtio headers.
    has_headers: bool,
}

// SAFETY: only `send` uses the pointers in `parts` and `messages`, and each call sets new pointers. No thread
// uses the pointers between two calls.
unsafe impl Send for TxBatch {}

impl TxBatch {
    pub(super) fn new(has_headers: bool) -> Self {
        Self {
            headers: Box::new([[0; VNET_BYTES]; BURST]),
            // With this capacity `send` never allocates.
            parts: Vec::with_capacity(BURST * (MAX_SEGMENTS + 1)),
            messages: Vec::with_capacity(BURST),
            has_headers,
        }
    }

    /// Sends the frames in order. Returns the number of frames that the kernel has accepted, which is at
    /// least one. Returns an error if the kernel has refused the first frame.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, frames: &Burst) -> Result<usize, Errno> {
        self.parts.clear();
        self.messages.clear();
        for (frame, header) in frames.iter().zip(self.headers.iter_mut()) {
            let first = self.parts.len();
            if self.has_headers {
                *header = vnet::header(frame);
                self.parts.push(iovec { iov_base: header.as_mut_ptr().cast(), iov_len: VNET_BYTES });
            }
            frame.for_each_part(|start, bytes| {
                self.parts.push(iovec { iov_base: start.cast_mut().cast(), iov_len: bytes });
            });
            let mut message = mmsghdr { msg_hdr: no_message(), msg_len: 0 };
            message.msg_hdr.msg_iovlen = (self.parts.len() - first) as _;
            self.messages.push(message);
        }
        // The pointers are set after the loop, so that they are valid even if `parts` had moved.
        let mut part = self.parts.as_mut_ptr();
        for message in &mut self.messages {
            message.msg_hdr.msg_iov = part;
            part = part.wrapping_add(message.msg_hdr.msg_iovlen as _);
        }
        // SAFETY: each message refers to its own elements of `parts`. An element refers to a header in
        // `headers`, or to a part of a frame in `frames`. `frames` is borrowed, and the memory from
        // `for_each_part` is readable while the frame exists.
        unsafe { sys::send_messages(fd, &mut self.messages) }
    }
}

/// Makes a message without address, parts and control data.
fn no_message() -> msghdr {
    // SAFETY: all-zero bytes are valid for this C struct of numbers and raw pointers.
    unsafe { std::mem::zeroed() }
}
