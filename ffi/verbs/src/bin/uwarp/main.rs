//! The launcher: runs programs with libibverbs and librdmacm on uwarp. Its other commands print settings,
//! processes and completions, and make folders with the library.

mod check;
mod links;
mod mounts;
mod output;
mod program;
mod status;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

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
        /// Print what the program would find, and do not run it; the program may be left out
        #[arg(long)]
        check: bool,
        /// The program and its arguments
        #[arg(required_unless_present = "check", trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// What `run --check` starts in place of the program
    #[command(hide = true)]
    Found {
        #[command(flatten)]
        options: check::Options,
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
        /// The folder to make
        folder: PathBuf,
        /// Copy the library, so that the folder needs no file outside of it
        #[arg(long)]
        copy: bool,
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
    /// How programs find files of the device in /sys and /dev (default: auto, which is interpose)
    #[arg(long, value_enum)]
    files: Option<Files>,
    /// The library (default: libuwarp.so beside this program, in ../lib, or in ../lib/x86_64-linux-gnu)
    #[arg(long, value_name = "FILE")]
    lib: Option<PathBuf>,
}

/// How programs find the files of the device.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Files {
    /// As `interpose`
    Auto,
    /// Like `interpose`, and in a mount namespace that has the files
    Mount,
    /// By the calls of libc, which the library replaces
    Interpose,
    /// Programs find the files of the host
    None,
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
    let cli = match Cli::try_parse() {
        // The error is the text of `--help` or `--version`.
        Err(error) if !error.use_stderr() => return end(output::print(&error.to_string()).map(drop)),
        Err(error) => error.exit(),
        Ok(cli) => cli,
    };
    end(match cli.command {
        Action::Run { settings, check: true, program } => check(&settings, &program),
        Action::Run { settings, check: false, program } => run(&settings, &program),
        Action::Found { options } => check::print(&options),
        Action::Env { settings, format } => env(&settings, format),
        Action::Ls => list(),
        Action::Status { options } => status::run(&options),
        Action::Libs { folder, copy } => libs(&folder, copy),
        Action::Completions { shell } => completions(shell),
    })
}

fn end(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("uwarp: {line}");
            ExitCode::FAILURE
        }
    }
}

/// The environment variables for the settings. If `is_for_image`, no variable names a folder of links on this
/// machine.
fn variables(settings: &Settings, is_for_image: bool) -> Result<Vec<(&'static str, String)>, String> {
    // Without this check, only the program would report a mistake in the wire or the address.
    uwarp::net::wire_spec(settings.net.as_deref(), settings.addr.as_deref())?;
    let library = library(settings.lib.as_deref())?;
    // Other preloaded libraries are kept behind libuwarp.so.
    let before = std::env::var("LD_PRELOAD").unwrap_or_default();
    let preload = if before.is_empty() { library.clone() } else { format!("{library}:{before}") };
    let mut variables = vec![("LD_PRELOAD", preload)];
    if !is_for_image {
        match links::make(Path::new(&library)) {
            Ok(folder) => {
                let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
                variables.push(("LD_LIBRARY_PATH", links::search_path(&folder, &before)));
            }
            // Missing links are not an error, since most programs are linked with libibverbs and need no
            // links.
            Err(line) => eprintln!(
                "uwarp: programs that open libibverbs themselves do not find the library, as there is no place \
                 for links to it: {line}"
            ),
        }
    }
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
    if let Some(files) = settings.files.and_then(|files| files.to_possible_value()) {
        variables.push(("UWARP_FILES", files.get_name().to_owned()));
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
    start(settings, Command::new(name).args(arguments), name)
}

/// Executes a command with the settings, in the place of this process.
fn start(settings: &Settings, command: &mut Command, name: &str) -> Result<(), String> {
    let variables = variables(settings, false)?;
    if uwarp::files::are_mounted(settings.files.map(|files| files == Files::Mount))? {
        // The files have what the settings say, so the settings of the command line are needed here.
        for (variable, value) in variables.iter().filter(|(variable, _)| variable.starts_with("UWARP_")) {
            // SAFETY: this process has one thread.
            unsafe { std::env::set_var(variable, value) };
        }
        mounts::enter()?;
    }
    let error = command.envs(variables).exec();
    Err(format!("{name} cannot be run: {error}"))
}

/// Checks what the program would find, in a process that is started like the program.
fn check(settings: &Settings, program: &[String]) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
    let mut command = Command::new(&own);
    command.arg("found");
    for hidden in check::devices_of_host() {
        command.arg("--hides").arg(hidden);
    }
    start(settings, command.args(program.first()), "the check")
}

