//! One connection of the target: its queue pair, its memory, its operations and its observations.

use std::time::Duration;

use arrayvec::ArrayVec;
use benches::errors::Error;
use iwarp::memory::Access;
use iwarp::rdmap::AtomicOp;
use iwarp::verbs::{
    CompletionChannel, CompletionQueue, ConnectionError, Context, MemoryRegion, MrOptions, ProtectionDomain,
    QpInit, QueuePair, RecvRequest, SendFlags, SendOp, SendRequest, WcStatus, WorkCompletion,
};

use super::report::{self, End};
use super::scene::{Operation, RegionWish, Scene, Scope};
use crate::contract::{MAGIC, SOURCE, pattern, pattern_byte};

/// Number of entries of a completion queue: enough for all completions of a scene.
const COMPLETIONS: usize = 512;
/// `wr_id` of a text that this target sends, which is not part of the scene.
const TEXT_ID: u64 = u64::MAX;
/// `wr_id` of the first operation. The `wr_id` of the first receive is 0.
const OPERATION_ID: u64 = 1000;
/// Length in bytes of an atomic's result.
const WORD: usize = 8;

/// One connection of the target.
pub(super) struct Stage {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    /// The channel for completions of `cq`, used if the scene has `solicited`.
    channel: CompletionChannel,
    qp: QueuePair,
    scene: Scene,
    /// The regions by their index in the scene; `None` for a deregistered region.
    regions: Vec<Option<MemoryRegion>>,
    told: Vec<String>,
    /// Other queue pairs to which regions are bound, kept as long as these regions.
    _others: Vec<QueuePair>,
    receives: Option<Pieces>,
    source: Option<MemoryRegion>,
    sinks: Option<Pieces>,
    desk: Option<MemoryRegion>,
    words: Vec<String>,
    posted: Vec<Operation>,
    unposted: usize,
    flushed: usize,
    events: u64,
    completed: usize,
    received: bool,
}

/// A region that is cut into parts.
struct Pieces {
    region: MemoryRegion,
    /// Offset and length of each part.
    places: Vec<(usize, usize)>,
}

impl Pieces {
    fn new(pd: &ProtectionDomain, lengths: &[usize]) -> Result<Self, Error> {
        let mut places = Vec::new();
        let mut end = 0;
        for length in lengths {
            places.push((end, *length));
            end += length.next_multiple_of(WORD);
        }
        Ok(Self { region: pd.reg_mr(end.max(1), Access::LOCAL_WRITE)?, places })
    }

