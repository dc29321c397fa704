//! Connects to any iWARP listener and writes to an STag that does not exist. The peer has to terminate the
//! stream, and our stack has to report the peer's Terminate.
//!
//! Prints how the connection ended. Exits with status 0 if the peer's Terminate ended the connection.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, ConnParam, Context, ContextConfig, QpInit, RemoteAddr, SendOp, SendRequest, StreamError,
};
use tests::device::DeviceArgs;

/// An STag of siw's form (key 0) that does not exist, and an address.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 0x1234_5600 };
/// Maximum duration of the run.
const LIMIT: Duration = Duration::from_secs(30);
/// Time after the end of the connection for which this program still answers the peer's FIN.
const LINGER: Duration = Duration::from_millis(500);

/// Writes to an STag that does not exist.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    device: DeviceArgs,
    /// Address of the listener.
    #[arg(long)]
    connect: SocketAddr,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(error) => {
            println!("{error}");
            if error.from_peer { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("bad-write: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<StreamError, Box<dyn std::error::Error>> {
    let port = options.device.open()?;
    let context = Context::new(ContextConfig::default())?;
    let config = EngineConfig::new(&*port, &[&options.device.ip])?;
    let mut engine = Engine::new(&context, port, config)?;

    let pd = context.alloc_pd()?;
    let own = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
    let cq = context.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;
    let events = context.create_event_channel()?;
    let id = context.create_id(&events);
    id.connect(&qp, options.connect, &ConnParam::default())?;

    let started = Instant::now();
    while started.elapsed() < LIMIT {
        engine.poll();
        match events.poll().map(|event| event.kind) {
            Some(CmEventKind::Established { .. }) => {
                qp.post_send(&SendRequest::new(1, SendOp::Write { remote: NOWHERE }, own.sge(0, 64)))?;
            }
            Some(CmEventKind::Disconnected { .. }) => {
                let error = qp.error().ok_or("disconnected, but the stream has no error")?;
                // The engine has to send the last acknowledgements, since the peer's kernel waits for them.
                let ended = Instant::now();
                while ended.elapsed() < LINGER {
                    engine.poll();
                }
                return Ok(error);
            }
            Some(other) => return Err(format!("{other:?}").into()),
            None => {}
        }
    }
    Err(format!("nothing after {LIMIT:?}").into())
}

#[cfg(test)]
mod command_line {
    use clap::CommandFactory;

    #[test]
    fn it_is_consistent() {
        super::Options::command().debug_assert();
    }
}
