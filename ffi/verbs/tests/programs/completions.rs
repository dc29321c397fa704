//! Tests `uwarp completions` with bash.

use std::process::Command;

use crate::built;

type Test = fn() -> Result<(), String>;

pub(crate) fn all() -> Vec<(&'static str, bool, Test)> {
    vec![("bash_completes_commands_and_options", true, bash), ("shells_have_their_completions", true, shells)]
}

fn script(shell: &str) -> Result<String, String> {
    let mut launcher = Command::new(built::launcher());
    said(launcher.args(["completions", shell]))
}

/// Returns the output of a program. The program has to succeed and to print nothing on standard error.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&output.stderr);
    match output.status.success() && told.is_empty() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{}: {told}", output.status)),
    }
}

fn bash() -> Result<(), String> {
    let script = script("bash")?;
    said(Command::new("bash").args(["-n", "-c", &script]))?;
    for (words, wanted) in [
        (&["uwarp", "sta"][..], "status"),
        (&["uwarp", "run", "--ne"], "--net"),
        (&["uwarp", "env", "--format", "git"], "github"),
    ] {
        let (last, quoted) = (words.len() - 1, words.join("' '"));
        let call = format!(
            "COMP_WORDS=('{quoted}') COMP_CWORD={last}\n_uwarp uwarp '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words[last],
            words[last - 1],
        );
        let found = said(Command::new("bash").args(["-c", &format!("{script}\n{call}")]))?;
        if found.trim() != wanted {
            return Err(format!("{words:?} become {found}"));
        }
    }
    Ok(())
}

fn shells() -> Result<(), String> {
    for (shell, sign) in [("zsh", "#compdef uwarp"), ("fish", "complete -c uwarp")] {
        let script = script(shell)?;
        if !script.contains(sign) || !script.contains("status") {
            return Err(format!("{shell}: {script}"));
        }
    }
    Ok(())
}
