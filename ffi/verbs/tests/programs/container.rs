//! The commands of `docs/container.md` between two containers. Each container has the namespaces and
//! capabilities of a Docker container. If the commands need a network, each container also has an interface
//! `eth0`.

use std::fmt::Write;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::docs::{Image, chapter};
use crate::interface::{can_be_made, ip};
use crate::pair::is_installed;
use testkit::chapter::{Chapter, without_comment};

/// The text in front of each pair of commands in the chapter, and the network that the pair needs.
const PAIRS: [(&str, Network); 3] = [
    ("## Two containers that share a folder", Network::None),
    ("## Two containers on one network", Network::Pair),
    ("## To an RNIC, or to Linux's siw", Network::Pair),
];

/// The name that stands for the address of the server.
const SERVER_NAME: &str = "rdma-server";

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
    for ((after, network), lines) in PAIRS.into_iter().zip(take_pairs(&mut chapter("container.md")?)?) {
        let containers = Containers::new(&image, network)?;
        // This folder is the volume that both containers mount at the same path.
        let wires = image.folder.join("volume");
        std::fs::create_dir_all(&wires).map_err(|error| error.to_string())?;
        let [server, client] = lines.map(|line| Container {
            line: line.replace("/wires", &wires.display().to_string()),
            privileges: ["--bounding-set", CAPABILITIES].map(str::to_owned).into(),
            variables: Vec::new(),
        });
        containers.measure(&server, &client, true).map_err(|error| format!("{after}: {error}"))?;
    }
    Ok(())
}

/// The network between two containers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// No network: each container has only its loopback interface.
    None,
    /// A pair of interfaces `eth0`.
    Pair,
    /// The interfaces `eth0` are on a bridge of the node. Their MTU is that of flannel's networks.
    Bridge,
}

/// What a container runs.
pub(crate) struct Container {
    /// A shell command.
    pub(crate) line: String,
    /// The arguments of `setpriv`.
    pub(crate) privileges: Vec<String>,
    /// Environment variables.
    pub(crate) variables: Vec<(String, String)>,
}

/// The network namespaces of two containers and of their node. The namespaces are removed when the value is
/// dropped.
pub(crate) struct Containers<'a> {
    image: &'a Image,
    namespaces: [String; 3],
}

impl<'a> Containers<'a> {
    pub(crate) fn new(image: &'a Image, network: Network) -> Result<Self, String> {
        let namespaces = ["a", "b", "n"].map(|end| format!("uwc{}{end}", std::process::id()));
        let containers = Self { image, namespaces };
        let [a, b, node] = &containers.namespaces;
        for name in [a, b, node] {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        match network {
            Network::None => return Ok(containers),
            Network::Pair => ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"))?,
            Network::Bridge => {
                ip(&format!("-n {node} link add cni0 type bridge"))?;
                ip(&format!("-n {node} link set cni0 up"))?;
                for (name, port) in [(a, "veth0"), (b, "veth1")] {
                    let pod = format!("peer name eth0 netns {name} mtu 1450");
                    ip(&format!("link add {port} netns {node} mtu 1450 type veth {pod}"))?;
                    ip(&format!("-n {node} link set {port} master cni0 up"))?;
                }
            }
        }
        for (name, address) in [(a, "10.0.0.1/24"), (b, "10.0.0.2/24")] {
            ip(&format!("-n {name} addr add {address} dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(containers)
    }

    /// The folder that is the root of the containers' image.
    pub(crate) fn folder(&self) -> &Path {
        &self.image.folder
    }

    /// Starts a container.
    fn start(&self, end: usize, container: &Container) -> Result<Running, String> {
        let failed = |error: std::io::Error| error.to_string();
        let output = self.image.folder.join(["server", "client"][end]);
        let both = File::create(&output).and_then(|file| Ok((file.try_clone()?, file))).map_err(failed)?;
        let hosts = self.image.folder.join("hosts");
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n10.0.0.1 {SERVER_NAME}\n")).map_err(failed)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces[end]]);
        command.args("unshare --mount --pid --fork --kill-child --ipc --uts --cgroup sh -ec".split(' '));
        // The container has its own `/proc`, a `/dev/shm` that has no room for a ring, and its own names.
        let mounts = [
            "mount -t proc proc /proc",
            "mount -t tmpfs -o size=64k shm /dev/shm",
            "mount --bind \"$0\" /etc/hosts",
            "exec \"$@\"",
        ];
        command.arg(mounts.join("; ")).arg(&hosts);
        command.arg("setpriv").args(&container.privileges).args(["sh", "-ec", &container.line]);
        command.env("PATH", self.image.search_path()).env_remove("UWARP_NET").env_remove("UWARP_DIR");
        command.envs(container.variables.iter().map(|(name, value)| (name, value)));
        let child = command.stdin(Stdio::null()).stdout(both.0).stderr(both.1).process_group(0).spawn();
        Ok(Running { child: child.map_err(failed)?, output })
    }

    /// Runs a server and its client. The client has to print a bandwidth. If `server_ends` is true, the
    /// server has to exit after its client.
    pub(crate) fn measure(
        &self,
        server: &Container,
        client: &Container,
        server_ends: bool,
    ) -> Result<(), String> {
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
        if !server_ends || server.wait(SERVER_ENDS_WITHIN)? { Ok(()) } else { Err(server.said()) }
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
