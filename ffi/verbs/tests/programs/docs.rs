//! The commands of the README and of chapters in `docs`, the man pages, and the device's attributes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::built;
use crate::container;
use crate::pair::is_installed;
use crate::pods;
use crate::wire::Wire;
use testkit::chapter::{Chapter, without_comment};

type Test = fn() -> Result<(), String>;

/// The build command in the documents. These tests use their own build instead.
const BUILD: &str = "cargo build --release -p uwarp";

pub(crate) fn all() -> Vec<(&'static str, bool, Test)> {
    let has_programs = is_installed("ib_write_bw");
    vec![
        ("the_lines_of_the_readme_run", has_programs, readme),
        ("the_chapter_on_ci_runs", has_programs, steps),
        ("the_chapter_on_containers_runs", has_programs, containerfile),
        ("the_chapter_on_c_runs", has_programs, c_program),
        ("the_chapter_on_providers_runs", has_programs && is_installed("ibv_devinfo"), provider),
        ("man_pages_have_each_option_and_variable", true, complete),
        ("man_pages_are_well_formed", is_installed("groff"), well_formed),
        ("the_device_says_what_it_can", is_installed("ibv_devinfo"), device),
    ]
}

/// Reads a file of this package.
fn text(path: &str) -> Result<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a chapter of `docs`.
pub(crate) fn chapter(name: &str) -> Result<Chapter, String> {
    Chapter::read(&format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// A folder that is used as the root of an image, with the launcher and the library.
pub(crate) struct Image {
    pub(crate) folder: PathBuf,
    variables: Vec<(String, String)>,
}

impl Image {
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("uwarp-{name}-{}", std::process::id()));
        let image = Self { folder, variables: Vec::new() };
        let failed = |error: std::io::Error| error.to_string();
        fs::create_dir_all(image.programs()).map_err(failed)?;
        for file in [built::launcher(), built::library()] {
            let name = file.file_name().unwrap_or_default();
            fs::copy(&file, image.programs().join(name)).map_err(failed)?;
        }
        Ok(image)
    }

    fn programs(&self) -> PathBuf {
        self.folder.join("usr/local/bin")
    }

    /// Returns the search path of programs. The image's folder of programs comes first.
    pub(crate) fn search_path(&self) -> String {
        format!("{}:{}", self.programs().display(), std::env::var("PATH").unwrap_or_default())
    }

    /// Runs a shell command, and returns its output.
    fn run(&self, line: &str) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command
            .args(["60", "sh", "-ec", line])
            .env("PATH", self.search_path())
            .env("UWARP_DIR", self.folder.join("wires"));
        command.env_remove("UWARP_NET").envs(self.variables.iter().map(|(name, value)| (name, value)));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = child.spawn().map_err(|error| error.to_string())?;
        let group = Pid::from_raw(child.id() as i32);
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        // The signal ends the programs that the command has left in the background. Errors are ignored, since
        // all of these programs may have ended.
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let both = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match output.status.success() {
            true => Ok(both.concat()),
            false => Err(format!("{line}: {}\n{}", output.status, both.concat())),
        }
    }

    /// Runs a shell command with a server and its client. The client has to print a bandwidth.
    fn measures(&self, line: &str) -> Result<(), String> {
        let once = || match self.run(line)? {
            output if output.contains("BW average") && output.contains(" 65536 ") => Ok(()),
            output => Err(format!("{line} measures nothing: {output}")),
        };
        // The server has a fixed time to start, which may be too short on a busy machine. So a failed command
        // runs a second time.
        once().or_else(|_| once())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Errors are ignored: the folder is in a folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Runs the server and the client at the head of the README. The first command of this
/// block must be [`BUILD`].
fn readme() -> Result<(), String> {
    let lines = chapter("../README.md")?.block("It needs no kernel module and no root")?;
    let lines: Vec<&str> = lines.iter().map(|line| without_comment(line)).collect();
    let [build, server, client] = lines[..] else { return Err(format!("three lines, not {lines:?}")) };
    if build != BUILD {
        return Err(format!("the library is not built by '{build}'"));
    }
    // The image has the programs of the build in its search path.
    let [server, client] = [server, client].map(|line| line.strip_prefix("target/release/"));
    let (Some(server), Some(client)) = (server, client) else {
        return Err(format!("not what was built: {lines:?}"));
    };
    Image::new("readme")?.measures(&after_its_server(server, client))
}

/// Returns a shell command that starts a server, and starts its client as soon as `uwarp ls` shows that the
/// server listens.
fn after_its_server(server: &str, client: &str) -> String {
    format!("({server} &) && until uwarp ls | grep -q ':[0-9]*$'; do sleep 0.1; done && {client}")
}

fn steps() -> Result<(), String> {
    let mut chapter = chapter("ci.md")?;
    let mut image = Image::new("steps")?;
    let build = chapter.block("Build them once")?;
    if !matches!(&build[..], [line] if without_comment(line) == BUILD) {
        return Err(format!("the library is not built by {build:?}"));
    }
    let [line] = &chapter.block("start each program by the launcher")?[..] else {
        return Err("one line starts a program".into());
    };
    image.measures(line)?;
    let file = image.folder.join("github-env");
    image.variables.push(("GITHUB_ENV".into(), file.display().to_string()));
    let mut measured = 0;
    for line in chapter.block("Steps of GitHub Actions")? {
        let line = line.strip_prefix("- run: ").ok_or_else(|| format!("no step: {line}"))?;
        if line.contains("ib_write_bw") {
            // A step has the variables that earlier steps have written.
            let set = fs::read_to_string(&file).map_err(|error| error.to_string())?;
            let set = set.lines().filter_map(|line| line.split_once('='));
            image.variables.extend(set.map(|(name, value)| (name.to_owned(), value.to_owned())));
            image.measures(line)?;
            measured += 1;
        } else {
            image.run(line)?;
        }
    }
    image.measures(&chapter.block("## A lossy wire on purpose")?.join("\n"))?;
    // A test of iwperf (`benches/tests/it/local.rs`) runs this block.
    chapter.block("A limit that fails the job")?;
    chapter.is_complete()?;
    if measured == 1 { Ok(()) } else { Err(format!("{measured} steps run programs")) }
}

/// Runs the commands of the Containerfile, except the installation of packages, with a folder as the root of
/// the image.
fn containerfile() -> Result<(), String> {
    let mut chapter = chapter("container.md")?;
    let mut image = Image::new("container")?;
    let opt = image.folder.join("opt");
    let moved = |text: &str| text.replace("/opt", &opt.display().to_string());
    for line in chapter.block("A Containerfile:")? {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("FROM", "debian:12-slim") | ("COPY", "uwarp libuwarp.so /usr/local/bin/") => {}
            ("RUN", command) if command.starts_with("apt-get update && apt-get install -y ") => {
                is_installed_by_tests(command.rsplit(' ').next().unwrap_or_default().split(' '))?;
            }
            ("RUN", command) if command.contains("ib_write_bw") => image.measures(&moved(command))?,
            ("RUN", command) => drop(image.run(&moved(command))?),
            ("ENV", setting) => {
                let setting = moved(setting);
                let (name, value) = setting.split_once('=').ok_or_else(|| setting.clone())?;
                image.variables.push((name.to_owned(), value.to_owned()));
            }
            _ => return Err(format!("this test does not know '{line}'")),
        }
    }
    // Checks that the programs have used the library in place of rdma-core's libraries. The library must be
    // one file, which is loaded once.
    let loaded = image.run("LD_TRACE_LOADED_OBJECTS=1 $(command -v ib_write_bw)")?;
    let ours = opt.display().to_string();
    let libraries =
        loaded.lines().filter(|line| line.contains("libibverbs.so") || line.contains("librdmacm.so"));
    match libraries.collect::<Vec<_>>()[..] {
        [one] if one.contains(&ours) => {}
        _ => return Err(loaded),
    }
    container::take_pairs(&mut chapter)?;
    pods::take_yaml(&mut chapter)?;
    for line in chapter.block("exits with 1 if something is missing:")? {
        let said = image.run(&line)?;
        if !said.contains("ib_write_bw loads the library") {
            return Err(said);
        }
    }
    chapter.is_complete()
}

