//! Compares DDP's data sink with the reference model, for segments in any order. Also causes every error of
//! the error table.
//!
//! `Sink` below calls the checks in the order in which the engine calls them; `reference/ddp_ref.py` computes
//! the expected result.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::common::oracle::{hex, oracle};
use iwarp::ddp::{Arrival, DdpError, Header, HeaderError, Segmenter, UntaggedQueue, tagged};
use iwarp::memory::{
    Access, Accessor, Base, MemoryTable, Participant, PdId, RegisterOptions, Registration, Stag, StreamId,
};
use iwarp::rdmap::Opcode;
use testkit::dice::Dice;

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };

#[derive(Debug, PartialEq, Eq)]
enum Delivery {
    Tagged { stag: Stag, rsvd_ulp: u8 },
    Untagged { qn: u32, msn: u32, len: u32, rsvd_ulp: [u8; 5], buffer: Vec<u8> },
}

/// The receive side of one stream. Makes the crate's own checks for each of the three kinds of `Arrival`.
struct Sink {
    participant: Participant,
    queues: BTreeMap<u32, (UntaggedQueue, VecDeque<Vec<u8>>)>,
    frontier: usize,
    /// Header and payload length of each segment that was placed early.
    placed: BTreeMap<usize, (Header, usize)>,
    /// Segments that arrived early and were not placed: each arrives again in order.
    waiting: BTreeMap<usize, Vec<u8>>,
    delivered: Vec<Delivery>,
    error: Option<DdpError>,
}

impl Sink {
    fn new(table: &MemoryTable) -> Self {
        Self {
            participant: table.join(),
            queues: BTreeMap::new(),
            frontier: 0,
            placed: BTreeMap::new(),
            waiting: BTreeMap::new(),
            delivered: Vec::new(),
            error: None,
        }
    }

    fn post(&mut self, qn: u32, len: usize, first_msn: u32) {
        let (queue, buffers) =
            self.queues.entry(qn).or_insert_with(|| (UntaggedQueue::starting_at(first_msn), VecDeque::new()));
        assert!(queue.post(1));
        buffers.push_back(vec![0xEE; len]);
    }

    /// Receives segment number `position` of the sender. Segments may arrive in any order, and repeatedly.
    fn receive(&mut self, position: usize, segment: &[u8]) {
        if self.error.is_some() || position < self.frontier || self.placed.contains_key(&position) {
            return;
        }
        if position > self.frontier {
            match self.arrive(Arrival::Ahead, segment) {
                Ok(header) => self.placed.insert(position, header).map(|_| ()),
                Err(_) => self.waiting.insert(position, segment.to_vec()).map(|_| ()),
            };
            return;
        }
        if let Err(error) = self.arrive(Arrival::InOrder, segment) {
            self.error = error;
            return;
        }
        self.frontier += 1;
        self.catch_up();
    }

    /// Advances `frontier` past the segments that arrived early.
    fn catch_up(&mut self) {
        loop {
            let result = if let Some((header, len)) = self.placed.remove(&self.frontier) {
                self.deliver(&header, len).map_err(Some)
            } else if let Some(segment) = self.waiting.remove(&self.frontier) {
                self.arrive(Arrival::InOrder, &segment).map(|_| ())
            } else {
                return;
            };
            match result {
                Ok(()) => self.frontier += 1,
                Err(error) => return self.error = error,
            }
        }
    }

    /// Returns the header and the payload length of the segment, or DDP's error. Returns `Err(None)` for a
    /// segment that is shorter than its header, for which DDP has no error.
    fn arrive(&mut self, arrival: Arrival, segment: &[u8]) -> Result<(Header, usize), Option<DdpError>> {
        let header = Header::parse(segment).map_err(DdpError::of_header)?;
        let payload = &segment[header.wire_len()..];
        if arrival.places() {
            self.place(&header, payload)?;
        }
        if arrival.delivers() {
            self.deliver(&header, payload.len())?;
        }
        Ok((header, payload.len()))
    }

