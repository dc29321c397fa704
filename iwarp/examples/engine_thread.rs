//! Engines in separate threads: the program waits for completions on a channel instead of polling.
//!
//! `cargo run -p iwarp --no-default-features --example engine_thread`

use std::error::Error;
use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig, ThreadOptions};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CompletionChannel, CompletionQueue, ConnParam, Context, ContextConfig,
    EventChannel, QpInit, RemoteAddr, SendOp, SendRequest, WcStatus, WorkCompletion,
};

const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let (client, server) = (Context::new(ContextConfig::default())?, Context::new(ContextConfig::default())?);
    let config_a = EngineConfig::new(&*port_a, &["10.0.0.1/24"])?;
    let config_b = EngineConfig::new(&*port_b, &["10.0.0.2/24"])?;
    // An idle engine spins for a while, then yields, then sleeps. A post wakes a sleeping engine.
    let _engine_a = Engine::new(&client, port_a, config_a)?.spawn(ThreadOptions::default())?;
    let _engine_b = Engine::new(&server, port_b, config_b)?.spawn(ThreadOptions::default())?;

    let server_pd = server.alloc_pd()?;
    let lent = server_pd.reg_mr(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let server_cq = server.create_cq(16, None)?;
    let server_qp = server_pd.create_qp(&QpInit::new(&server_cq))?;
    let server_events = server.create_event_channel()?;
    let listener = server.create_id(&server_events);
    listener.listen(7471, 8, PATIENCE)?;

    let client_pd = client.alloc_pd()?;
    let own = client_pd.reg_mr(1 << 20, Access::LOCAL_WRITE)?;
    let channel = client.create_comp_channel()?;
    let cq = client.create_cq(64, Some(&channel))?;
    let qp = client_pd.create_qp(&QpInit::new(&cq))?;
    let client_events = client.create_event_channel()?;
    let id = client.create_id(&client_events);
    id.connect(&qp, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
    event(&server_events)?.id.accept(&server_qp, &ConnParam::default())?;
    let established = event(&client_events)?;
    if !matches!(established.kind, CmEventKind::Established { .. }) {
        return Err(format!("not connected: {established:?}").into());
    }

    let remote = RemoteAddr { addr: lent.addr(), rkey: lent.rkey() };
    for n in 0..16_u8 {
        own.write_at(0, &vec![n; own.len()])?;
        qp.post_send(&SendRequest::new(u64::from(n), SendOp::Write { remote }, own.sge(0, own.len())))?;
        let wc = completion(&cq, &channel)?;
        if (wc.wr_id, wc.status) != (u64::from(n), WcStatus::Success) {
            return Err(format!("request {}: {}", wc.wr_id, wc.status).into());
        }
    }
    id.disconnect();
    event(&client_events)?;
    println!("16 Writes of {} bytes, the last one of {}", own.len(), lent.load_u8(lent.len() - 1)?);
    Ok(())
}

fn event(channel: &EventChannel) -> Result<CmEvent, Box<dyn Error>> {
    Ok(channel.wait(PATIENCE)?.ok_or("no event in time")?)
}

/// Returns the next completion, and waits if there is none. Arms the queue before the last poll, so that no
/// completion is missed.
fn completion(cq: &CompletionQueue, channel: &CompletionChannel) -> Result<WorkCompletion, Box<dyn Error>> {
    loop {
        if let Some(wc) = cq.poll_one() {
            return Ok(wc);
        }
        cq.req_notify(false)?;
        if let Some(wc) = cq.poll_one() {
            return Ok(wc);
        }
        if channel.wait(Some(PATIENCE))? == 0 {
            return Err("no completion in time".into());
        }
    }
}
