//! How the server example lends buffers when its clients are hostile.

#[path = "../../../examples/server/lending.rs"]
mod lending;

use crate::common::{Connected, Pair, expect_terminate, pattern, read_bytes};
use iwarp::memory::Access;
use iwarp::verbs::{
    ConnParam, MemoryRegion, QpGrants, QpInit, RecvRequest, RemoteAddr, SendOp, SendRequest, WcStatus,
    WorkCompletion,
};
use lending::{Lender, Loan, Return};

const BUFFER: usize = 512;
const WRITE: Access = Access::REMOTE_WRITE;
const READ: Access = Access::REMOTE_READ;

/// B is the server, with buffers to lend. The server's clients are connections from A.
struct Server {
    pair: Pair,
    clients: Vec<Connected>,
    lender: Lender,
    local: MemoryRegion,
    inbox: MemoryRegion,
}

impl Server {
    fn new(clients: usize, buffers: usize) -> Self {
        let (mut pair, listener) = Pair::listening();
        let param = ConnParam::default();
        let connect = |pair: &mut Pair| {
            let (grants, cq) = (QpGrants::BIND_WINDOWS, pair.b.cq.clone());
            let qp_b = pair.b.pd.create_qp(&QpInit { grants, ..QpInit::new(&cq) }).unwrap();
            let qp_a = pair.a.qp();
            pair.connect_qps(qp_a, qp_b, &param, &param)
        };
        let clients = (0..clients).map(|_| connect(&mut pair)).collect();
        listener.disconnect();
        let lender = Lender::new(&pair.b.pd, buffers, BUFFER).unwrap();
        let local = pair.a.pd.reg_mr(4096, Access::LOCAL_WRITE).unwrap();
        let inbox = pair.b.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
        let mut server = Self { pair, clients, lender, local, inbox };
        // A responder may send after the initiator has sent its first message.
        for client in 0..server.clients.len() {
            server.send(client, SendOp::Send);
        }
        server
    }

    fn lend(&mut self, client: usize, access: Access, contents: &[u8]) -> Loan {
        let qp = self.clients[client].qp_b.clone();
        let loan = self.lender.lend(&qp, access, contents).unwrap().expect("a free buffer");
        self.pair.run_us(100);
        loan
    }

    /// Sends a client's message, and returns the server's completion.
    fn send(&mut self, client: usize, op: SendOp) -> WorkCompletion {
        let c = &self.clients[client];
        c.qp_b.post_recv(&RecvRequest::new(0, self.inbox.sge(0, 64))).unwrap();
        c.qp_a.post_send(&SendRequest::new(0, op, self.local.sge(0, 8))).unwrap();
        assert_eq!(self.pair.wc_a().status, WcStatus::Success);
        self.pair.wc_b()
    }

    fn write(&self, client: usize, rkey: u32, bytes: &[u8]) {
        self.local.write_at(0, bytes).unwrap();
        let op = SendOp::Write { remote: RemoteAddr { addr: 0, rkey } };
        let request = SendRequest::new(0, op, self.local.sge(0, bytes.len()));
        self.clients[client].qp_a.post_send(&request).unwrap();
    }

    fn read(&mut self, client: usize, rkey: u32) -> Vec<u8> {
        let op = SendOp::Read { remote: RemoteAddr { addr: 0, rkey } };
        let request = SendRequest::new(0, op, self.local.sge(1024, BUFFER));
        self.clients[client].qp_a.post_send(&request).unwrap();
        assert_eq!(self.pair.wc_a().status, WcStatus::Success);
        read_bytes(&self.local, 1024, BUFFER)
    }

    /// Posts a client's request of `len` bytes, which must end the client's stream with `codes`.
    fn refused(mut self, client: usize, op: SendOp, len: usize, codes: (u8, u8, u8)) -> Self {
        let c = self.clients.remove(client);
        if matches!(op, SendOp::SendInvalidate { .. }) {
            c.qp_b.post_recv(&RecvRequest::new(0, self.inbox.sge(0, 64))).unwrap();
        }
        c.qp_a.post_send(&SendRequest::new(0, op, self.local.sge(0, len))).unwrap();
        expect_terminate(&mut self.pair, &c, codes.0, codes.1, codes.2);
        self
    }
}

/// The server gets the bytes of a loan only when the STag of the loan is invalid. In the three cases of the
/// test, the client has invalidated this STag, no STag, or another STag.
// Proves SEC-178, SEC-100.
#[test]
fn the_stag_is_invalid_before_the_bytes_are_checked() {
    for case in 0..3 {
        let mut server = Server::new(1, 2);
        let (loan, other) = (server.lend(0, WRITE, &[]), server.lend(0, WRITE, &[]));
        let (name, other_name) = (loan.name(), other.name());
        server.write(0, name, b"contents");
        assert_eq!(server.pair.wc_a().status, WcStatus::Success);
        let (op, how) = match case {
            0 => (SendOp::SendInvalidate { rkey: name }, Return::Given),
            1 => (SendOp::Send, Return::Taken),
            _ => (SendOp::SendInvalidate { rkey: other_name }, Return::Taken),
        };
        let done = server.send(0, op);
        let (bytes, returned) = server.lender.take_back(loan, &done).unwrap();
        assert_eq!((&bytes[..8], returned), (b"contents".as_slice(), how));
        let op = SendOp::Write { remote: RemoteAddr { addr: 0, rkey: name } };
        server.refused(0, op, 8, (1, 1, 0));
    }
}

