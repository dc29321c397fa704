//! Frames of an attacker between the frames of a connection: segments that look like the sender's and must
//! have no effect (RFC 5961, RFC 7323 section 5, RFC 5927).

use super::coverage::Occurrence;
use testkit::dice::Dice;
use testkit::packet::{Tcp, complete, flag, too_big, unreachable};

/// Distance of a forged number that has to be far from the expected one.
const FAR: u32 = 1 << 30;

/// A forged frame.
#[derive(Debug)]
pub struct Forged {
    /// Kind of forgery.
    pub occurrence: Occurrence,
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// It goes to the sender of the frame that it was made from, not to the receiver.
    pub to_sender: bool,
}

/// Makes a forged frame from a frame of an established connection. The stream sent so far ends `high` bytes
/// after the frame's sequence number, with a FIN if `finished`. `None`: this frame is
/// not suitable.
pub fn forge(dice: &mut Dice, frame: &[u8], tcp: &Tcp, high: u32, finished: bool) -> Option<Forged> {
    if tcp.flags & (flag::SYN | flag::FIN | flag::RST) != 0 || !tcp.has(flag::ACK) {
        return None;
    }
    // After everything that was sent, the FIN included: in the window, and never RCV.NXT.
    let end = tcp.seq.wrapping_add(high + u32::from(finished));
    let beyond = end.wrapping_add(1 + dice.below(500) as u32);
    let garbage = vec![0x66; 1 + dice.below(400) as usize];
    let forged = |occurrence, bytes| Some(Forged { occurrence, bytes, to_sender: false });
    match dice.below(6) {
        0 => forged(Occurrence::ForgedReset, tcp.rebuilt(frame, beyond, &[], flag::RST)),
        1 => {
            // In TIME-WAIT, a number beyond the window would begin the next connection (RFC 6191).
            let seq = if finished || dice.one_in(2) { tcp.seq.wrapping_sub(FAR) } else { beyond };
            let frame = &tcp.with_older_timestamp(frame, FAR);
            forged(Occurrence::ForgedSyn, tcp.rebuilt(frame, seq, &[], flag::SYN))
        }
        2 => {
            let mut bytes = tcp.rebuilt(frame, beyond, &garbage, flag::ACK);
            bytes[tcp.l4 + 8..tcp.l4 + 12].copy_from_slice(&tcp.ack.wrapping_add(FAR).to_be_bytes());
            complete(&mut bytes);
            forged(Occurrence::ForgedData, bytes)
        }
        3 => {
            tcp.timestamp_at(frame)?;
            let frame = &tcp.with_older_timestamp(frame, FAR);
            forged(Occurrence::ForgedOld, tcp.rebuilt(frame, tcp.seq.wrapping_add(high), &garbage, flag::ACK))
        }
        4 => {
            // Quotes a sequence number that is not in flight.
            let mut quoted = frame.to_vec();
            quoted[tcp.l4 + 4..tcp.l4 + 8].copy_from_slice(&tcp.seq.wrapping_sub(FAR).to_be_bytes());
            let bytes = too_big(&quoted, tcp, if tcp.ipv6 { 1280 } else { 576 });
            Some(Forged { occurrence: Occurrence::ForgedTooBig, bytes, to_sender: true })
        }
        _ => {
            let bytes = unreachable(frame, tcp);
            Some(Forged { occurrence: Occurrence::ForgedUnreachable, bytes, to_sender: true })
        }
    }
}
