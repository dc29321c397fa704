//! A client writes to the memory of a server, and reads the bytes back. The server's program takes no part in
//! either operation.
//!
//! `cargo run -p iwarp --no-default-features --example write_read`

use std::error::Error;
use std::time::{Duration, Instant};

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CompletionQueue, ConnParam, Context, ContextConfig, QpInit, RemoteAddr, SendOp, SendRequest,
    WcStatus,
};

fn main() -> Result<(), Box<dyn Error>> {
    // Two hosts on a wire in memory. On a network, each host is a process with its own port.
    let (port_a, port_b) = pair(&LinkConfig::default());
    let (client, server) = (Context::new(ContextConfig::default())?, Context::new(ContextConfig::default())?);
    let config_a = EngineConfig::new(&*port_a, &["10.0.0.1/24"])?;
    let config_b = EngineConfig::new(&*port_b, &["10.0.0.2/24"])?;
    let mut engines = [Engine::new(&client, port_a, config_a)?, Engine::new(&server, port_b, config_b)?];

    // The server's memory that its peers may access, and the server's listener.
    let server_pd = server.alloc_pd()?;
    let lent = server_pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let server_cq = server.create_cq(16, None)?;
    let server_qp = server_pd.create_qp(&QpInit::new(&server_cq))?;
    let server_events = server.create_event_channel()?;
    let listener = server.create_id(&server_events);
    listener.listen(7471, 8, Duration::from_secs(10))?;

    // The client connects. The private data of the server contains the address of the server's memory.
    let client_pd = client.alloc_pd()?;
    let own = client_pd.reg_mr(4096, Access::LOCAL_WRITE)?;
    let client_cq = client.create_cq(16, None)?;
    let client_qp = client_pd.create_qp(&QpInit::new(&client_cq))?;
    let client_events = client.create_event_channel()?;
    let id = client.create_id(&client_events);
    id.connect(&client_qp, "10.0.0.2:7471".parse()?, &ConnParam::default())?;

    let request = wait(&mut engines, || server_events.poll())?;
    let advert = [&lent.addr().to_be_bytes()[..], &lent.rkey().to_be_bytes()].concat();
    request.id.accept(&server_qp, &ConnParam::default().with_private_data(&advert)?)?;
    let remote = match wait(&mut engines, || client_events.poll())?.kind {
        CmEventKind::Established { private_data, .. } => RemoteAddr {
            addr: u64::from_be_bytes(private_data[..8].try_into()?),
            rkey: u32::from_be_bytes(private_data[8..].try_into()?),
        },
        other => return Err(format!("not connected: {other:?}").into()),
    };

    own.write_at(0, b"written and read back")?;
    client_qp.post_send(&SendRequest::new(1, SendOp::Write { remote }, own.sge(0, 21)))?;
    client_qp.post_send(&SendRequest::new(2, SendOp::Read { remote }, own.sge(100, 21)))?;
    for _ in 0..2 {
        complete(&mut engines, &client_cq)?;
    }
    let mut text = [0; 21];
    own.read_at(100, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));

    id.disconnect();
    wait(&mut engines, || client_events.poll())?;
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

fn complete(engines: &mut [Engine; 2], cq: &CompletionQueue) -> Result<(), Box<dyn Error>> {
    let wc = wait(engines, || cq.poll_one())?;
    match wc.status {
        WcStatus::Success => Ok(()),
        status => Err(format!("request {}: {status}", wc.wr_id).into()),
    }
}
