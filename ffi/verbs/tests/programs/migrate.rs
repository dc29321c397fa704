//! Live migration of a QEMU guest from one QEMU to another over RDMA. The guest writes to its memory all the
//! time.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::pair::Running;
use crate::wire::Wire;

/// Maximum time of each step.
const WITHIN: Duration = Duration::from_secs(30);

/// The guest is this boot sector, for a processor in real mode. The guest sweeps over 128 pages again and
/// again, and counts the sweeps. In each sweep the guest checks that the first word of each page has the
/// number of the previous sweep, and adds one to the word. After each 256 sweeps the guest prints the number
/// of sweeps to the debug console. If a page is wrong, the guest prints all ones.
#[rustfmt::skip]
const GUEST: &[u8] = &[
    0xfa,                               // cli
    0x66, 0x31, 0xdb,                   // xor ebx, ebx
    0xba, 0x00, 0x10,                   // mov dx, 0x1000
    // clear:
    0x8e, 0xc2,                         // mov es, dx
    0x66, 0x31, 0xc0,                   // xor eax, eax
    0x26, 0x66, 0xa3, 0x00, 0x00,       // mov es:[0], eax
    0x81, 0xc2, 0x00, 0x01,             // add dx, 0x100
    0x81, 0xfa, 0x00, 0x90,             // cmp dx, 0x9000
    0x75, 0xec,                         // jne clear
    // sweep:
    0x66, 0x43,                         // inc ebx
    0xba, 0x00, 0x10,                   // mov dx, 0x1000
    // page:
    0x8e, 0xc2,                         // mov es, dx
    0x26, 0x66, 0xa1, 0x00, 0x00,       // mov eax, es:[0]
    0x66, 0x40,                         // inc eax
    0x66, 0x39, 0xd8,                   // cmp eax, ebx
    0x75, 0x23,                         // jne wrong
    0x26, 0x66, 0xa3, 0x00, 0x00,       // mov es:[0], eax
    0x81, 0xc2, 0x00, 0x01,             // add dx, 0x100
    0x81, 0xfa, 0x00, 0x90,             // cmp dx, 0x9000
    0x75, 0xe3,                         // jne page
    0x84, 0xdb,                         // test bl, bl
    0x75, 0xda,                         // jne sweep
    0x66, 0x89, 0xd8,                   // mov eax, ebx
    // print:
    0xb9, 0x04, 0x00,                   // mov cx, 4
    // byte:
    0xe6, 0xe9,                         // out 0xe9, al
    0x66, 0xc1, 0xe8, 0x08,             // shr eax, 8
    0xe2, 0xf8,                         // loop byte
    0xeb, 0xca,                         // jmp sweep
    // wrong:
    0x66, 0xb8, 0xff, 0xff, 0xff, 0xff, // mov eax, -1
    0xeb, 0xeb,                         // jmp print
];

/// Number of sweeps between two numbers that the guest prints.
const STEP: u32 = 256;

pub(crate) fn guest_moves_and_goes_on() -> Result<(), String> {
    let wire = Wire::new()?;
    let folder = wire.folder().to_owned();
    let mut disk = vec![0; 1_474_560];
    disk[..GUEST.len()].copy_from_slice(GUEST);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(folder.join("boot"), disk).map_err(|error| format!("boot: {error}"))?;
    let command = |end: &str, more: &str| {
        format!(
            "qemu-system-x86_64 -M pc -m 64M -nodefaults -display none \
             -drive if=floppy,format=raw,readonly=on,file=boot -boot a -debugcon file:{end}.printed \
             -monitor unix:{end}.monitor,server=on,wait=off{more}"
        )
    };
    let mut new = Running::start(&wire, "server", &command("new", " -incoming rdma:127.0.0.1:4444"))?;
    new.wait_to_listen(&wire)?;
    let _old = Running::start(&wire, "client", &command("old", ""))?;
    let printed = |end: &str| fs::read(folder.join(format!("{end}.printed"))).unwrap_or_default();
    wait_for("the guest prints", || Ok(printed("old").len() > 64))?;
    let mut monitor = Monitor::connect(&folder.join("old.monitor"))?;
    // Without `rdma-pin-all`, QEMU 7.2 sometimes posts no Write for the pages that are dirty at the end.
    // QEMU's trace (`qemu_rdma_write_one_post`) ends before these Writes, and a capture of the wire has no
    // such Write.
    for monitor in [&mut monitor, &mut Monitor::connect(&folder.join("new.monitor"))?] {
        monitor.ask("migrate_set_capability rdma-pin-all on")?;
    }
    monitor.ask("migrate -d rdma:127.0.0.1:4444")?;
    wait_for("the guest has moved", || {
        let status = monitor.ask("info migrate")?;
        if status.contains("failed") { Err(status) } else { Ok(status.contains("completed")) }
    })
    .map_err(|error| format!("{error}\n{}\n{}", wire.output("server"), wire.output("client")))?;
    let before = printed("old");
    wait_for("the guest goes on", || Ok(printed("new").len() > 64))?;
    if printed("old").len() != before.len() {
        return Err("the guest goes on where it was, too".into());
    }
    // A number may be printed partly by the old QEMU and partly by the new QEMU.
    let both = [before, printed("new")].concat();
    let numbers = both.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")));
    match numbers.enumerate().find(|(at, number)| *number != (*at as u32 + 1) * STEP) {
        None => Ok(()),
        Some((at, number)) => Err(format!("the guest printed {number:#x} as number {at}")),
    }
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let begun = Instant::now();
    while !is_there()? {
        if begun.elapsed() > WITHIN {
            return Err(format!("not within {WITHIN:?}: {what}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The monitor of a QEMU.
struct Monitor(UnixStream);

impl Monitor {
    fn connect(path: &std::path::Path) -> Result<Self, String> {
        let stream = UnixStream::connect(path).map_err(|error| format!("{}: {error}", path.display()))?;
        stream.set_read_timeout(Some(WITHIN)).map_err(|error| error.to_string())?;
        let mut monitor = Self(stream);
        monitor.answer()?;
        Ok(monitor)
    }

    fn ask(&mut self, question: &str) -> Result<String, String> {
        self.0.write_all(format!("{question}\n").as_bytes()).map_err(|error| error.to_string())?;
        self.answer()
    }

    /// Reads the answer up to the prompt.
    fn answer(&mut self) -> Result<String, String> {
        let mut answer = Vec::new();
        while !answer.ends_with(b"(qemu) ") {
            let mut bytes = [0; 4096];
            match self.0.read(&mut bytes) {
                Ok(0) => return Err(format!("QEMU ended: {}", String::from_utf8_lossy(&answer))),
                Ok(count) => answer.extend(&bytes[..count]),
                Err(error) => return Err(format!("the monitor: {error}")),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}