    fn place(&mut self, header: &Header, payload: &[u8]) -> Result<(), DdpError> {
        match header {
            Header::Tagged(header) => {
                let epoch = self.participant.enter();
                if let Some(target) = tagged::check(header, payload.len(), ME, &epoch)? {
                    target.place(0, payload)?;
                }
            }
            Header::Untagged(header) => {
                let (queue, buffers) = self.queues.get_mut(&header.qn).ok_or(DdpError::InvalidQn)?;
                let slot = queue.check(header, payload.len(), |i| buffers[i as usize].len() as u64)?;
                let buffer = &mut buffers[slot.index as usize];
                buffer[slot.offset as usize..][..payload.len()].copy_from_slice(payload);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, header: &Header, payload_len: usize) -> Result<(), DdpError> {
        match header {
            Header::Tagged(header) if header.last => {
                self.delivered.push(Delivery::Tagged { stag: header.stag, rsvd_ulp: header.rsvd_ulp });
            }
            Header::Tagged(_) => {}
            Header::Untagged(header) => {
                let (queue, buffers) = self.queues.get_mut(&header.qn).ok_or(DdpError::InvalidQn)?;
                if let Some(message) = queue.deliver(header, payload_len)? {
                    let buffer = buffers.pop_front().expect("one buffer for each that the queue counts");
                    let rsvd_ulp = header.rsvd_ulp;
                    let (msn, len) = (message.msn, message.len);
                    self.delivered.push(Delivery::Untagged { qn: header.qn, msn, len, rsvd_ulp, buffer });
                }
            }
        }
        Ok(())
    }

    /// Returns the lines that `DRIVER` prints for the same stream.
    fn report(&self) -> String {
        let mut text = String::new();
        for delivery in &self.delivered {
            match delivery {
                Delivery::Tagged { stag, rsvd_ulp } => writeln!(text, "T {} {rsvd_ulp}", stag.0).unwrap(),
                Delivery::Untagged { qn, msn, len, rsvd_ulp, buffer } => {
                    writeln!(text, "U {qn} {msn} {len} {} {}", hex(rsvd_ulp), hex(buffer)).unwrap();
                }
            }
        }
        match self.error {
            Some(error) => writeln!(text, "error {} {}", error.etype(), error.code()).unwrap(),
            None => writeln!(text, "ok").unwrap(),
        }
        text
    }
}

fn register(table: &MemoryTable, len: usize, options: RegisterOptions) -> Registration {
    let region = Arc::new(dp::Region::new(len).expect("memory for a test"));
    table.register(region, &options).expect("below every limit")
}

/// Feeds one stream after the other to the model. Prints the lines of `report`, then the registered memory.
const DRIVER: &str = r"
import sys
from ddp_ref import Sink
sink = None
for line in sys.stdin:
    what, *rest = line.split()
    if what == 'new': sink, tags = Sink(stream=1, pd=1), []
    elif what == 'reg':
        stag, base, n, pd, stream, write = (int(x) for x in rest)
        sink.register(stag, base, bytearray(n), stream=stream or None, write=bool(write), pd=pd)
        tags.append(stag)
    elif what == 'post': sink.post(int(rest[0]), bytearray(b'\xee' * int(rest[1])), int(rest[2]))
    elif what == 'seg': sink.receive(int(rest[0]), bytes.fromhex(rest[1]))
    elif what == 'end':
        for m in sink.delivered:
            if m[0] == 'T': print('T', m[1], m[2])
            else: print('U', m[1], m[2], m[3], m[4].to_bytes(5, 'big').hex(), m[5].hex())
        print('error %d %d' % sink.error.pair if sink.error else 'ok')
        if not sink.error:
            for t in tags: print(sink.tags[t].buf.hex())
";

/// A random stream, for the model (as text) and for `Sink`. Running the stream returns what `Sink` reports.
struct Stream {
    table: MemoryTable,
    registration: Registration,
    /// Regions to which the stream must not write: they belong to another stream or domain, or are read-only.
    foreign: Vec<Registration>,
    segments: Vec<Vec<u8>>,
    posts: Vec<(u32, usize, u32)>,
}

impl Stream {
    const BYTES: usize = 6000;

    fn new(dice: &mut Dice) -> Self {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&dice.number().to_le_bytes());
        let table = MemoryTable::new(8, seed);
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let options =
            RegisterOptions { pd: ME.pd, access: write, base: Base::Iova(1 << 40), ..Default::default() };
        let registration = register(&table, Self::BYTES, options);
        let foreign = vec![
            register(&table, 64, RegisterOptions { stream: Some(StreamId(2)), ..options }),
            register(&table, 64, RegisterOptions { pd: PdId(2), ..options }),
            register(&table, 64, RegisterOptions { access: Access::REMOTE_READ, ..options }),
        ];
        let mut stream = Self { table, registration, foreign, segments: Vec::new(), posts: Vec::new() };
        stream.fill(dice);
        stream
    }

    /// Adds one to seven messages, tagged and untagged, that are cut by a changing MULPDU.
    fn fill(&mut self, dice: &mut Dice) {
        let mut free = 0;
        let mut next_msn: BTreeMap<u32, u32> = BTreeMap::new();
        let mut first_msn: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..=dice.below(7) {
            let len = [0, 1, dice.below(800) as usize][dice.below(3) as usize];
            let payload = dice.bytes(len);
            let tagged = dice.below(2) == 0;
            let (stag, to) = match len {
                0 => (Stag(dice.number() as u32), dice.number()),
                _ => (self.registration.stag(), (1 << 40) + free as u64),
            };
            let qn = dice.below(3) as u32;
            let mut msn = 0;
            if tagged {
                free += len;
            } else {
                let first = *first_msn.entry(qn).or_insert([1, u32::MAX - 1][dice.below(2) as usize]);
                let next = next_msn.entry(qn).or_insert(first);
                msn = *next;
                *next = next.wrapping_add(1);
                self.posts.push((qn, len + dice.below(9) as usize, first));
            }
            let mut cut =
                if tagged { Segmenter::tagged(len as u32) } else { Segmenter::untagged(len as u32) };
            while let Some(piece) = cut.next(19 + dice.below(250) as u32) {
                let header: Header = if tagged {
                    Opcode::Write.tagged_header(stag, to.wrapping_add(piece.offset.into()), piece.last).into()
                } else {
                    let mut header = Opcode::Send.untagged_header(Stag(0), msn, piece.offset, piece.last);
                    header.qn = qn;
                    header.into()
                };
                let part = &payload[piece.offset as usize..][..piece.len as usize];
                self.segments.push([header.to_bytes().as_slice(), part].concat());
            }
        }
    }

    /// Damages one segment, so that the sink must report an error when the segment is next in order.
    fn damage(&mut self, dice: &mut Dice) {
        let at = dice.below(self.segments.len() as u64) as usize;
        let stags: Vec<Stag> = self.foreign.iter().map(Registration::stag).collect();
        let segment = &mut self.segments[at];
        let version = [0, 2, 3][dice.below(3) as usize];
        if segment[0] & 0x80 != 0 {
            if segment.len() == 14 {
                segment.push(0x55);
                segment[2..6].fill(0xA5);
            }
            match dice.below(6) {
                0 => segment[0] = segment[0] & !3 | version,
                1 => segment[2..6].fill(0),
                2..=3 => segment[2..6].copy_from_slice(&stags[dice.below(3) as usize].0.to_be_bytes()),
                4 => segment[6..14].fill(0xFF),
                _ => segment[6..14].copy_from_slice(&(1_u64 << 39).to_be_bytes()),
            }
        } else {
            match dice.below(7) {
                0 => segment[0] = segment[0] & !3 | version,
                // The changed MO leaves a gap or causes an overlap.
                5..=6 => segment[17] ^= 1 + dice.below(7) as u8,
                1 => segment[6..10].fill(0xFF),
                2 => segment[10] ^= 0x80,
                3 => segment[11] ^= 0x40,
                _ => segment[14..18].fill(0xFF),
            }
        }
    }

    fn run(&self, dice: &mut Dice, input: &mut String) -> String {
        writeln!(input, "new").unwrap();
        for (registration, pd, stream, write) in [
            (&self.registration, 1, 0, 1),
            (&self.foreign[0], 1, 2, 1),
            (&self.foreign[1], 2, 0, 1),
            (&self.foreign[2], 1, 0, 0),
        ] {
            let (stag, base, len) = (registration.stag().0, registration.base_to(), registration.len());
            writeln!(input, "reg {stag} {base} {len} {pd} {stream} {write}").unwrap();
        }
        let mut sink = Sink::new(&self.table);
        for &(qn, len, first_msn) in &self.posts {
            writeln!(input, "post {qn} {len} {first_msn}").unwrap();
            sink.post(qn, len, first_msn);
        }
        for position in arrival_order(dice, self.segments.len()) {
            writeln!(input, "seg {position} {}", hex(&self.segments[position])).unwrap();
            sink.receive(position, &self.segments[position]);
        }
        writeln!(input, "end").unwrap();
        let mut report = sink.report();
        for registration in std::iter::once(&self.registration).chain(&self.foreign) {
            if sink.error.is_none() {
                let mut bytes = vec![0; registration.len()];
                registration.memory().read_at(0, &mut bytes).unwrap();
                writeln!(report, "{}", hex(&bytes)).unwrap();
            }
        }
        report
    }
}

/// Returns the positions of the segments in random order. Each position occurs at least once, and at most
/// five positions are repeated.
fn arrival_order(dice: &mut Dice, segments: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..segments).collect();
    for _ in 0..dice.below(6) {
        order.push(dice.below(segments as u64) as usize);
    }
    for i in (1..order.len()).rev() {
        order.swap(i, dice.below(i as u64 + 1) as usize);
    }
    order
}

