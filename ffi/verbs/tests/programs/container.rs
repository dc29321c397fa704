//! The commands of `docs/container.md` between two containers. Each container has the namespaces and
//! capabilities of a Docker container. If the commands need a network, each container also has an interface
//! `eth0`.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::docs::{Image, chapter};
use crate::interface::{can_be_made, ip};
use crate::pair::is_installed;
use testkit::chapter::{Chapter, without_comment};

/// The text in front of each pair of commands in the chapter, and whether the pair needs a network.
const PAIRS: [(&str, bool); 3] = [
    ("## Two containers that share a folder", false),
    ("## Two containers on one network", true),
    ("## To an RNIC, or to Linux's siw", true),
];

/// Docker's default capabilities.
const CAPABILITIES: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,\
                            +net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";

/// Maximum time that a server may take to listen. Clients that start earlier are refused.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);
/// Maximum run time of a client.
const CLIENT_ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Maximum time that a server may take to exit after its client.
const SERVER_ENDS_WITHIN: Duration = Duration::from_secs(30);

type Named = (&'static str, bool, fn() -> Result<(), String>);

pub(crate) fn test() -> Named {
    let runs = can_be_made() && is_installed("ib_write_bw") && is_installed("unshare");
    ("the_lines_between_containers_run", runs, pairs)
}

/// Returns the server and the client of each pair in the chapter.
pub(crate) fn take_pairs(chapter: &mut Chapter) -> Result<Vec<[String; 2]>, String> {
    let mut pairs = Vec::new();
    for (after, _) in PAIRS {
        let lines: Vec<String> =
            chapter.block(after)?.iter().map(|line| without_comment(line).to_owned()).collect();
        pairs.push(lines.try_into().map_err(|lines| format!("two lines run a pair, not {lines:?}"))?);
    }
    Ok(pairs)
}

fn pairs() -> Result<(), String> {
    let image = Image::new("containers")?;
    for ((after, has_network), lines) in PAIRS.into_iter().zip(take_pairs(&mut chapter("container.md")?)?) {
        let containers = Containers::new(&image, has_network)?;
        // This folder is the volume that both containers mount at the same path.
        let wires = image.folder.join("volume");
        std::fs::create_dir_all(&wires).map_err(|error| error.to_string())?;
        let [server, client] = lines.map(|line| line.replace("/wires", &wires.display().to_string()));
        containers.measure(&server, &client).map_err(|error| format!("{after}: {error}"))?;
    }
    Ok(())
}

/// Two network namespaces, which are removed when the value is dropped.
struct Containers<'a> {
    image: &'a Image,
    namespaces: [String; 2],
}

impl<'a> Containers<'a> {
    /// Makes the namespaces. The namespaces have an interface only if `has_network` is true.
    fn new(image: &'a Image, has_network: bool) -> Result<Self, String> {
        let namespaces = ["a", "b"].map(|end| format!("uwc{}{end}", std::process::id()));
        let containers = Self { image, namespaces };
        let [a, b] = &containers.namespaces;
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        if has_network {
            ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"))?;
            for (name, address) in [(a, "10.0.0.1/24"), (b, "10.0.0.2/24")] {
                ip(&format!("-n {name} addr add {address} dev eth0"))?;
                ip(&format!("-n {name} link set eth0 up"))?;
            }
        }
        Ok(containers)
    }

    /// Starts a shell command in container `end`, as root.
    fn start(&self, end: usize, line: &str) -> Result<Running, String> {
        let output = self.image.folder.join(["server", "client"][end]);
        let both = File::create(&output)
            .and_then(|file| Ok((file.try_clone()?, file)))
            .map_err(|error| error.to_string())?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces[end]]);
        command.args("unshare --mount --pid --fork --kill-child --ipc --uts --cgroup sh -ec".split(' '));
        // The container has its own `/proc` and `/dev/shm`.
        command.arg("mount -t proc proc /proc; mount -t tmpfs shm /dev/shm; exec \"$@\"").arg("sh");
        command.args(["setpriv", "--bounding-set", CAPABILITIES, "sh", "-ec", line]);
        command.env("PATH", self.image.search_path()).env_remove("UWARP_NET").env_remove("UWARP_DIR");
        let child = command.stdin(Stdio::null()).stdout(both.0).stderr(both.1).process_group(0).spawn();
        Ok(Running { child: child.map_err(|error| error.to_string())?, output })
    }

    /// Runs a server and its client. The client has to print a bandwidth.
    fn measure(&self, server: &str, client: &str) -> Result<(), String> {
        let mut server = self.start(0, server)?;
        let begun = Instant::now();
        let mut refused = String::new();
        let said = loop {
            // A client that starts before its server listens is refused, and is started again.
            let mut client = self.start(1, client)?;
            let succeeded = client.wait(CLIENT_ENDS_WITHIN)?;
            if succeeded {
                break client.said();
            }
            // The server serves only one client, so after its end no client succeeds.
            let has_ended = server.has_ended()?;
            let _ = writeln!(refused, "client after {:.1?}: {}", begun.elapsed(), client.said());
            if has_ended || begun.elapsed() > LISTENS_WITHIN {
                return Err(format!("{refused}server: {}", server.said()));
            }
            sleep(Duration::from_millis(200));
        };
        if !said.contains("BW average") || !said.contains(" 65536 ") {
            return Err(format!("it measures nothing: {said}"));
        }
        if server.wait(SERVER_ENDS_WITHIN)? { Ok(()) } else { Err(server.said()) }
    }
}

impl Drop for Containers<'_> {
    fn drop(&mut self) {
        for name in &self.namespaces {
            // Errors are ignored: a namespace that was not made needs no removal.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// The first process of a container. When the value is dropped, this process is killed, with all other
/// processes of the container.
struct Running {
    child: Child,
    output: std::path::PathBuf,
}

impl Running {
    /// Waits until the process exits, and returns whether it succeeded.
    fn wait(&mut self, limit: Duration) -> Result<bool, String> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some(status) = self.status()? {
                return Ok(status.success());
            }
            sleep(Duration::from_millis(20));
        }
        Err(format!("it still runs after {limit:?}: {}", self.said()))
    }

    fn has_ended(&mut self) -> Result<bool, String> {
        Ok(self.status()?.is_some())
    }

    fn status(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|error| error.to_string())
    }

    fn said(&self) -> String {
        let bytes = std::fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors are ignored: the process group may have ended.
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
