//! `iwperf completions` and `iwperf man`, checked by the programs that read their output.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use testkit::folder::Folder;

fn iwperf(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_iwperf")).args(arguments).output();
    text(output.expect("the binary was built with this test"))
}

/// Returns the output of a program. The program has to succeed and to print nothing on standard error.
fn text(output: Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{}: {told}", output.status);
    String::from_utf8(output.stdout).expect("it is text")
}

/// Returns the output of bash for a script.
fn bash(options: &[&str], script: &str) -> String {
    let mut child = Command::new("bash")
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash is installed");
    child.stdin.take().expect("it is piped").write_all(script.as_bytes()).expect("bash reads it");
    text(child.wait_with_output().expect("it was started"))
}

/// Returns the completions that bash finds for the last word.
fn completed(words: &[&str]) -> Vec<String> {
    let (last, quoted) = (words.len() - 1, words.join("' '"));
    let script = iwperf(&["completions", "bash"]);
    let call = format!(
        "COMP_WORDS=('{quoted}') COMP_CWORD={last}\n_iwperf iwperf '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words[last],
        words[last - 1],
    );
    // The script defines the function `_iwperf`, and registers the function with `complete`. The added lines
    // call the function.
    bash(&[], &format!("{script}\n{call}")).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    assert_eq!(bash(&["-n"], &iwperf(&["completions", "bash"])), "");
    assert_eq!(completed(&["iwperf", "write-i"]), ["write-imm-bw"]);
    assert_eq!(completed(&["iwperf", "local", "write-bw", "--val"]), ["--validate"]);
    assert!(completed(&["iwperf", "server", "--"]).contains(&"--persistent".to_owned()));
}

#[test]
fn other_shells_have_their_completions() {
    for (shell, sign) in [("zsh", "#compdef iwperf"), ("fish", "complete -c iwperf")] {
        let script = iwperf(&["completions", shell]);
        assert!(script.contains(sign) && script.contains("write-imm-bw"), "{shell}: {script}");
    }
}

#[test]
fn groff_finds_nothing_wrong_with_the_man_pages() {
    let folder = Folder::new("iwperf-man");
    assert_eq!(iwperf(&["man", &folder.display().to_string()]), "");
    let files = std::fs::read_dir(&folder).unwrap();
    let mut pages: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    pages.sort();
    for name in ["iwperf.1", "iwperf-server.1", "iwperf-write-bw.1", "iwperf-pong.1"] {
        assert!(pages.contains(&folder.join(name)), "{name} of {pages:?}");
    }
    assert_eq!(std::fs::read_to_string(folder.join("iwperf.1")).unwrap(), iwperf(&["man"]));
    let output = Command::new("groff").args(["-man", "-ww", "-Tutf8"]).args(&pages).output();
    let read = text(output.expect("groff is installed: scripts/install"));
    assert!(read.contains("Bandwidth of RDMA Writes"), "{read}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_iwperf")).args(["man", "/no/such/folder"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told, "iwperf: /no/such/folder: No such file or directory (os error 2)\n");
}

#[test]
fn a_reader_that_ends_early_is_no_error() {
    let script = "set -o pipefail; \"$IWPERF\" completions bash | head -n 1; \"$IWPERF\" man | head -n 1";
    let output =
        Command::new("bash").args(["-c", script]).env("IWPERF", env!("CARGO_BIN_EXE_iwperf")).output();
    assert!(text(output.unwrap()).starts_with("_iwperf() {\n"));
}