/// For any arrival order with repeats, `Sink` delivers the same messages in the same order as the model, and
/// every byte of the registered memory equals the model's.
// Proves DDP-002, DDP-013, DDP-014, DDP-033, DDP-034, DDP-053, DDP-089 to DDP-091, DDP-176, DDP-103, DDP-127,
// DDP-128.
#[test]
fn segments_in_any_order_end_as_in_the_model() {
    let mut dice = Dice::split_mix(0x5041);
    let (mut input, mut ours) = (String::new(), String::new());
    for _ in 0..400 {
        let stream = Stream::new(&mut dice);
        ours += &stream.run(&mut dice, &mut input);
    }
    let model = oracle(DRIVER, &input);
    assert!(!model.contains("error"));
    assert!(ours == model, "{}", first_difference(&ours, &model));
}

/// One segment at any position is bad, and the segments arrive in any order. `Sink` and the model deliver the
/// same messages before the bad segment, and report the same error.
// Proves DDP-163 to DDP-165, DDP-170, DDP-171, DDP-174, DDP-179 to DDP-182, DDP-184, DDP-189, DDP-190,
// DDP-192.
#[test]
fn a_bad_segment_ends_the_stream_as_in_the_model() {
    let mut dice = Dice::split_mix(0x7041);
    let (mut input, mut ours) = (String::new(), String::new());
    for _ in 0..600 {
        let mut stream = Stream::new(&mut dice);
        stream.damage(&mut dice);
        ours += &stream.run(&mut dice, &mut input);
    }
    let model = oracle(DRIVER, &input);
    assert_eq!(model.matches("error").count(), 600);
    assert!(ours == model, "{}", first_difference(&ours, &model));
}

