//! The fast path for sending: builds the frames of a connection's usual segments. These are frames of IPv4
//! without a tag, with timestamps as the only option, and with either a new segment that is not cut or a pure
//! acknowledgement. The header fields are written into a copy of a template (`headers.rs`). The stack keeps
//! the template of the connection that it served last.
//!
//! The fast path builds the same frames as the general path (`transmit.rs`). The general path handles all
//! other segments, for example trains that are sent by TSO, retransmissions, probes, segments with SACK
//! blocks, marks, SYN, FIN or RST, external memory, and segments whose neighbour has to be resolved.
//! [`TcpConfig::header_prediction`](crate::TcpConfig::header_prediction) turns the fast path off, for sent
//! and for received segments, so that `tests/stack/prediction.rs` can compare both paths.

use dp::{Burst, Mbuf, Mempool, Offloads};

use super::Stack;
use super::headers::LatestHeaders;
use super::transmit::{Served, TRAINS};
use crate::Deadline;
use crate::checksum::{copy_partial, partial};
use crate::facade::Instant;
use crate::frame::{COPIED_BYTES, Framing, PlainFields, PlainTemplate};
use crate::ip::Ecn;
use crate::neighbor::Resolution;
use crate::tcp::{SegmentKey, SegmentSlab, UsualHeader, UsualSegment};

impl Stack {
    /// The fast path of [`serve_any`](Self::serve_any). Sends up to `left` segments of one connection, of the
    /// kinds that the head of this file names, in the same frames as the general path. Returns `None` if the
    /// general path has to decide what is sent next.
    #[inline]
    pub(super) fn serve_usual(
        &mut self,
        now: Instant,
        slot: u32,
        left: &mut usize,
        out: &mut Burst,
    ) -> Option<Served> {
        // The address of an established connection is usable, because the stack never gives up a usable
        // address.
        if !self.config.tcp.header_prediction || self.framing.vlan.is_some() {
            return None;
        }
        let (parts, connections, neighbors) = self.split(now);
        let (mut found, latest) = connections.get_to_serve(slot)?;
        let (framing, pool) = (parts.framing, parts.pool);
        let id = found.id;
        let mut ctx = parts.ctx(id, found.conn.listener);
        let header = found.conn.tcb.usual_header(&ctx)?;
        debug_assert!(found.conn.may_arm_later(), "only an established connection has usual headers");
        let conn = &mut *found.conn;
        let (mut latest, mut template) = (Some(latest), None);
        let mut serve = || loop {
            if *left == 0 || out.is_full() {
                return Some(if conn.tcb.wants_transmit() { Served::More } else { Served::Idle });
            }
            let segment = match conn.tcb.next_usual(&ctx) {
                Some(segment) => segment,
                None if conn.tcb.wants_transmit() => return None,
                None => return Some(Served::Idle),
            };
            if let Some(latest) = latest.take() {
                let Resolution::Known(dst_mac) = neighbors.resolve(now, conn.next_hop) else { return None };
                conn.unresolved_since = Deadline::NONE;
                template = LatestHeaders::of(latest, framing, (id, &conn.tuple), dst_mac);
            }
            let template = template?;
            let leaves_in_train = segment.payload.is_some_and(|key| {
                !segment.is_last
                    && framing.offloads.contains(TRAINS)
                    && framing.tso.mss.contains(ctx.segments.length(key))
            });
            if leaves_in_train {
                return None;
            }
            let Some(frame) = frame_of(framing, pool, ctx.segments, template, (&header, &segment)) else {
                return Some(Served::NoMbuf);
            };
            out.push(frame);
            *left -= 1;
            if conn.tcb.usual_sent(&mut ctx, &header, &segment) {
                return Some(Served::Idle);
            }
        };
        let served = serve();
        // The timer is marked after the transmission, because the transmission may start a short timer.
        found.arm_later();
        served
    }
}

/// The frame of a segment; `None` if a pool is empty. A long payload is copied only if necessary. Usually the
/// headers are written into the headroom of the payload's buffer, or into a separate buffer. If the port
/// computes the checksum, the headers are in a separate buffer, because the driver may write to the headers.
#[inline]
fn frame_of(
    framing: &Framing,
    pool: &Mempool,
    segments: &mut SegmentSlab,
    template: &PlainTemplate,
    (header, segment): (&UsualHeader, &UsualSegment),
) -> Option<Mbuf> {
    let UsualHeader { ack, window, timestamps } = *header;
    let UsualSegment { payload, bytes, is_last: _, seq, control_bits } = *segment;
    let (offload, header_bytes) = (template.offload(), template.header_bytes());
    let in_software = !offload.tcp_checksum;
    let mut fields = PlainFields {
        ecn: Ecn::NotEct,
        seq,
        ack,
        control_bits,
        window,
        timestamps,
        payload_bytes: bytes,
        payload_checksum: 0,
    };
    if let Some(key) = payload
        && bytes > COPIED_BYTES
    {
        if in_software && !offload.ipv4_checksum && segments.leads_page(key) {
            fields.payload_checksum = segments.checksum(key).unwrap_or_else(|| partial(segments.bytes(key)));
            let frame = segments.headed(key, header_bytes, |out| template.write(out, &fields));
            if frame.is_some() {
                return frame;
            }
        } else if !in_software && framing.offloads.contains(Offloads::TX_MULTI_SEGMENT) {
            return chained(pool, segments, key, template, &fields);
        }
    }
    let mut frame = pool.alloc_filled(header_bytes, bytes)?;
    let (head, room) = frame.head_mut()?.split_at_mut(header_bytes);
    if let Some(key) = payload {
        let payload = segments.bytes(key);
        match segments.checksum(key) {
            None if in_software => fields.payload_checksum = copy_partial(room, payload),
            known => {
                room.copy_from_slice(payload);
                fields.payload_checksum = known.unwrap_or_default();
            }
        }
    }
    template.write(head, &fields);
    frame.set_tx_offload(offload);
    Some(frame)
}

/// The headers in a separate buffer, followed by a view of the payload; `None` if a pool is empty.
#[inline(never)]
fn chained(
    pool: &Mempool,
    segments: &SegmentSlab,
    key: SegmentKey,
    template: &PlainTemplate,
    fields: &PlainFields,
) -> Option<Mbuf> {
    let view = segments.views(key, 1)?.pop()?;
    let mut frame = pool.alloc_filled(template.header_bytes(), 0)?;
    template.write(frame.head_mut()?, fields);
    // The view is one buffer, so the chain has two buffers.
    frame.chain(view).ok()?;
    frame.set_tx_offload(template.offload());
    Some(frame)
}
