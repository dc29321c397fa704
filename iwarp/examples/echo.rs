//! A client sends messages, and a server echoes them with Sends. The client's private data contains the
//! length of the client's messages. The server posts receives of this length, and sends each message back.
//!
//! `cargo run -p iwarp --no-default-features --example echo`

use std::error::Error;
use std::time::{Duration, Instant};

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CompletionQueue, ConnParam, Context, ContextConfig, MemoryRegion, QpInit, QueuePair,
    RecvRequest, SendOp, SendRequest, WcOpcode, WcStatus, WorkCompletion,
};

const MESSAGES: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let mut client = Host::new(port_a, "10.0.0.1/24")?;
    let mut server = Host::new(port_b, "10.0.0.2/24")?;
    let client_events = client.context.create_event_channel()?;
    let server_events = server.context.create_event_channel()?;
    let listener = server.context.create_id(&server_events);
    listener.listen(7471, 8, Duration::from_secs(10))?;

    let text = b"hello, hello";
    let id = client.context.create_id(&client_events);
    let param = ConnParam::default().with_private_data(&(text.len() as u32).to_be_bytes())?;
    // Post receives before the connection exists: a Send without a posted receive ends the connection.
    client.post_recv(text.len())?;
    id.connect(&client.qp, "10.0.0.2:7471".parse()?, &param)?;

    let request = wait(&mut client, &mut server, |_, _| server_events.poll())?;
    let CmEventKind::ConnectRequest { private_data, .. } = &request.kind else {
        return Err(format!("no request: {request:?}").into());
    };
    let length = u32::from_be_bytes(private_data[..4].try_into()?) as usize;
    if length > 1024 {
        request.id.reject(b"at most 1024 bytes")?;
        return Err("rejected".into());
    }
    server.post_recv(length)?;
    request.id.accept(&server.qp, &ConnParam::default())?;
    let event = wait(&mut client, &mut server, |_, _| client_events.poll())?;
    if !matches!(event.kind, CmEventKind::Established { .. }) {
        return Err(format!("not connected: {event:?}").into());
    }

    client.buffer.write_at(0, text)?;
    for message in 1..=MESSAGES {
        client.send(text.len())?;
        let got = wait(&mut client, &mut server, |_, server| server.received())?;
        // The receive buffer is after the send buffer. The server copies the received bytes to the send
        // buffer, posts the receive again, and answers.
        let mut bytes = vec![0; got.byte_len as usize];
        server.buffer.read_at(1024, &mut bytes)?;
        server.buffer.write_at(0, &bytes)?;
        server.post_recv(length)?;
        server.send(bytes.len())?;
        let got = wait(&mut client, &mut server, |client, _| client.received())?;
        client.buffer.read_at(1024, &mut bytes)?;
        println!("{message}: {} bytes, {:?}", got.byte_len, String::from_utf8_lossy(&bytes));
        client.post_recv(text.len())?;
    }
    id.disconnect();
    wait(&mut client, &mut server, |_, _| client_events.poll())?;
    Ok(())
}

struct Host {
    context: Context,
    engine: Engine,
    buffer: MemoryRegion,
    cq: CompletionQueue,
    qp: QueuePair,
}

impl Host {
    fn new(port: Box<dyn dp::Port>, address: &str) -> Result<Self, Box<dyn Error>> {
        let context = Context::new(ContextConfig::default())?;
        let config = EngineConfig::new(&*port, &[address])?;
        let engine = Engine::new(&context, port, config)?;
        let pd = context.alloc_pd()?;
        // 1024 bytes to send from, and 1024 bytes to receive into.
        let buffer = pd.reg_mr(2048, Access::LOCAL_WRITE)?;
        let cq = context.create_cq(16, None)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        Ok(Self { context, engine, buffer, cq, qp })
    }

    fn post_recv(&self, length: usize) -> Result<(), Box<dyn Error>> {
        Ok(self.qp.post_recv(&RecvRequest::new(0, self.buffer.sge(1024, length)))?)
    }

    fn send(&self, length: usize) -> Result<(), Box<dyn Error>> {
        Ok(self.qp.post_send(&SendRequest::new(0, SendOp::Send, self.buffer.sge(0, length)))?)
    }

    /// Polls once. Returns the completion if a receive has succeeded; drops any other completion.
    fn received(&self) -> Option<WorkCompletion> {
        let wc = self.cq.poll_one()?;
        (wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv).then_some(wc)
    }
}

fn wait<T>(
    client: &mut Host,
    server: &mut Host,
    mut done: impl FnMut(&Host, &Host) -> Option<T>,
) -> Result<T, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        client.engine.poll();
        server.engine.poll();
        if let Some(value) = done(client, server) {
            return Ok(value);
        }
    }
    Err("nothing happened for ten seconds".into())
}