fn first_difference(ours: &str, model: &str) -> String {
    let pair = ours.lines().zip(model.lines()).enumerate().find(|(_, (ours, model))| ours != model);
    format!("first difference (line, (ours, model)): {pair:?}")
}

/// The second of three segments has an error: each error of the table below in turn, and each in every
/// arrival order. The message before the bad segment is delivered, the message behind it is not, and no byte
/// of the region changes.
// Proves DDP-173, DDP-183, DDP-185 to DDP-188, DDP-197 to DDP-207, DDP-211 to DDP-213, DDP-217, RDMAP-199:
// the table has a line for each cause, with the error that the cause must have. The region does not begin at
// offset 0.
#[test]
fn every_error_of_the_table_at_any_arrival() {
    let tagged = |stag: Stag, to: u64, control: u8, payload: &[u8]| {
        let mut bytes = Header::from(Opcode::Write.tagged_header(stag, to, true)).to_bytes().to_vec();
        bytes[0] = control;
        bytes.extend_from_slice(payload);
        bytes
    };
    let untagged = |qn: u32, msn: u32, mo: u32, control: u8, payload: &[u8]| {
        let mut header = Opcode::Send.untagged_header(Stag(0), msn, mo, true);
        header.qn = qn;
        let mut bytes = Header::from(header).to_bytes().to_vec();
        bytes[0] = control;
        bytes.extend_from_slice(payload);
        bytes
    };
    let table = MemoryTable::new(8, [7; 32]);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let options = RegisterOptions { pd: ME.pd, access, base: Base::Iova(0x1000), ..Default::default() };
    let mine = register(&table, 16, options);
    let other_pd = register(&table, 4, RegisterOptions { pd: PdId(2), ..options });
    let other_stream = register(&table, 4, RegisterOptions { stream: Some(StreamId(2)), ..options });
    let read_only = register(&table, 4, RegisterOptions { access: Access::REMOTE_READ, ..options });
    let local = register(&table, 4, RegisterOptions { access: Access::LOCAL_WRITE, ..options });
    let revoked = register(&table, 4, options);
    revoked.invalidate();
    let top = register(&table, 8, RegisterOptions { base: Base::Iova(u64::MAX - 7), ..options });
    let s = mine.stag();
    let wrong_key = Stag(s.0 ^ 1);
    for (error, bad) in [
        (DdpError::InvalidStag, tagged(wrong_key, 0x1000, 0xC1, b"x")),
        (DdpError::InvalidStag, tagged(Stag(0), 0x1000, 0xC1, b"x")),
        (DdpError::InvalidStag, tagged(revoked.stag(), 0x1000, 0xC1, b"x")),
        (DdpError::InvalidStag, tagged(read_only.stag(), 0x1000, 0xC1, b"x")),
        (DdpError::InvalidStag, tagged(local.stag(), 0x1000, 0xC1, b"x")),
        (DdpError::NotAssociated, tagged(other_pd.stag(), 0x1000, 0xC1, b"x")),
        (DdpError::NotAssociated, tagged(other_stream.stag(), 0x1000, 0xC1, b"x")),
        (DdpError::BaseOrBounds, tagged(s, 0xFFF, 0xC1, b"x")),
        (DdpError::BaseOrBounds, tagged(s, 0x100F, 0xC1, b"xy")),
        (DdpError::BaseOrBounds, tagged(s, 0x1010, 0xC1, b"x")),
        (DdpError::BaseOrBounds, tagged(s, 0, 0xC1, b"x")),
        (DdpError::ToWrap, tagged(s, u64::MAX, 0xC1, b"x")),
        (DdpError::ToWrap, tagged(top.stag(), u64::MAX, 0xC1, b"x")),
        (DdpError::TaggedVersion, tagged(s, 0x1000, 0xC0, b"x")),
        (DdpError::TaggedVersion, tagged(s, 0x1000, 0xC2, b"x")),
        (DdpError::TaggedVersion, tagged(s, 0x1000, 0xC3, b"")),
        (DdpError::InvalidQn, untagged(5, 1, 0, 0x41, b"x")),
        (DdpError::InvalidQn, untagged(u32::MAX, 1, 0, 0x41, b"x")),
        (DdpError::NoBuffer, untagged(0, 4, 0, 0x41, b"x")),
        (DdpError::NoBuffer, untagged(1, 1, 0, 0x41, b"x")),
        (DdpError::MsnRange, untagged(0, 0, 0, 0x41, b"x")),
        (DdpError::MsnRange, untagged(0, 1, 0, 0x41, b"x")),
        (DdpError::InvalidMo, untagged(0, 2, 17, 0x41, b"x")),
        (DdpError::InvalidMo, untagged(0, 2, u32::MAX, 0x41, b"")),
        (DdpError::InvalidMo, untagged(0, 2, 4, 0x41, b"x")),
        (DdpError::InvalidMo, untagged(0, 2, 1, 0x01, b"")),
        (DdpError::TooLong, untagged(0, 2, 10, 0x41, b"1234567")),
        (DdpError::TooLong, untagged(0, 2, 16, 0x41, b"x")),
        (DdpError::UntaggedVersion, untagged(0, 2, 0, 0x40, b"x")),
        (DdpError::UntaggedVersion, untagged(0, 2, 0, 0x42, b"x")),
    ] {
        let wire = [untagged(0, 1, 0, 0x41, b"hi"), bad, untagged(0, 2, 0, 0x41, b"late")];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut sink = Sink::new(&table);
            sink.post(0, 16, 1);
            sink.post(0, 16, 1);
            // Queue 1 is open and has no buffer.
            sink.queues.insert(1, (UntaggedQueue::new(), VecDeque::new()));
            for position in order {
                sink.receive(position, &wire[position]);
            }
            assert_eq!(sink.error, Some(error), "{} in order {order:?}", hex(&wire[1]));
            assert_eq!(sink.delivered.len(), 1);
            let mut bytes = [0xFF; 16];
            mine.memory().read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 16]);
        }
    }
}

