//! Two network namespaces with an interface each, connected to each other.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The addresses of the library on the two interfaces, which the kernel does not have.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.11", "10.77.0.12"];

/// The namespaces, which are removed in the end.
pub(crate) struct Interfaces {
    names: [String; 2],
}

impl Interfaces {
    pub(crate) fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("uwp{}-{number}{end}", std::process::id()));
        let [a, b] = &names;
        let interfaces = Self { names: names.clone() };
        for name in [a, b] {
            ip(&format!("netns add {name}"))?;
        }
        ip(&format!("link add va netns {a} type veth peer name vb netns {b}"))?;
        for (name, link, address) in [(a, "va", "10.77.0.1"), (b, "vb", "10.77.0.2")] {
            ip(&format!("-n {name} addr add {address}/24 dev {link}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {link} up"))?;
        }
        Ok(interfaces)
    }

    /// The words before a program that run it at an end, and the wire of that end.
    pub(crate) fn end(&self, end: usize) -> (Vec<String>, String) {
        let words = ["ip", "netns", "exec", &self.names[end]].map(str::to_owned);
        (words.into(), format!("packet:v{},addr={}/24", ["a", "b"][end], ADDRESSES[end]))
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was not made needs no removal.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim_end())),
    }
}

/// Whether namespaces can be made.
pub(crate) fn can_be_made() -> bool {
    Interfaces::new().is_ok()
}
