//! Tests of `uwarp ls` on `local` wires.

use crate::pair::Running;
use crate::wire::Wire;

type Test = fn() -> Result<(), String>;

pub(crate) const ALL: [(&str, Test); 2] = [
    ("ls_shows_each_process_with_its_own_names", each_process),
    ("ls_shows_nothing_where_no_wire_was", no_wire),
];

/// Returns the lines of `uwarp ls`, without the title line.
fn listed(wire: &Wire, variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let launcher = wire.launcher()?.display().to_string();
    let mut command = wire.command(0, &["timeout", "30", &launcher, "ls"]);
    let output = command.envs(variables.iter().copied()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().map(str::to_owned);
    match lines.next() {
        Some(titles) if output.status.success() && titles.starts_with("WIRE") => Ok(lines.collect()),
        _ => Err(format!("{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// Checks that three servers on two wires are listed by wire, each with the address at which it listens.
fn each_process() -> Result<(), String> {
    let wire = Wire::new()?;
    let mut running = Vec::new();
    let servers = [("west", "7001"), ("east", "7002"), ("west", "7003")];
    for (output, (of, port)) in ["one", "two", "three"].into_iter().zip(servers) {
        let line = format!("env UWARP_NET=local:{of} rping -s -a 127.0.0.1 -p {port}");
        let server = Running::start(&wire, output, &line)?;
        running.push((format!("{of} {} rping 127.0.0.1:{port}", server.pid()), server));
    }
    let mut wanted: Vec<&str> = running.iter().map(|(line, _)| line.as_str()).collect();
    wanted.sort_unstable();
    let begun = std::time::Instant::now();
    loop {
        // Removes the column with the address on the wire: each process chooses its address itself.
        let without = |line: &String| {
            let words: Vec<&str> = line.split_whitespace().collect();
            [&words[..3.min(words.len())], words.get(4..).unwrap_or_default()].concat().join(" ")
        };
        let lines = listed(&wire, &[])?;
        let mut found: Vec<String> = lines.iter().map(without).collect();
        let wires: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        found.sort_unstable();
        if found == wanted {
            let in_order = wires == ["east", "west", "west"];
            return if in_order { Ok(()) } else { Err(format!("not by wire: {lines:#?}")) };
        }
        if begun.elapsed().as_secs() > 60 {
            return Err(format!("{lines:#?} for {wanted:#?}"));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn no_wire() -> Result<(), String> {
    let wire = Wire::new()?;
    let nowhere = wire.folder().join("nowhere").display().to_string();
    let lines = listed(&wire, &[("UWARP_DIR", &nowhere)])?;
    if lines.is_empty() { Ok(()) } else { Err(format!("{lines:#?}")) }
}