/// An empty tagged segment is accepted with any STag and offset. An empty untagged segment consumes a buffer.
// Proves DDP-187, RDMAP-246.
#[test]
fn empty_segments() {
    let table = MemoryTable::new(1, [1; 32]);
    let mut sink = Sink::new(&table);
    let tagged = Header::from(Opcode::Write.tagged_header(Stag(0xDEAD), u64::MAX, true));
    sink.receive(0, &tagged.to_bytes());
    sink.post(0, 0, 1);
    let send = |msn| Header::from(Opcode::Send.untagged_header(Stag(0), msn, 0, true)).to_bytes();
    sink.receive(1, &send(1));
    assert_eq!((sink.delivered.len(), sink.error), (2, None));
    sink.receive(2, &send(2));
    assert_eq!(sink.error, Some(DdpError::NoBuffer));
}

/// The window of MSNs wraps: four buffers are posted from MSN 0xFFFFFFFE on.
// Proves DDP-091, DDP-176, DDP-177.
#[test]
fn the_msn_window_wraps() {
    let mut queue = UntaggedQueue::starting_at(0xFFFF_FFFE);
    assert!(queue.post(4));
    for (index, msn) in [0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1].into_iter().enumerate() {
        assert_eq!(queue.index_of(msn), Ok(index as u32));
    }
    assert_eq!(queue.index_of(2), Err(DdpError::NoBuffer));
    assert_eq!(queue.index_of(0xFFFF_FFFD), Err(DdpError::MsnRange));
    for msn in [0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1] {
        let header = |mo, last| Opcode::Send.untagged_header(Stag(0), msn, mo, last);
        assert_eq!(queue.deliver(&header(0, false), 7), Ok(None));
        let message = queue.deliver(&header(7, true), 3).unwrap();
        assert_eq!(message.map(|m| (m.msn, m.len)), Some((msn, 10)));
    }
    assert_eq!((queue.first_msn(), queue.posted()), (2, 0));
    assert!(queue.post(UntaggedQueue::MAX_POSTED) && !queue.post(1));
}