/// Compiles and runs the chapter's program with rdma-core's libraries, and with the libraries in the folder.
fn c_program() -> Result<(), String> {
    let mut chapter = chapter("c.md")?;
    let image = Image::new("c")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").display().to_string();
    let run = |line: &str| {
        let line = line.replace("ffi/verbs", &format!("{root}/ffi/verbs"));
        image.run(&format!("cd {} && {line}", image.folder.display()))
    };
    let lines = chapter.block("# From C")?;
    let lines: Vec<&str> = lines.iter().map(|line| without_comment(line)).collect();
    let [install, compile, server, client] = lines[..] else {
        return Err(format!("four lines compile and run a program, not {lines:?}"));
    };
    let packages = install.strip_prefix("apt-get install ").ok_or_else(|| install.to_owned())?;
    is_installed_by_tests(packages.split(' '))?;
    run(compile)?;
    let said = run(&after_its_server(server, client))?;
    if !said.contains("hello from uwarp0") {
        return Err(said);
    }
    let mut said = String::new();
    for line in chapter.block("`uwarp libs` makes")? {
        said = run(&line)?;
    }
    chapter.is_complete()?;
    let ours = said.lines().filter(|line| line.contains("uwarp-libs/")).count();
    if ours > 0 { Ok(()) } else { Err(said) }
}

