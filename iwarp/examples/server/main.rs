//! A server lends buffers to clients that the server does not trust. Each client gets its own STag, which is
//! valid on the client's stream only and covers zeroed memory. The server reads only bytes that the client
//! can no longer change (`lending.rs`).
//!
//! The requirements of RFC 5042 appendix A for a server, and the code that meets each of them:
//!
//! | rule for a server | here |
//! |---|---|
//! | STags of one stream (SEC-175, SEC-187) | windows of type 2, bound to the client's queue pair: `Lender::lend` |
//! | STags that cannot be guessed (SEC-176) | the library |
//! | the server reads nothing that the client can still change (SEC-177, SEC-178) | `Lender::take_back` |
//! | no stale bytes before read access is granted (SEC-179) | `Lender::lend` zeroes |
//! | bounds and rights of the one transfer only (SEC-180) | the arguments of `Lender::lend` |
//! | one client at a time (SEC-181) | a buffer is free or lent |
//! | a receive queue shared by clients has caps (SEC-183) | each client has its own |
//! | a completion queue of the computed size (SEC-184, SEC-185) | `Host::new` |
//! | IPsec, confidentiality (SEC-174, SEC-182) | the deployment: SECURITY.md |
//!
//! `cargo run -p iwarp --no-default-features --example server`

mod lending;

use std::error::Error;
use std::time::{Duration, Instant};

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, CqOptions, MemoryRegion,
    ProtectionDomain, QpGrants, QpInit, QueuePair, RecvRequest, RemoteAddr, SendOp, SendRequest, WcOpcode,
    WcStatus, WorkCompletion, cqe_for,
};
use lending::{Lender, Return};

const CLIENTS: usize = 2;
/// Maximum number of requests in each queue.
const DEPTH: usize = 128;
const LOANS: usize = 4;
const BUFFER: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let mut clients = Host::new(port_a, "10.0.0.1/24")?;
    let mut server = Host::new(port_b, "10.0.0.2/24")?;
    // All clients share one buffer, which is passed from client to client.
    let mut lender = Lender::new(&server.pd, 1, BUFFER)?;
    let (client_events, server_events) =
        (clients.context.create_event_channel()?, server.context.create_event_channel()?);
    let listener = server.context.create_id(&server_events);
    listener.listen(7471, 8, Duration::from_secs(10))?;

    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let id = clients.context.create_id(&client_events);
        let (client, at_server) = (clients.end()?, server.end()?);
        id.connect(&client.qp, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
        let request = wait(&mut clients, &mut server, |_, _| server_events.poll())?;
        at_server.post_recv()?;
        request.id.accept(&at_server.qp, &ConnParam::default())?;
        for events in [&client_events, &server_events] {
            let event = wait(&mut clients, &mut server, |_, _| events.poll())?;
            if !matches!(event.kind, CmEventKind::Established { .. }) {
                return Err(format!("not connected: {event:?}").into());
            }
        }
        connections.push((client, at_server, [id, request.id]));
    }

    let mut returns = Vec::new();
    for loan in 0..LOANS {
        for (number, (client, at_server, _)) in connections.iter().enumerate() {
            let text = format!("loan {loan} of client {number}");
            // The client requests a buffer. The server lends the client a buffer for writing, and sends the
            // STag after the bind.
            client.post_recv()?;
            client.send(SendOp::Send, b"lend")?;
            wait(&mut clients, &mut server, |_, server| server.received())?;
            at_server.post_recv()?;
            let lent = lender.lend(&at_server.qp, Access::REMOTE_WRITE, &[])?.ok_or("the buffer is lent")?;
            at_server.send(SendOp::Send, &lent.name().to_be_bytes())?;
            wait(&mut clients, &mut server, |clients, _| clients.received())?;

            // The client writes, and returns the buffer. In every second round the client leaves the
            // invalidation to the server.
            let mut name = [0; 4];
            client.buffer.read_at(1024, &mut name)?;
            let rkey = u32::from_be_bytes(name);
            client.send(SendOp::Write { remote: RemoteAddr { addr: 0, rkey } }, text.as_bytes())?;
            let gives = loan % 2 == 0;
            client.send(if gives { SendOp::SendInvalidate { rkey } } else { SendOp::Send }, b"done")?;
            let done = wait(&mut clients, &mut server, |_, server| server.received())?;
            at_server.post_recv()?;
            let (bytes, how) = lender.take_back(lent, &done)?;
            if bytes[..text.len()] != *text.as_bytes() || bytes[text.len()..].iter().any(|&byte| byte != 0) {
                return Err("not what the client wrote, or something of another's".into());
            }
            returns.push(how);
        }
    }
    let given = returns.iter().filter(|&&how| how == Return::Given).count();
    println!("{} loans: {given} given back, {} taken back", returns.len(), returns.len() - given);
    for (_, _, [id, _]) in &connections {
        let id: &CmId = id;
        id.disconnect();
    }
    Ok(())
}

struct Host {
    context: Context,
    engine: Engine,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

/// One endpoint of a connection, with a buffer for messages. Sends use the bytes before offset 1024, and
/// receives use the bytes from 1024 on.
struct End {
    qp: QueuePair,
    buffer: MemoryRegion,
}

impl Host {
    fn new(port: Box<dyn dp::Port>, address: &str) -> Result<Self, Box<dyn Error>> {
        let context = Context::new(ContextConfig::default())?;
        let config = EngineConfig::new(&*port, &[address])?;
        let engine = Engine::new(&context, port, config)?;
        // The completion queue has an entry for every request that the queue pairs can post. The queue cannot
        // overflow, however late the program polls.
        let cq = context.create_cq_with(&CqOptions {
            strict: Some(true),
            ..CqOptions::new(cqe_for([DEPTH; 2 * CLIENTS]))
        })?;
        Ok(Self { pd: context.alloc_pd()?, cq, context, engine })
    }

    fn end(&self) -> Result<End, Box<dyn Error>> {
        let init = QpInit {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            grants: QpGrants::BIND_WINDOWS,
            ..QpInit::new(&self.cq)
        };
        Ok(End { qp: self.pd.create_qp(&init)?, buffer: self.pd.reg_mr(2048, Access::LOCAL_WRITE)? })
    }

    /// Polls once. Returns the completion if a receive has succeeded; drops any other completion.
    fn received(&self) -> Option<WorkCompletion> {
        let wc = self.cq.poll_one()?;
        (wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv).then_some(wc)
    }
}

impl End {
    fn post_recv(&self) -> Result<(), Box<dyn Error>> {
        Ok(self.qp.post_recv(&RecvRequest::new(0, self.buffer.sge(1024, 64)))?)
    }

    fn send(&self, op: SendOp, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        let inline = iwarp::verbs::SendFlags::INLINE | iwarp::verbs::SendFlags::SIGNALED;
        self.buffer.write_at(0, bytes)?;
        let request = SendRequest::new(0, op, self.buffer.sge(0, bytes.len()));
        Ok(self.qp.post_send(&request.flags(inline))?)
    }
}

fn wait<T>(
    clients: &mut Host,
    server: &mut Host,
    mut done: impl FnMut(&Host, &Host) -> Option<T>,
) -> Result<T, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        clients.engine.poll();
        server.engine.poll();
        if let Some(value) = done(clients, server) {
            return Ok(value);
        }
    }
    Err("nothing happened for ten seconds".into())
}