/// Each delivered message moves the start of the window of valid MSNs, and each posted buffer moves the
/// window's end.
// Proves DDP-175.
#[test]
fn the_msn_window_moves() {
    let mut queue = UntaggedQueue::new();
    assert!(queue.post(3));
    let first = Opcode::Send.untagged_header(Stag(0), 1, 0, true);
    assert!(queue.deliver(&first, 1).unwrap().is_some());
    let legal = |queue: &UntaggedQueue| (0..6).filter(|msn| queue.index_of(*msn).is_ok()).collect::<Vec<_>>();
    assert_eq!(legal(&queue), [2, 3]);
    assert!(queue.post(1));
    assert_eq!(legal(&queue), [2, 3, 4]);
}

/// Error type 3 belongs to the LLP, so no error of DDP has this type.
// Proves DDP-208.
#[test]
fn no_error_is_of_the_type_that_is_the_llps() {
    assert!(DdpError::ALL.iter().all(|error| error.etype() < 3));
}

/// The sum of MO and length is computed with 64 bits, and a message has at most 2^32 - 1 bytes.
// Proves DDP-172.
#[test]
fn huge_offsets_do_not_wrap() {
    let mut queue = UntaggedQueue::new();
    assert!(queue.post(1));
    let header = Opcode::Send.untagged_header(Stag(0), 1, u32::MAX, true);
    assert_eq!(queue.check(&header, 2, |_| 1), Err(DdpError::InvalidMo));
    assert_eq!(queue.check(&header, 2, |_| u64::from(u32::MAX)), Err(DdpError::TooLong));
    let first = Opcode::Send.untagged_header(Stag(0), 1, 0, false);
    assert_eq!(queue.deliver(&first, u32::MAX as usize), Ok(None));
    assert_eq!(queue.deliver(&header, 2), Err(DdpError::TooLong));
}

