//! A ticket counter: two clients draw numbers from one word in the memory of the server, and no number is
//! drawn twice. Then the first client sends Immediate Data. The server's program is notified of this message,
//! but not of the draws.
//!
//! `cargo run -p iwarp --no-default-features --example tickets`

use std::error::Error;
use std::time::{Duration, Instant};

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    AtomicOp, CmEventKind, CompletionQueue, ConnParam, Context, ContextConfig, QpInit, RecvRequest,
    RemoteAddr, SendOp, SendRequest, WcStatus, WorkCompletion,
};

fn main() -> Result<(), Box<dyn Error>> {
    // Two hosts on a wire in memory. On a network, each host is a process with its own port.
    let (port_a, port_b) = pair(&LinkConfig::default());
    let (client, server) = (Context::new(ContextConfig::default())?, Context::new(ContextConfig::default())?);
    let config_a = EngineConfig::new(&*port_a, &["10.0.0.1/24"])?;
    let config_b = EngineConfig::new(&*port_b, &["10.0.0.2/24"])?;
    let mut engines = [Engine::new(&client, port_a, config_a)?, Engine::new(&server, port_b, config_b)?];

    // The counter of the server, and a buffer for eight bytes of Immediate Data.
    let server_pd = server.alloc_pd()?;
    let counter = server_pd.reg_mr(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let room = server_pd.reg_mr(8, Access::LOCAL_WRITE)?;
    let server_cq = server.create_cq(16, None)?;
    let server_events = server.create_event_channel()?;
    let listener = server.create_id(&server_events);
    listener.listen(7471, 8, Duration::from_secs(10))?;

    // The two connections. The server's private data contains the address of the counter.
    let client_pd = client.alloc_pd()?;
    let drawn = client_pd.reg_mr(16, Access::LOCAL_WRITE)?;
    let client_cq = client.create_cq(16, None)?;
    let client_events = client.create_event_channel()?;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let qp = client_pd.create_qp(&QpInit::new(&client_cq))?;
        let id = client.create_id(&client_events);
        id.connect(&qp, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
        let request = wait(&mut engines, || server_events.poll())?;
        let server_qp = server_pd.create_qp(&QpInit::new(&server_cq))?;
        server_qp.post_recv(&RecvRequest::new(0, room.sge(0, 8)))?;
        let advert = [&counter.addr().to_be_bytes()[..], &counter.rkey().to_be_bytes()].concat();
        request.id.accept(&server_qp, &ConnParam::default().with_private_data(&advert)?)?;
        let CmEventKind::Established { private_data, .. } = wait(&mut engines, || client_events.poll())?.kind
        else {
            return Err("not connected".into());
        };
        let remote = RemoteAddr {
            addr: u64::from_be_bytes(private_data[..8].try_into()?),
            rkey: u32::from_be_bytes(private_data[8..].try_into()?),
        };
        wait(&mut engines, || server_events.poll())?;
        clients.push((qp, remote, [id, request.id], server_qp));
    }

    // The clients draw alternately. The ticket is the value of the counter before the atomic adds 1.
    let draw = AtomicOp::FetchAdd { add: 1, mask: 0 };
    for n in 0..6 {
        let (qp, remote, ..) = &clients[n % 2];
        let op = SendOp::Atomic { remote: *remote, op: draw };
        qp.post_send(&SendRequest::new(n as u64, op, drawn.sge(8 * (n % 2), 8)))?;
        complete(&mut engines, &client_cq)?;
        let mut ticket = [0; 8];
        drawn.read_at(8 * (n % 2), &mut ticket)?;
        println!("client {} draws {}", n % 2, u64::from_ne_bytes(ticket));
    }

    let done = SendOp::Immediate { data: *b"all done" };
    clients[0].0.post_send(&SendRequest::empty(6, done))?;
    complete(&mut engines, &client_cq)?;
    let told = complete(&mut engines, &server_cq)?;
    println!("{}", String::from_utf8_lossy(&told.immediate.unwrap_or_default()));
    Ok(())
}

/// Polls both engines until `done` returns a value: no data moves without polling.
fn wait<T>(engines: &mut [Engine; 2], mut done: impl FnMut() -> Option<T>) -> Result<T, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        for engine in engines.iter_mut() {
            engine.poll();
        }
        if let Some(value) = done() {
            return Ok(value);
        }
    }
    Err("nothing happened for ten seconds".into())
}

fn complete(engines: &mut [Engine; 2], cq: &CompletionQueue) -> Result<WorkCompletion, Box<dyn Error>> {
    let wc = wait(engines, || cq.poll_one())?;
    match wc.status {
        WcStatus::Success => Ok(wc),
        status => Err(format!("request {}: {status}", wc.wr_id).into()),
    }
}
