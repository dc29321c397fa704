//! The launcher: runs a program with libibverbs and librdmacm on uwarp.

mod status;

use std::io::{self, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand};

/// The name of the library's file.
const LIBRARY: &str = "libuwarp.so";

/// Run RDMA programs without RDMA hardware, kernel support or privileges
#[derive(Parser)]
#[command(name = "uwarp", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program on a wire
    Run {
        #[command(flatten)]
        settings: Settings,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// Print the settings as exports for a shell, a container file or a CI step
    Env {
        #[command(flatten)]
        settings: Settings,
        /// How the exports are written
        #[arg(long, value_enum, default_value_t = Format::Shell)]
        format: Format,
    },
    /// List the processes of this user on the wires of this host, with their addresses
    Ls,
    /// Print what runs in the processes of this user: queue pairs, peers, times and bytes
    Status {
        #[command(flatten)]
        options: status::Options,
    },
    /// Make a folder with libibverbs.so.1 and librdmacm.so.1, for images without rdma-core
    Libs {
        /// The folder, which is made
        folder: PathBuf,
    },
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
struct Settings {
    /// The wire: local[:name], packet:IF, ... (default: local)
    #[arg(long, value_name = "SPEC")]
    net: Option<String>,
    /// Our address on the wire, with its prefix length
    #[arg(long, value_name = "A/N")]
    addr: Option<String>,
    /// Capture the frames to this file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Pass for another kind of device
    #[arg(long, value_name = "KIND", value_parser = ["ib"])]
    pretend: Option<String>,
    /// The library (default: libuwarp.so beside this program, or in ../lib)
    #[arg(long, value_name = "FILE")]
    lib: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// `export NAME='value'`
    Shell,
    /// `ENV NAME="value"`
    Containerfile,
    /// `NAME=value`, for `$GITHUB_ENV`
    Github,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Action::Run { settings, program } => run(&settings, &program),
        Action::Env { settings, format } => env(&settings, format),
        Action::Ls => list(),
        Action::Status { options } => status::run(&options),
        Action::Libs { folder } => libs(&folder),
        Action::Completions { shell } => completions(shell),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("uwarp: {line}");
            ExitCode::FAILURE
        }
    }
}

/// The variables that the settings stand for.
fn variables(settings: &Settings) -> Result<Vec<(&'static str, String)>, String> {
    // The program would say it as well, later.
    uwarp::net::wanted(settings.net.as_deref(), settings.addr.as_deref())?;
    let library = library(settings.lib.as_deref())?;
    // Other preloaded libraries stay, behind this one.
    let before = std::env::var("LD_PRELOAD").unwrap_or_default();
    let preload = if before.is_empty() { library } else { format!("{library}:{before}") };
    let mut variables = vec![("LD_PRELOAD", preload)];
    if settings.net.is_some() {
        variables.push(("UWARP_NET", settings.net.clone().unwrap_or_default()));
    }
    if let Some(address) = &settings.addr {
        variables.push(("UWARP_ADDR", address.clone()));
    }
    if let Some(pcap) = &settings.pcap {
        let pcap = std::path::absolute(pcap).map_err(|error| format!("{}: {error}", pcap.display()))?;
        variables.push(("UWARP_PCAP", pcap.display().to_string()));
    }
    if let Some(pretend) = &settings.pretend {
        variables.push(("UWARP_PRETEND", pretend.clone()));
    }
    Ok(variables)
}

/// The library to preload.
fn library(given: Option<&Path>) -> Result<String, String> {
    let candidates = match given {
        Some(path) => vec![path.to_owned()],
        None => {
            let own =
                std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
            let folder = own.parent().unwrap_or(Path::new("/"));
            [".", "../lib", "../lib/x86_64-linux-gnu"].map(|way| folder.join(way).join(LIBRARY)).into()
        }
    };
    let found = candidates.iter().find_map(|path| path.canonicalize().ok().filter(|path| path.is_file()));
    match found {
        Some(path) => Ok(path.display().to_string()),
        None => Err(format!("there is no {}: name the library with --lib", candidates[0].display())),
    }
}

fn run(settings: &Settings, program: &[String]) -> Result<(), String> {
    let [name, arguments @ ..] = program else { return Err("name a program to run".into()) };
    let error = Command::new(name).args(arguments).envs(variables(settings)?).exec();
    Err(format!("{name} cannot be run: {error}"))
}

fn env(settings: &Settings, format: Format) -> Result<(), String> {
    for (name, value) in variables(settings)? {
        match format {
            Format::Shell => println!("export {name}='{}'", value.replace('\'', r"'\''")),
            Format::Containerfile => {
                println!("ENV {name}=\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""));
            }
            Format::Github => println!("{name}={value}"),
        }
    }
    Ok(())
}

fn list() -> Result<(), String> {
    let processes = uwarp::net::processes().map_err(|error| error.to_string())?;
    println!("{:<12} {:>8} {:<16} {:<16} LISTENS AT", "WIRE", "PID", "PROGRAM", "ADDRESS");
    for process in processes {
        let listens = process.listens.join(" ");
        println!(
            "{:<12} {:>8} {:<16} {:<16} {listens}",
            process.wire, process.pid, process.program, process.address
        );
    }
    Ok(())
}

/// Makes a folder in which the dynamic linker finds the library under the names of the two that it replaces.
/// It needs nothing outside, so that it can be copied.
fn libs(folder: &Path) -> Result<(), String> {
    let library = library(None)?;
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    // Programs that use the old one keep it.
    remove(&folder.join(LIBRARY)).map_err(failed)?;
    std::fs::copy(&library, folder.join(LIBRARY)).map_err(failed)?;
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"] {
        remove(&folder.join(name)).map_err(failed)?;
        // One file under all names: the dynamic linker loads it once.
        std::os::unix::fs::symlink(LIBRARY, folder.join(name)).map_err(failed)?;
    }
    println!("export LD_LIBRARY_PATH='{}'", std::path::absolute(folder).map_err(failed)?.display());
    Ok(())
}

/// Prints the completions of a shell. A closed pipe is not an error.
fn completions(shell: clap_complete::Shell) -> Result<(), String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "uwarp", &mut text);
    let mut out = io::stdout().lock();
    match out.write_all(&text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

/// Removes a file that may be there.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