/// Each delivered segment has to begin where the previous segment ended, so that a message has exactly the
/// bytes that were sent.
#[test]
fn a_message_is_delivered_without_gaps() {
    let segment = |msn, mo, last| Opcode::Send.untagged_header(Stag(0), msn, mo, last);
    for (delivered, wrong) in
        [(&[][..], 4), (&[][..], u32::MAX), (&[10][..], 9), (&[10][..], 11), (&[10, 0, 5][..], 0)]
    {
        for last in [false, true] {
            let mut queue = UntaggedQueue::new();
            assert!(queue.post(3));
            // The first message leaves no state for the second message.
            assert!(queue.deliver(&segment(1, 0, false), 3) == Ok(None));
            assert!(queue.deliver(&segment(1, 3, true), 3).unwrap().is_some());
            let mut mo = 0;
            for &len in delivered {
                assert_eq!(queue.deliver(&segment(2, mo, false), len), Ok(None));
                mo += len as u32;
            }
            let gap = segment(2, wrong, last);
            assert_eq!(queue.check_next(&gap), Err(DdpError::InvalidMo), "{delivered:?}, {wrong}");
            assert_eq!(queue.deliver(&gap, 1), Err(DdpError::InvalidMo), "{delivered:?}, {wrong}");
            // The segment and the next message may be placed early.
            assert_eq!(queue.check_next(&segment(3, 7, last)), Ok(()));
            assert_eq!((queue.first_msn(), queue.posted()), (2, 2));
            let message = queue.deliver(&segment(2, mo, true), 1).unwrap();
            assert_eq!(message.map(|m| (m.msn, m.len)), Some((2, mo + 1)), "what is right is taken");
        }
    }
}

/// Ten thousand random strings arrive as segments, each at a new sink. Each string that has a complete header
/// causes an error or a placement, and no string causes a panic.
#[test]
fn random_segments_never_panic() {
    let mut dice = Dice::split_mix(0xDD);
    let table = MemoryTable::new(8, [9; 32]);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mine = register(&table, 64, RegisterOptions { pd: ME.pd, access, ..Default::default() });
    for round in 0..10_000_u64 {
        let mut sink = Sink::new(&table);
        sink.post(0, 32, 1);
        let len = dice.below(60) as usize;
        let mut segment = dice.bytes(len);
        if round % 2 == 0 && len > 18 {
            segment[0] = [0x81, 0xC1, 0x01, 0x41][dice.below(4) as usize];
            segment[2..6].copy_from_slice(&mine.stag().0.to_be_bytes());
            segment[6..14].copy_from_slice(&(mine.base_to() + dice.below(80)).to_be_bytes());
        }
        let runt = matches!(Header::parse(&segment), Err(HeaderError::Runt { .. }));
        sink.receive(0, &segment);
        assert!(runt || sink.error.is_some() || sink.frontier == 1);
    }
}
