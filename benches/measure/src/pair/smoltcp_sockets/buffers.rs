//! FPDUs in the buffers of a socket. FPDUs are framed directly into the socket's send buffer, and placed
//! directly from the socket's receive buffer. Only an FPDU that wraps in one of these buffers is copied once
//! more.

use benches::errors::Error;
use smoltcp::socket::tcp::Socket;

use crate::fpdus::{Target, Writer};

/// Frames as many FPDUs as `socket` has space for. `apart` holds an FPDU that is not contiguous in the
/// socket's buffer.
pub(super) fn fill(writer: &mut Writer, apart: &mut Vec<u8>, socket: &mut Socket<'_>) -> Result<(), Error> {
    if !socket.may_send() {
        return Ok(());
    }
    let failed = |error: smoltcp::socket::tcp::SendError| Error::Exchange(error.to_string());
    while let Some(wire) = writer.next_bytes() {
        if socket.send_capacity() - socket.send_queue() < wire {
            break;
        }
        let framed = socket
            .send(|room| match room.get_mut(..wire) {
                Some(room) => {
                    writer.frame(room);
                    (wire, true)
                }
                None => (0, false),
            })
            .map_err(failed)?;
        if !framed {
            apart.resize(wire, 0);
            writer.frame(apart);
            let taken = socket.send_slice(apart).map_err(failed)?;
            debug_assert_eq!(taken, wire, "there was space");
        }
    }
    Ok(())
}

/// Receives all complete FPDUs from `socket`. Returns whether bytes were consumed.
pub(super) fn drain(target: &mut Target, socket: &mut Socket<'_>) -> Result<bool, Error> {
    let mut any = false;
    while socket.can_recv() {
        let queued = socket.recv_queue();
        let taken = socket
            .recv(|bytes| {
                let taken = target.take(bytes, queued > bytes.len());
                (taken.as_ref().map_or(0, |&taken| taken), taken)
            })
            .map_err(|error| Error::Exchange(error.to_string()))??;
        if taken == 0 {
            break;
        }
        any = true;
    }
    Ok(any)
}