/// Runs the commands of the chapter that show which device and which library a program uses.
fn provider() -> Result<(), String> {
    let mut chapter = chapter("provider.md")?;
    let image = Image::new("provider")?;
    for (lines, program, wanted) in [
        (chapter.block("## The device")?, "ibv_devinfo", "vendor_id:\t\t\t0x27577"),
        (chapter.block("## The program")?, "ib_write_bw", "ib_write_bw loads the library"),
        (chapter.block("## UCX")?, "ucx_info", "Device: uwarp0:1"),
        (chapter.block("## libfabric")?, "fi_info", "domain: uwarp0"),
    ] {
        for line in lines.iter().filter(|_| is_installed(program)) {
            let said = image.run(line)?;
            if !said.contains(wanted) {
                return Err(format!("{line} does not print '{wanted}': {said}"));
            }
        }
    }
    chapter.is_complete()
}

/// Checks that the tests' script `scripts/install` installs all packages of a command.
fn is_installed_by_tests(packages: std::str::Split<'_, char>) -> Result<(), String> {
    let installs = text("../../scripts/install")?;
    let missing: Vec<&str> = packages.filter(|package| !installs.contains(package)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("tests do not install {missing:?}")) }
}

/// Returns the words of a text that begin with `start` and are longer than `start`. Words consist of letters,
/// digits and `signs`.
fn words(text: &str, start: &str, signs: &str) -> BTreeSet<String> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || signs.contains(c);
    let found =
        text.split(|c| !is_of_word(c)).filter(|word| word.starts_with(start) && word.len() > start.len());
    found.map(str::to_owned).collect()
}

/// Reads a man page, and replaces the markup `\-` by `-`.
fn page(name: &str) -> Result<String, String> {
    Ok(text(&format!("man/{name}"))?.replace("\\-", "-"))
}

fn complete() -> Result<(), String> {
    let mut missing = Vec::new();
    let library = page("libuwarp.7")?;
    let variables = words(&text("src/ffi/settings.rs")?, "UWARP_", "_");
    if variables.len() < 10 {
        return Err(format!("the source names {variables:?} alone"));
    }
    missing.extend(variables.iter().filter(|name| !library.contains(*name)).cloned());
    // The page has to have the kinds of wires and their keys, which are in constants for error messages.
    let spec = text("../../iwarp/wire/src/spec.rs")?;
    for list in ["const KINDS", "const LOCAL_KEYS", "const DEVICE_KEYS", "const MEMIF_KEYS"] {
        let (_, rest) = spec.split_once(list).ok_or(list)?;
        let names = rest.split('"').nth(1).unwrap_or_default();
        let names = names.split(", ").filter_map(|name| name.split([':', '[']).next());
        let lacks = |name: &&str| words(&library, name, "").is_empty() && !library.contains(*name);
        missing.extend(names.filter(lacks).map(str::to_owned));
    }
    let help = |arguments: &[&str]| {
        let output = Command::new(built::launcher()).args(arguments).arg("--help").output();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .map_err(|error| error.to_string())
    };
    let whole = help(&[])?;
    let (_, commands) = whole.split_once("Commands:\n").ok_or("no commands")?;
    let commands: Vec<&str> = commands.lines().map_while(|line| line.split_whitespace().next()).collect();
    if commands.len() < 5 {
        return Err(format!("the launcher has {commands:?} alone"));
    }
    for command in commands {
        let (name, arguments) = match command {
            "help" => ("uwarp.1".to_owned(), &[][..]),
            command => (format!("uwarp-{command}.1"), &[command][..]),
        };
        let (page, help) = (page(&name)?, help(arguments)?);
        let options = words(&help, "--", "-");
        missing
            .extend(options.iter().filter(|option| !page.contains(*option)).map(|o| format!("{name}: {o}")));
    }
    if missing.is_empty() { Ok(()) } else { Err(format!("the man pages lack {missing:?}")) }
}

