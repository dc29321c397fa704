//! Exchanges every message of RFC 5040 between our verbs and the verbs of another stack, in both directions,
//! and checks the transferred bytes. Also checks the reaction of each side to messages that it has to refuse.
//!
//! The peer is a target (`tests/iwprobe/TARGET.md`). The program prints a line for each scene: `ok NAME` or
//! `FAILED NAME: why`. If the scene ends the stream by a Terminate, the line says who sent it, and its layer,
//! type and code: `ok NAME: we 1/1/0`. The exit status is 0 if all scenes are ok.

mod invalidate;
mod solicited;
mod terminate;
mod transfer;

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use tests::device::DeviceArgs;
use tests::lab::Result;
use tests::scenes::{Lab, Role};

/// The result of a scene: text for its line; `None` if the line has only the name.
type Found = Result<Option<String>>;

struct Scene {
    name: String,
    play: Box<dyn FnOnce(&mut Lab) -> Found>,
}

impl Scene {
    fn new(name: impl Into<String>, play: impl FnOnce(&mut Lab) -> Result<()> + 'static) -> Self {
        Self { name: name.into(), play: Box::new(|lab| play(lab).map(|()| None)) }
    }

    /// Returns a scene that reports how its stream ended.
    fn ending(name: impl Into<String>, play: impl FnOnce(&mut Lab) -> Result<String> + 'static) -> Self {
        Self { name: name.into(), play: Box::new(|lab| play(lab).map(Some)) }
    }
}

/// Plays scenes with a target of iwprobe.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    device: DeviceArgs,
    /// Address of a listening target.
    #[arg(long, required_unless_present = "listen")]
    connect: Option<SocketAddr>,
    /// Port to listen on for a connecting target.
    #[arg(long, conflicts_with = "connect")]
    listen: Option<u16>,
    /// Do not ask for CRCs.
    #[arg(long)]
    no_crc: bool,
    /// Scenes to run, by their names or the beginnings of their names [default: all].
    scenes: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            println!("{failed} failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("verbs-scenes: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays the scenes. Returns the number of failures.
fn run(options: &Options) -> Result<usize> {
    let role = match (options.connect, options.listen) {
        (Some(target), _) => Role::Connect(target),
        (None, port) => Role::Listen(port.unwrap_or_default()),
    };
    let port = options.device.open()?;
    let mut lab = Lab::new(port, &options.device.ip, role, !options.no_crc)?;
    if matches!(role, Role::Listen(_)) {
        println!("listening");
    }
    let wanted = |scene: &Scene| {
        options.scenes.is_empty()
            || options.scenes.iter().any(|prefix| scene.name.starts_with(prefix.as_str()))
    };
    let all = [transfer::scenes(), solicited::scenes(), invalidate::scenes(), terminate::scenes()];
    let mut failed = 0;
    let mut played = 0;
    for scene in all.into_iter().flatten().filter(wanted) {
        played += 1;
        match (scene.play)(&mut lab) {
            Ok(None) => println!("ok {}", scene.name),
            Ok(Some(found)) => println!("ok {}: {found}", scene.name),
            Err(error) => {
                failed += 1;
                println!("FAILED {}: {error}", scene.name);
            }
        }
    }
    lab.bye()?;
    if played == 0 {
        return Err(tests::lab_error!("no scene's name begins with {:?}", options.scenes));
    }
    Ok(failed)
}

#[cfg(test)]
mod command_line {
    use clap::CommandFactory;

    #[test]
    fn it_is_consistent() {
        super::Options::command().debug_assert();
    }
}
