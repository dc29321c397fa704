//! The pods of `docs/container.md`. The YAML has to parse, and its objects have to fit together. The commands
//! of the containers run between namespaces, with the users and capabilities that the YAML gives to the
//! containers.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::container::{Container, Containers, Network};
use crate::docs::{Image, chapter};
use crate::interface::can_be_made;
use crate::pair::is_installed;
use testkit::chapter::Chapter;

/// Debian's Python, for which the package python3-yaml is.
const PYTHON: &str = "/usr/bin/python3";
/// Reads the documents of a YAML stream, and writes the documents as an array in JSON.
const TO_JSON: &str = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";

/// The mode of an `emptyDir`, and of an `emptyDir` in a pod with `fsGroup`.
const EMPTY_DIR: [u32; 2] = [0o777, 0o2777];
/// The mode of a folder that Kubernetes makes for a `hostPath`.
const HOST_PATH: u32 = 0o755;

type Named = (&'static str, bool, fn() -> Result<(), String>);

pub(crate) fn all() -> [Named; 2] {
    let reads = Command::new(PYTHON).args(["-c", "import yaml"]).stderr(Stdio::null()).status();
    let reads = reads.is_ok_and(|status| status.success());
    let runs = reads && can_be_made() && is_installed("ib_write_bw") && is_installed("unshare");
    [("the_yaml_of_the_chapter_fits_together", reads, fits), ("the_pods_of_the_chapter_run", runs, run)]
}

/// Returns the blocks of YAML in the chapter.
pub(crate) fn take_yaml(chapter: &mut Chapter) -> Result<[String; 3], String> {
    let one = chapter.block("## Kubernetes: containers of one pod")?;
    let two = chapter.block("## Kubernetes: pods of one node")?;
    let three = chapter.block("## Kubernetes: pods with `packet:eth0`")?;
    Ok([one, two, three].map(|lines| lines.join("\n")))
}

fn parse(yaml: &str) -> Result<Vec<Value>, String> {
    let mut command = Command::new(PYTHON);
    command.args(["-c", TO_JSON]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // The standard input is closed when the handle is dropped.
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(yaml.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    match written {
        Some(Ok(())) if output.status.success() => {
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
        }
        _ => Err(format!("{}\n{yaml}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The objects of the chapter.
struct Objects {
    pod: Value,
    host_path: Value,
    service: Value,
    deployment: Value,
    job: Value,
}

impl Objects {
    fn read() -> Result<Self, String> {
        let [one, two, three] = take_yaml(&mut chapter("container.md")?)?;
        let mut found =
            [one, two, three].iter().map(|yaml| parse(yaml)).collect::<Result<Vec<_>, _>>()?.concat();
        let count = found.len();
        let mut next = || if found.is_empty() { Value::Null } else { found.remove(0) };
        let [pod, host_path, service, deployment, job] = [(); 5].map(|()| next());
        if count != 5 {
            return Err(format!("the chapter has {count} documents of YAML, not 5"));
        }
        Ok(Self { pod, host_path, service, deployment, job })
    }
}

/// Returns the value at a path such as `/spec/containers/0`.
fn at<'a>(value: &'a Value, path: &str) -> Result<&'a Value, String> {
    value.pointer(path).ok_or_else(|| format!("there is no {path} in {value}"))
}

fn fits() -> Result<(), String> {
    let Objects { pod, host_path, service, deployment, job } = &Objects::read()?;
    let affinity = "affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0";
    let equal = |one: (&Value, &str), other: (&Value, &str)| {
        let (left, right) = (at(one.0, one.1)?, at(other.0, other.1)?);
        if left == right { Ok(()) } else { Err(format!("{}: {left}, but {}: {right}", one.1, other.1)) }
    };
    for (object, kind, version) in [
        (pod, "Pod", "v1"),
        (service, "Service", "v1"),
        (deployment, "Deployment", "apps/v1"),
        (job, "Job", "batch/v1"),
    ] {
        if object["kind"] != kind
            || object["apiVersion"] != version
            || !object["metadata"]["name"].is_string()
        {
            return Err(format!("{kind} of {version} with a name: {object}"));
        }
    }
    // The Service and the affinities select the pods of the Deployment.
    let labels = (deployment, "/spec/template/metadata/labels");
    equal((service, "/spec/selector"), labels)?;
    equal((deployment, "/spec/selector/matchLabels"), labels)?;
    equal((job, &format!("/spec/template/spec/{affinity}/labelSelector/matchLabels")), labels)?;
    equal((host_path, &format!("/spec/{affinity}/labelSelector/matchLabels")), labels)?;
    // The client connects to the name of the Service.
    let words = at(job, "/spec/template/spec/containers/0/command")?;
    equal((service, "/metadata/name"), (words, "/8"))?;
    if service["spec"]["clusterIP"] != "None" {
        return Err("the Service is not headless".into());
    }
    // Each volume that a container mounts is a volume of the pod, and of the pods with a `hostPath`.
    for end in ["0", "1"] {
        let mount = format!("/spec/containers/{end}/volumeMounts/0");
        for volumes in [pod, host_path] {
            equal((pod, &format!("{mount}/name")), (volumes, "/spec/volumes/0/name"))?;
        }
        equal((pod, &format!("{mount}/mountPath")), (pod, &format!("/spec/containers/{end}/env/0/value")))?;
    }
    if host_path["spec"]["volumes"][0]["hostPath"]["type"] == "DirectoryOrCreate" {
        Ok(())
    } else {
        Err(format!("Kubernetes does not make the folder of {host_path}"))
    }
}

/// Returns the container `end` of a pod.
fn container(pod: &Value, end: usize) -> Result<Container, String> {
    let found = at(pod, &format!("/spec/containers/{end}"))?;
    let words = found["command"].as_array().ok_or_else(|| format!("no command: {found}"))?;
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("'{}'", word.as_str().unwrap_or_default().replace('\'', "'\\''")))
        .collect();
    let settings = &found["securityContext"];
    let user =
        settings["runAsUser"].as_u64().or_else(|| pod["spec"]["securityContext"]["runAsUser"].as_u64());
    let user = user.ok_or_else(|| format!("no user: {found}"))?;
    if settings["capabilities"]["drop"][0] != "ALL" || settings["allowPrivilegeEscalation"] != false {
        return Err(format!("the container keeps privileges: {found}"));
    }
    let mut capabilities = "-all".to_owned();
    for name in settings["capabilities"]["add"].as_array().into_iter().flatten() {
        capabilities += &format!(",+{}", name.as_str().unwrap_or_default().to_lowercase());
    }
    // The group of a container is root if neither the pod nor the image names another group.
    let privileges =
        format!("--reuid {user} --regid 0 --clear-groups --bounding-set {capabilities} --no-new-privs");
    let variables = found["env"].as_array().into_iter().flatten();
    let variables = variables.filter_map(|variable| {
        Some((variable["name"].as_str()?.to_owned(), variable["value"].as_str()?.to_owned()))
    });
    Ok(Container {
        line: format!("exec {}", words.join(" ")),
        privileges: privileges.split(' ').map(str::to_owned).collect(),
        variables: variables.collect(),
    })
}

fn run() -> Result<(), String> {
    let objects = Objects::read()?;
    let image = Image::new("pods")?;
    // The containers of one pod have one network. Here each container has its own, as pods of one node have.
    let containers = Containers::new(&image, Network::None)?;
    let both = || Ok::<_, String>([container(&objects.pod, 0)?, container(&objects.pod, 1)?]);
    for mode in EMPTY_DIR {
        measure_on_volume(&containers, both()?, mode).map_err(|error| format!("mode {mode:o}: {error}"))?;
    }
    let as_root = both()?.map(|mut container| {
        container.privileges[1] = "0".into();
        container
    });
    measure_on_volume(&containers, as_root, HOST_PATH).map_err(|error| format!("hostPath: {error}"))?;
    drop(containers);

    let containers = Containers::new(&image, Network::Bridge)?;
    let pods = [&objects.deployment, &objects.job].map(|object| &object["spec"]["template"]);
    let [server, client] = pods.map(|pod| container(pod, 0));
    // The server of the Deployment starts again after each client, so this server does not end.
    containers.measure(&server?, &client?, false)
}

/// Runs a server and a client, which mount a new folder with this mode.
fn measure_on_volume(containers: &Containers<'_>, pair: [Container; 2], mode: u32) -> Result<(), String> {
    let volume = containers.folder().join(format!("volume-{mode:o}"));
    let failed = |error: std::io::Error| error.to_string();
    fs::create_dir(&volume).map_err(failed)?;
    fs::set_permissions(&volume, fs::Permissions::from_mode(mode)).map_err(failed)?;
    let [server, client] = pair.map(|mut container| {
        for (_, value) in &mut container.variables {
            *value = value.replace("/wires", &volume.display().to_string());
        }
        container
    });
    containers.measure(&server, &client, true)
}