/// A client writes again after its message, while the server takes the buffer back. Bytes that the server has
/// read do not change.
// Proves SEC-177: in simulated time, each moment of the race occurs a hundred times. More rounds would only
// repeat these moments.
#[test]
fn checked_bytes_do_not_change() {
    let (mut server, mut rewrote) = (Server::new(1, 1), 0);
    for round in 0..1200_u64 {
        let loan = server.lend(0, WRITE, &[]);
        let name = loan.name();
        server.write(0, name, &pattern(round, BUFFER));
        assert_eq!(server.pair.wc_a().status, WcStatus::Success);
        let done = server.send(0, SendOp::Send);
        // The Writes follow the message. When the server reads the buffer, some Writes are complete and some
        // are not.
        server.write(0, name, &pattern(round + 1000, BUFFER));
        for _ in 0..round % 12 {
            server.pair.poll();
        }
        let (first, _) = server.lender.take_back(loan, &done).unwrap();
        rewrote += u32::from(first != pattern(round, BUFFER));
        server.pair.run_us(500);
        while server.pair.a.cq.poll_one().is_some() {}
        let error = server.clients[0].qp_b.error();
        let last = server.lender.look(0).unwrap();
        assert_eq!(first, last, "round {round}");
        // A Write that arrives too late has ended the stream.
        if error.is_some() {
            server = Server::new(1, 1);
        }
    }
    assert!(rewrote > 0 && rewrote < 1200, "the race was not run: {rewrote}");
}

/// A buffer passes from client to client. The next client sees no bytes of the previous client, and the
/// previous client cannot access the bytes of the next client.
// Proves SEC-179, SEC-118, SEC-181.
#[test]
fn a_buffer_goes_from_client_to_client() {
    let mut server = Server::new(2, 1);
    let mut names = [0; 2];
    for round in 0..20_usize {
        let client = round % 2;
        let loan = server.lend(client, READ | WRITE, b"hello");
        let mut fresh = vec![0; BUFFER];
        fresh[..5].copy_from_slice(b"hello");
        assert_eq!(server.read(client, loan.name()), fresh);
        server.write(client, loan.name(), &pattern(round as u64, BUFFER));
        assert_eq!(server.pair.wc_a().status, WcStatus::Success);
        names[client] = loan.name();
        // The other client does not get the buffer during the loan.
        let qp = server.clients[1 - client].qp_b.clone();
        assert!(server.lender.lend(&qp, READ, &[]).unwrap().is_none());
        let done = server.send(client, SendOp::Send);
        let (bytes, _) = server.lender.take_back(loan, &done).unwrap();
        assert_eq!(bytes, pattern(round as u64, BUFFER));
    }
    let loan = server.lend(0, READ | WRITE, b"secret");
    let op = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: names[1] } };
    let mut server = server.refused(1, op, 8, (0, 1, 0));
    while server.pair.a.cq.poll_one().is_some() {}
    assert_eq!(server.read(0, loan.name())[..6], *b"secret");
}

/// A client uses the STag of another client. No Write, Read or invalidation succeeds, and the owner's stream
/// continues.
// Proves SEC-027, SEC-089, SEC-187.
#[test]
fn a_name_is_one_clients() {
    for case in 0..3 {
        let mut server = Server::new(2, 1);
        let loan = server.lend(0, READ | WRITE, b"mine");
        let remote = RemoteAddr { addr: 0, rkey: loan.name() };
        let (op, codes) = match case {
            0 => (SendOp::Write { remote }, (1, 1, 2)),
            1 => (SendOp::Read { remote }, (0, 1, 3)),
            _ => (SendOp::SendInvalidate { rkey: remote.rkey }, (0, 1, 9)),
        };
        let mut server = server.refused(1, op, 8, codes);
        while server.pair.a.cq.poll_one().is_some() {}
        assert_eq!(server.read(0, loan.name())[..4], *b"mine");
    }
}

/// A client reads one byte outside the buffer, or reads a buffer that was lent for writing. The client's
/// stream ends.
// Proves SEC-180.
#[test]
fn a_loan_is_just_what_was_meant() {
    for (addr, len, access, codes) in [
        (BUFFER as u64, 1, READ, (0, 1, 1)),
        (1, BUFFER, READ, (0, 1, 1)),
        (u64::MAX, 1, READ, (0, 1, 4)),
        (0, 8, WRITE, (0, 1, 2)),
    ] {
        let mut server = Server::new(1, 3);
        let loans = [server.lend(0, access, &[]), server.lend(0, access, &[]), server.lend(0, access, &[])];
        let op = SendOp::Read { remote: RemoteAddr { addr, rkey: loans[1].name() } };
        server.refused(0, op, len, codes);
    }
}