    fn bytes(&self, piece: usize, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        self.region.read_at(self.places[piece].0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Stage {
    /// Creates a connection whose queue pair is not connected yet.
    pub(super) fn new(context: &Context) -> Result<Self, Error> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(COMPLETIONS, Some(&channel))?;
        let qp = pd.create_qp(&QpInit { max_recv_wr: 256, ..QpInit::new(&cq) })?;
        Ok(Self {
            pd,
            cq,
            channel,
            qp,
            scene: Scene::default(),
            regions: Vec::new(),
            told: Vec::new(),
            _others: Vec::new(),
            receives: None,
            source: None,
            sinks: None,
            desk: None,
            words: Vec::new(),
            posted: Vec::new(),
            unposted: 0,
            flushed: 0,
            events: 0,
            completed: 0,
            received: false,
        })
    }

    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    pub(super) fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Registers regions, fills them and posts receives, as the scene requests.
    pub(super) fn set(&mut self, context: &Context, scene: Scene) -> Result<(), Error> {
        for (index, wish) in scene.regions.iter().enumerate() {
            if self.register(context, index, wish).is_err() {
                self.told.push("stag=-".into());
                self.regions.push(None);
            }
        }
        if scene.solicited {
            self.cq.req_notify(true)?;
        }
        let lengths = scene.receives.iter().flat_map(|&(count, length)| std::iter::repeat_n(length, count));
        let receives = Pieces::new(&self.pd, &lengths.collect::<Vec<_>>())?;
        for (index, &(offset, length)) in receives.places.iter().enumerate() {
            let mut request = RecvRequest::new(index as u64, receives.region.sge(offset, length));
            if length == 0 {
                request.sg_list.clear();
            }
            self.qp.post_recv(&request)?;
        }
        self.receives = Some(receives);
        let operations: Vec<&Operation> = scene.at_once.iter().chain(&scene.then).collect();
        let longest = operations.iter().map(|operation| operation.length).max().unwrap_or(0);
        let source = self.pd.reg_mr(longest.max(1), Access::LOCAL_WRITE)?;
        source.write_at(0, &pattern(SOURCE, longest))?;
        self.source = Some(source);
        let sinks: Vec<usize> = operations.iter().map(|operation| sink_length(operation)).collect();
        self.sinks = Some(Pieces::new(&self.pd, &sinks)?);
        self.scene = scene;
        Ok(())
    }

    fn register(&mut self, context: &Context, index: usize, wish: &RegionWish) -> Result<(), Error> {
        let mut options = MrOptions::new(wish.access);
        let other_pd = context.alloc_pd()?;
        let pd = if wish.scope == Scope::OtherDomain { &other_pd } else { &self.pd };
        // Completion queues are not shared between protection domains.
        let other_qp = pd.create_qp(&QpInit::new(&context.create_cq(COMPLETIONS, None)?))?;
        match wish.scope {
            Scope::ThisQueuePair => options.qp = Some(&self.qp),
            Scope::OtherQueuePair => options.qp = Some(&other_qp),
            Scope::Domain | Scope::OtherDomain | Scope::Nobody => {}
        }
        let region = pd.reg_mr_with(wish.length, &options)?;
        region.write_at(0, &pattern(index, wish.length))?;
        self.told.push(format!("stag={:x}:{:x}:{}", region.rkey(), region.addr(), region.len()));
        self.regions.push((wish.scope != Scope::Nobody).then_some(region));
        self._others.push(other_qp);
        Ok(())
    }

    /// Returns the stage message for the probe.
    pub(super) fn text(&self) -> String {
        [vec![MAGIC.to_owned()], self.told.clone()].concat().join(" ")
    }

    /// Sends a text to the probe.
    pub(super) fn say(&mut self, text: &str) -> Result<(), Error> {
        let desk = self.pd.reg_mr(text.len(), Access::LOCAL_WRITE)?;
        desk.write_at(0, text.as_bytes())?;
        self.qp.post_send(&SendRequest::new(TEXT_ID, SendOp::Send, desk.sge(0, text.len())))?;
        self.desk = Some(desk);
        Ok(())
    }

    /// Posts the operations that are due at once. Has to be called when the connection is established.
    pub(super) fn established(&mut self) {
        let operations = self.scene.at_once.clone();
        self.post(&operations);
    }

    /// Posts operations until an operation cannot be posted. Counts this operation and all later operations
    /// as not posted.
    fn post(&mut self, operations: &[Operation]) {
        for (index, operation) in operations.iter().enumerate() {
            let request = self.request(operation);
            if request.is_none_or(|request| self.qp.post_send(&request).is_err()) {
                self.unposted += operations.len() - index;
                return;
            }
            self.posted.push(*operation);
        }
    }

    fn request(&self, operation: &Operation) -> Option<SendRequest> {
        let (source, sinks) = (self.source.as_ref()?, self.sinks.as_ref()?);
        let place = self.posted.len();
        let mut remote = self.scene.peer.unwrap_or_default();
        remote.addr = remote.addr.wrapping_add(operation.offset);
        let op = match operation.kind {
            'w' => SendOp::Write { remote },
            'r' => SendOp::Read { remote },
            's' | 'e' => SendOp::Send,
            'i' | 'j' => SendOp::SendInvalidate { rkey: remote.rkey },
            'f' => SendOp::Atomic { remote, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
            'c' => SendOp::Atomic {
                remote,
                op: AtomicOp::CmpSwap { compare: 0, compare_mask: u64::MAX, swap: 1, swap_mask: u64::MAX },
            },
            'm' => SendOp::Immediate { data: [1, 2, 3, 4, 0, 0, 0, 0] },
            _ => return None,
        };
        let mut sg_list = ArrayVec::new();
        match sink_length(operation) {
            0 if operation.length > 0 => sg_list.push(source.sge(0, operation.length)),
            0 => {}
            length => sg_list.push(sinks.region.sge(sinks.places.get(place)?.0, length)),
        }
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::FENCE, operation.fenced);
        flags.set(SendFlags::SOLICITED, matches!(operation.kind, 'e' | 'j'));
        Some(SendRequest { wr_id: OPERATION_ID + place as u64, op, sg_list, flags })
    }

    /// Handles events and completions. Returns whether there were any completions.
    pub(super) fn poll(&mut self) -> Result<bool, Error> {
        if self.scene.solicited {
            let events = self.channel.wait(Some(Duration::ZERO))?;
            if events > 0 {
                self.events += events;
                self.cq.req_notify(true)?;
            }
        }
        let mut any = false;
        while let Some(completion) = self.cq.poll_one() {
            any = true;
            if completion.wr_id != TEXT_ID {
                self.note(&completion)?;
            }
        }
        Ok(any)
    }

    fn note(&mut self, completion: &WorkCompletion) -> Result<(), Error> {
        let is_operation = completion.wr_id >= OPERATION_ID;
        self.completed += usize::from(is_operation);
        if completion.status == WcStatus::WrFlushError {
            self.flushed += 1;
            return Ok(());
        }
        let word =
            if is_operation { self.operation_word(completion)? } else { self.receive_word(completion)? };
        self.words.push(word);
        if let Some(stag) = completion.invalidated {
            self.words.push(format!("inv={stag:x}"));
        }
        if !is_operation
            && completion.status == WcStatus::Success
            && !std::mem::replace(&mut self.received, true)
        {
            let operations = self.scene.then.clone();
            self.post(&operations);
        }
        Ok(())
    }

    fn receive_word(&self, completion: &WorkCompletion) -> Result<String, Error> {
        let status = report::status_number(completion.status);
        if let Some([a, b, c, d, ..]) = completion.immediate {
            return Ok(format!("c=I:{status}:0:{:08x}", u32::from_be_bytes([a, b, c, d])));
        }
        let length = if completion.status == WcStatus::Success { completion.byte_len as usize } else { 0 };
        let bytes = match &self.receives {
            Some(receives) => receives.bytes(completion.wr_id as usize, length)?,
            None => Vec::new(),
        };
        let kind = if completion.invalidated.is_some() { 'V' } else { 'R' };
        Ok(format!("c={kind}:{status}:{length}:{:08x}", crc32c::crc32c(&bytes)))
    }

    fn operation_word(&self, completion: &WorkCompletion) -> Result<String, Error> {
        let status = report::status_number(completion.status);
        let place = (completion.wr_id - OPERATION_ID) as usize;
        let operation = self.posted[place];
        if operation.kind != 'r' || completion.status != WcStatus::Success {
            return Ok(format!("c={}:{status}:0:00000000", operation.kind));
        }
        let bytes = match &self.sinks {
            Some(sinks) => sinks.bytes(place, operation.length)?,
            None => Vec::new(),
        };
        Ok(format!("c=r:{status}:{}:{:08x}", bytes.len(), crc32c::crc32c(&bytes)))
    }

    /// Whether the scene requests that the target closes now.
    pub(super) fn wants_close(&self) -> bool {
        self.scene.close && self.received && self.completed == self.posted.len()
    }

    /// Returns how the connection ended. `error` is the error of the event.
    pub(super) fn end(&self, error: Option<ConnectionError>) -> End {
        match (self.qp.error(), error) {
            (Some(error), _) | (None, Some(ConnectionError::Stream(error))) => End::Stream(error),
            (None, _) => End::Close,
        }
    }

    /// Returns the report on the connection.
    pub(super) fn report(&self, end: End) -> Result<String, Error> {
        let mut words = self.words.clone();
        for (index, region) in self.regions.iter().enumerate() {
            if let Some(region) = region {
                words.extend(changed(index, region)?);
            }
        }
        let counts = [("flush", self.flushed), ("post", self.unposted)];
        words.extend(counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}={n}")));
        if self.scene.solicited {
            words.push(format!("event={}", self.events));
        }
        Ok(report::text(end, &words))
    }
}

/// Returns the number of bytes of local memory for the result of an operation.
fn sink_length(operation: &Operation) -> usize {
    match operation.kind {
        'r' => operation.length,
        'f' | 'c' => WORD,
        _ => 0,
    }
}

fn changed(index: usize, region: &MemoryRegion) -> Result<Option<String>, Error> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes)?;
    let differs = |at: &usize| bytes[*at] != pattern_byte(index, *at);
    let (Some(first), Some(last)) = ((0..bytes.len()).find(differs), (0..bytes.len()).rfind(differs)) else {
        return Ok(None);
    };
    let range = &bytes[first..=last];
    Ok(Some(format!("d={index}:{first}+{}:{:08x}", range.len(), crc32c::crc32c(range))))
}
