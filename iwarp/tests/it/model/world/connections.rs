//! Connections between both hosts: how they are established, closed, dropped and ended.

use iwarp::verbs::{CmEventKind, CmId, ConnectionError, QpGrants, QpInit, QpState};

use super::super::cause::Cause;
use super::super::streams::Stream;
use super::{Done, LiveEnd, REST_US, SLOTS, World};
use testkit::dice::Dice;

/// Maximum number of polls until an abort is executed and reported.
const ABORT_POLLS: usize = 2;

impl World {
    pub(super) fn connect(&mut self, dice: &mut Dice, slot: usize, side: usize) -> Done {
        if self.slots[slot].is_some_and(|stream| !self.model.streams[stream].is_over()) {
            return Ok(());
        }
        let stream = self.model.streams.len();
        self.model.streams.push(Stream::default());
        if self.sabotage.is_known_wire() {
            self.model.may_end(stream, Cause::Wire, 0, false);
            self.model.may_end(stream, Cause::Wire, 1, false);
        }
        self.slots[slot] = Some(stream);
        let param = [self.setting.param(0), self.setting.param(1)];
        let max_send_wr = self.setting.max_send_wr;
        let shared = [0, 1].map(|_| dice.one_in(3));
        let qps = [0, 1].map(|side| {
            let host = self.host(side);
            let init = QpInit {
                srq: shared[side].then_some(&self.shared[side]),
                grants: QpGrants::all(),
                max_send_wr,
                max_recv_wr: 64,
                ..QpInit::new(&host.cq)
            };
            host.pd.create_qp(&init).unwrap()
        });
        let host = self.host(side);
        let id = host.context.create_id(&host.channel);
        let remote = self.host(1 - side).address;
        self.note(|| format!("stream {stream}: host {side} connects, shared receives: {shared:?}"));
        id.connect(&qps[side], remote, &param[side]).map_err(|error| error.to_string())?;
        for (side, qp) in qps.iter().enumerate() {
            self.model.streams[stream].ends[side].shared = shared[side];
            self.numbers.insert((side, qp.qp_num()), (stream, side));
            let by = (stream, side);
            self.live_ends.push(LiveEnd {
                by,
                qp: Some(qp.clone()),
                id: id.clone(),
                qp_num: qp.qp_num(),
                state: QpState::Idle,
            });
        }
        // Receives may be posted before the connection is established.
        for _ in 0..dice.index(3) {
            let side = dice.index(2);
            self.receive(dice, slot, side, None)?;
        }
        let mut established = [None, None];
        let end = self.pair.now_us + REST_US;
        while established.iter().any(Option::is_none) {
            if self.pair.now_us > end {
                return Err(format!("stream {stream} was not established"));
            }
            self.poll_engines()?;
            self.completions()?;
            for at in [0, 1] {
                while let Some(event) = self.host(at).channel.poll() {
                    match event.kind {
                        CmEventKind::ConnectRequest { .. } => {
                            event.id.accept(&qps[at], &param[at]).map_err(|error| error.to_string())?;
                            self.live_end((stream, at)).expect("just made").id = event.id;
                        }
                        CmEventKind::Established { ord, ready: true, .. } => established[at] = Some(ord),
                        CmEventKind::Disconnected { error, .. } => self.ended(at, &event.id, error)?,
                        other => return Err(format!("stream {stream}: {other:?}")),
                    }
                }
            }
        }
        for (end, ord) in self.model.streams[stream].ends.iter_mut().zip(established) {
            end.reads = ord.is_some_and(|ord| ord > 0);
        }
        self.note(|| format!("stream {stream} is established, ORD {established:?}"));
        Ok(())
    }

    pub(super) fn close(&mut self, slot: usize, side: usize) {
        let Some(stream) = self.slots[slot] else { return };
        if self.model.streams[stream].ends[side].over {
            return;
        }
        let Some(id) = self.live_end((stream, side)).map(|live_end| live_end.id.clone()) else { return };
        self.note(|| format!("{:?} closes", (stream, side)));
        self.model.closes((stream, side));
        id.disconnect();
    }

    pub(super) fn drop_queue_pair(&mut self, slot: usize, side: usize) {
        let Some(stream) = self.slots[slot] else { return };
        let over = self.model.streams[stream].ends[side].over;
        let Some(live_end) = self.live_end((stream, side)) else { return };
        if live_end.qp.take().is_some() && !over {
            self.note(|| format!("{:?} drops its queue pair", (stream, side)));
            self.model.may_end(stream, Cause::Abort, side, true);
        }
    }

    /// Aborts a connection. The next polls report the connection's end, whatever the peer does.
    pub(super) fn abort(&mut self, slot: usize, side: usize) -> Done {
        let Some(stream) = self.slots[slot] else { return Ok(()) };
        let Some(id) = self.live_end((stream, side)).map(|live_end| live_end.id.clone()) else {
            return Ok(());
        };
        if self.model.streams[stream].ends[side].over {
            return Ok(());
        }
        self.note(|| format!("{:?} aborts", (stream, side)));
        self.model.may_end(stream, Cause::Abort, side, true);
        id.abort();
        for _ in 0..ABORT_POLLS {
            self.poll()?;
        }
        if !self.model.streams[stream].ends[side].over {
            return Err(format!("side {side} of stream {stream} was aborted, and goes on"));
        }
        Ok(())
    }

    /// Drops the queue pairs of streams that have not ended. If the length of an FPDU was corrupted, a
    /// receiver may wait for bytes that never arrive. Such a stream ends only if a user ends it.
    pub(super) fn give_up_stalled(&mut self) {
        for slot in 0..SLOTS {
            if self.slots[slot].is_some_and(|stream| !self.model.streams[stream].is_over()) {
                self.drop_queue_pair(slot, 0);
                self.drop_queue_pair(slot, 1);
            }
        }
    }

    /// Records the event of a connection's end. All completions of the connection must have arrived before.
    pub(super) fn ended(&mut self, host: usize, id: &CmId, error: Option<ConnectionError>) -> Done {
        self.completions()?;
        let live_end = self.live_ends.iter().find(|live_end| live_end.by.1 == host && live_end.id == *id);
        let by = live_end.ok_or("the end of a connection that nobody knows")?.by;
        self.note(|| format!("{by:?} is over: {error:?}"));
        let found = self.model.disconnected(by, error)?;
        self.verify(found)
    }
}
