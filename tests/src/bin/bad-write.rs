//! Connects to any iWARP listener and writes to an STag that nobody has registered: the peer has to terminate
//! the stream, and we have to hear of it.
//!
//! Prints what ended the connection. Exits 0 when that was the peer's Terminate.

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

/// An STag of the form siw gives out (key 0), and an address, that are nobody's.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 0x1234_5600 };
/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a peer's FIN is answered after the end.
const LINGER: Duration = Duration::from_millis(500);

/// Writes to an STag that does not exist.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    device: DeviceArgs,
    /// The listener.
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
                let error = qp.error().ok_or("disconnected without an error of the stream")?;
                // The last acknowledgements, or the peer's kernel waits for them.
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