fn env(settings: &Settings, format: Format) -> Result<(), String> {
    if settings.files == Some(Files::Mount) {
        return Err("--files mount: only `uwarp run` can mount: use --files interpose".into());
    }
    let mut text = String::new();
    for (name, value) in variables(settings, matches!(format, Format::Containerfile))? {
        text += &match format {
            Format::Shell => format!("export {name}='{}'\n", value.replace('\'', r"'\''")),
            Format::Containerfile => {
                format!("ENV {name}=\"{}\"\n", value.replace('\\', r"\\").replace('"', "\\\""))
            }
            Format::Github => format!("{name}={value}\n"),
        };
    }
    output::print(&text).map(drop)
}

fn list() -> Result<(), String> {
    let processes = uwarp::net::processes().map_err(|error| error.to_string())?;
    let mut text = format!("{:<12} {:>8} {:<16} {:<16} LISTENS AT\n", "WIRE", "PID", "PROGRAM", "ADDRESS");
    for process in processes {
        let listens = process.listens.join(" ");
        text += &format!(
            "{:<12} {:>8} {:<16} {:<16} {listens}\n",
            process.wire, process.pid, process.program, process.address
        );
    }
    output::print(&text).map(drop)
}

/// Stub libraries with which programs are linked. The stubs have the names and versions of rdma-core's
/// libraries. For a program that opens a stub, the dynamic linker uses the functions of libuwarp.so.
const STAND_INS: [(&str, &[u8]); 2] = [
    ("libibverbs.so", include_bytes!(concat!(env!("OUT_DIR"), "/libibverbs.so"))),
    ("librdmacm.so", include_bytes!(concat!(env!("OUT_DIR"), "/librdmacm.so"))),
];

/// Makes a folder with libuwarp.so and stub libraries. The dynamic linker finds libuwarp.so there under the
/// names of libibverbs and librdmacm, and the linker finds the stub libraries with which programs are linked.
///
/// Unless `is_copy`, the library in the folder is a hard link to `library`, or a symbolic link if a hard link
/// is impossible. So a process that finds both paths loads the library once.
fn libs(folder: &Path, is_copy: bool) -> Result<(), String> {
    let library = library(None)?;
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    let own = folder.join(LIBRARY);
    // The old file is removed and not overwritten, since processes that have loaded it continue to use it.
    links::remove(&own).map_err(failed)?;
    if is_copy {
        std::fs::copy(&library, &own).map_err(failed)?;
    } else if std::fs::hard_link(&library, &own).is_err() {
        // A hard link is impossible, for example because `library` is on another file system or belongs to
        // another user.
        std::os::unix::fs::symlink(&library, &own).map_err(failed)?;
        eprintln!(
            "uwarp: {} needs {library}: give --copy for one that needs nothing outside",
            folder.display()
        );
    }
    for name in links::NAMES {
        let path = folder.join(name);
        links::remove(&path).map_err(failed)?;
        match STAND_INS.iter().find(|(stand_in, _)| *stand_in == name) {
            Some((_, bytes)) => std::fs::write(&path, bytes).map_err(failed)?,
            // `libibverbs.so.1` and `librdmacm.so.1` are links to one file, so the dynamic linker loads the
            // file once.
            None => std::os::unix::fs::symlink(LIBRARY, &path).map_err(failed)?,
        }
    }
    let folder = std::path::absolute(folder).map_err(failed)?;
    output::print(&format!("export LD_LIBRARY_PATH='{}'\n", folder.display())).map(drop)
}

fn completions(shell: clap_complete::Shell) -> Result<(), String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "uwarp", &mut text);
    output::print(&String::from_utf8_lossy(&text)).map(drop)
}