fn well_formed() -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let pages = fs::read_dir(&folder).map_err(|error| error.to_string())?;
    let pages: Vec<PathBuf> = pages.flatten().map(|entry| entry.path()).collect();
    let output = Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).args(&pages).output();
    let output = output.map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() && told.is_empty() && pages.len() == 8 {
        true => Ok(()),
        false => Err(format!("{} pages: {told}", pages.len())),
    }
}

/// Checks the values of `ibv_devinfo -v` and of libfabric by which programs choose a device.
fn device() -> Result<(), String> {
    let wire = Wire::new()?;
    let run = |words: &[&str]| {
        let output = wire.command(0, words).output().map_err(|error| error.to_string())?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let text = run(&["timeout", "20", "ibv_devinfo", "-v"])?;
    for (key, value) in [
        ("hca_id", "uwarp0"),
        ("transport", "iWARP (1)"),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("phys_port_cnt", "1"),
        ("max_mr_size", "0xffffffffffffffff"),
        ("max_qp_wr", "16384"),
        ("max_sge", "8"),
        ("max_cqe", "1048575"),
        ("max_qp_rd_atom", "128"),
        ("atomic_cap", "ATOMIC_HCA (1)"),
        ("state", "PORT_ACTIVE (4)"),
        ("link_layer", "Ethernet"),
        ("max_msg_sz", "0x7fffffff"),
        ("gid_tbl_len", "6"),
        ("active_speed", "25.0 Gbps (32)"),
    ] {
        let found = text.lines().filter_map(|line| line.trim().split_once(':'));
        let found: Vec<&str> = found.filter(|(k, _)| *k == key).map(|(_, value)| value.trim()).collect();
        if found != [value] {
            return Err(format!("{key} is {found:?}, not {value}:\n{text}"));
        }
    }
    // All GIDs end with the address on the wire, 100.64.x.y, or with its address of the loopback interface.
    // The LID is the last two bytes of this address.
    let lid = text.lines().find_map(|line| line.trim().strip_prefix("port_lid:")).unwrap_or_default().trim();
    let lid: u16 = lid.parse().map_err(|_| format!("no LID '{lid}'"))?;
    let [first, second] = lid.to_be_bytes();
    for gid in [
        format!("GID[  0]:\t\tfe80:0000:0000:0000:0000:5efe:6440:{lid:04x}, RoCE v1"),
        format!("GID[  1]:\t\tfe80::5efe:6440:{lid:x}, RoCE v2"),
        format!("GID[  2]:\t\t0000:0000:0000:0000:0000:ffff:7f40:{lid:04x}, RoCE v1"),
        format!("GID[  3]:\t\t::ffff:127.64.{first}.{second}, RoCE v2"),
        format!("GID[  4]:\t\t0000:0000:0000:0000:0000:ffff:6440:{lid:04x}, RoCE v1"),
        format!("GID[  5]:\t\t::ffff:100.64.{first}.{second}, RoCE v2"),
    ] {
        if lid == 0 || !text.contains(&gid) {
            return Err(format!("no GID as the LID says ({gid}):\n{text}"));
        }
    }
    if is_installed("fi_info") {
        let text = run(&["timeout", "20", "fi_info", "-p", "verbs"])?;
        for line in
            ["domain: uwarp0", "type: FI_EP_MSG", "protocol: FI_PROTO_IWARP", "protocol: FI_PROTO_RXM"]
        {
            if !text.contains(line) {
                return Err(format!("libfabric finds no '{line}':\n{text}"));
            }
        }
    }
    Ok(())
}
