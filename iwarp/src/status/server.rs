//! The socket of a context. A client that sends the request line gets the report. A client may also close the
//! connection without a request, only to check whether a process listens. In this case the engines are not
//! queried.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::report::{ProcessReport, REQUEST};
use super::{client, folder};
use crate::queues::{Notifier, wait_any};
use crate::verbs::{Context, ContextShared};

/// Maximum time for the engines to answer. An engine that is being polled answers in microseconds.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum time for each read from a client and for each write to a client.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of served contexts of one process.
const MOST_SOCKETS: u32 = 1024;

/// Makes a context visible to [`processes`](super::processes) until this value is dropped. The value does not
/// keep the context alive.
pub struct StatusSocket {
    path: PathBuf,
    /// The process that made the socket. A forked child of this process has no thread that serves the socket,
    /// and must not remove the socket.
    pid: u32,
    stop: Arc<StopCall>,
}

struct StopCall {
    is_set: AtomicBool,
    call: Notifier,
}

/// A function that is called after the engines have received a request for their status.
type Poll = Box<dyn Fn() + Send>;

/// Serves the status of `context` in `folder`, which is created if missing. Binds a socket that only this
/// user may use, and starts a thread that answers the socket's clients. Removes the sockets of dead
/// processes.
///
/// # Errors
/// Fails on an error of the operating system, or if the folder belongs to another user, or if other users can
/// enter or move it. In the latter cases, the text of the error gives the reason in one line.
pub fn serve(context: &Context, folder: &Path) -> io::Result<StatusSocket> {
    serve_while_idle(context, folder, Box::new(|| {}))
}

/// As [`serve`], for engines without a thread, which are polled only in calls of the program. For each
/// request of a client, the socket's thread calls `poll`, which polls the engines once.
///
/// # Errors
/// The errors of [`serve`].
pub fn serve_while_idle(context: &Context, folder: &Path, poll: Poll) -> io::Result<StatusSocket> {
    folder::make(folder)?;
    client::remove_stale(folder)?;
    let pid = std::process::id();
    let (listener, path) = {
        static BINDING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = BINDING.lock().expect("no holder of this lock panics");
        bind(folder, pid)?
    };
    listener.set_nonblocking(true)?;
    let stop = Arc::new(StopCall { is_set: AtomicBool::new(false), call: Notifier::new()? });
    let of_thread = Arc::clone(&stop);
    let context = Arc::downgrade(&context.shared);
    let socket = StatusSocket { path, pid, stop };
    dp::thread::start("iwarp-status".into(), move || run(&listener, &of_thread, &context, &poll))?;
    Ok(socket)
}

impl StatusSocket {
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            self.stop.is_set.store(true, Ordering::SeqCst);
            self.stop.call.notify();
            // If the file is removed already, nothing has to be done.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds the first free name of this process. The socket gets this name only when it listens and only its
/// owner may use it. So no client mistakes the new socket for the socket of a dead process.
fn bind(folder: &Path, pid: u32) -> io::Result<(UnixListener, PathBuf)> {
    for number in 0..MOST_SOCKETS {
        let path = folder::socket(folder, pid, number);
        let draft = path.with_extension("new");
        // A dead process with our number may have left its draft under this name.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = match UnixListener::bind(&draft) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
            listener => listener?,
        };
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o600))?;
        // The link fails if the name exists already, for example because of another context or a process of
        // another namespace.
        let linked = fs::hard_link(&draft, &path);
        fs::remove_file(&draft)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => return linked.map(|()| (listener, path)),
        }
    }
    Err(io::Error::other(format!("{} has {MOST_SOCKETS} sockets of this process", folder.display())))
}

fn run(listener: &UnixListener, stop: &StopCall, context: &Weak<ContextShared>, poll: &Poll) {
    while !stop.is_set.load(Ordering::SeqCst) {
        let mut fds =
            [listener.as_fd(), stop.call.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if wait_any(&mut fds, None).is_err() {
            return;
        }
        let Some(shared) = context.upgrade() else { return };
        let Ok((mut client, _)) = listener.accept() else { continue };
        // An error means that the client has closed the connection, or has not read or written in time.
        let _ = answer(&mut client, &Context { shared }, poll);
    }
}

fn answer(client: &mut UnixStream, context: &Context, poll: &Poll) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(CLIENT_PATIENCE))?;
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut request = [0; REQUEST.len()];
    client.read_exact(&mut request)?;
    if request != *REQUEST {
        return Ok(());
    }
    let status = context.status_with(PATIENCE, poll);
    let report = ProcessReport::new(std::process::id(), program(), &status);
    client.write_all(&serde_json::to_vec(&report)?)
}

/// Returns the name of this process, read from `/proc/self/comm`.
fn program() -> String {
    fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned()
}
