//! The thread that answers the frontend.
//!
//! The frontend waits for the answers to many of its messages: a virtual machine is stopped meanwhile. So a
//! thread of its own answers at once, also while the program does not poll the port. The thread blocks only
//! in the socket. When the port is dropped, it shuts the socket down, which ends each wait of the thread.
//!
//! The device is in a mutex. The port locks the mutex for each burst, and the thread for each message. The
//! thread announces that it wants the mutex, and the port then leaves the mutex alone. So a port that polls
//! without a pause does not keep the thread waiting.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandler};

use super::device::{Device, FROM_DRIVER, Refused};
use super::features;
use super::memory::{GuestMemory, MAX_REGIONS, RegionPlace, Unfit};
use super::ring::Addresses;
use super::socket::Socket;

/// Each event wakes the port once (edge-triggered), so the port need not read the descriptors.
const EDGES: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

/// The pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// What the thread shares with the port.
#[derive(Debug)]
pub(super) struct Shared {
    device: Mutex<Device>,
    /// Whether the thread wants the device.
    is_wanted: AtomicBool,
    /// Whether both rings may be used.
    is_up: AtomicBool,
    /// Number of changes of `is_up`, and of times that rings were started. A new ring asks for no
    /// notifications, so a port that sleeps has to ask again.
    changes: AtomicU32,
    /// Whether the driver accepts uncut TCP frames.
    large_frames: AtomicBool,
    /// The descriptor on which the port sleeps: it reports the driver's notifications, and `news`.
    epoll: OwnedFd,
    /// Is written to when `changes` has changed.
    news: OwnedFd,
    /// Is written to when the port ends.
    end: OwnedFd,
    has_ended: AtomicBool,
    /// The connection to the frontend.
    connection: Mutex<Option<UnixStream>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves the state as it was before a message, or after a part of the message: both are states
    // that a frontend can make.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(device: Device) -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let news = event()?;
        epoll::add(&epoll, &news, epoll::EventData::new_u64(0), EDGES)?;
        Ok(Self {
            device: Mutex::new(device),
            is_wanted: AtomicBool::new(false),
            is_up: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            large_frames: AtomicBool::new(false),
            epoll,
            news,
            end: event()?,
            has_ended: AtomicBool::new(false),
            connection: Mutex::new(None),
        })
    }

    /// The device, if both rings may be used and the thread does not want the device.
    #[inline]
    pub(super) fn enter(&self) -> Option<MutexGuard<'_, Device>> {
        if !self.is_up() || self.is_wanted.load(Ordering::Relaxed) {
            return None;
        }
        let device = lock(&self.device);
        device.is_up().then_some(device)
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    pub(super) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn passes_large_frames(&self) -> bool {
        self.large_frames.load(Ordering::Relaxed)
    }

    pub(super) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Removes the events that [`epoll`](Self::epoll) has reported.
    pub(super) fn clear_events(&self) {
        // Each of the two descriptors has at most one event.
        let mut events = [const { MaybeUninit::uninit() }; 2];
        // After an error the port sleeps at most until the next event.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&NO_TIME));
    }

    /// Stops a device whose driver breaks the rules, and ends the connection to the frontend.
    #[cold]
    pub(super) fn end_broken(&self, mut device: MutexGuard<'_, Device>) {
        device.stop();
        self.update(&device);
        drop(device);
        self.shut_down();
    }

    fn shut_down(&self) {
        if let Some(connection) = &*lock(&self.connection) {
            // An error means that the connection has ended.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Changes the device by `change`.
    fn change<T>(&self, change: impl FnOnce(&mut Device) -> T) -> T {
        self.is_wanted.store(true, Ordering::Relaxed);
        let mut device = lock(&self.device);
        self.is_wanted.store(false, Ordering::Relaxed);
        let starts = device.starts();
        let result = change(&mut device);
        if device.starts() != starts {
            self.tell();
        }
        self.update(&device);
        result
    }

    /// Publishes what the port reads without the mutex.
    fn update(&self, device: &Device) {
        self.large_frames.store(features::passes_large_frames(device.features()), Ordering::Relaxed);
        if self.is_up.swap(device.is_up(), Ordering::AcqRel) != device.is_up() {
            self.tell();
        }
    }

    /// Wakes the port, if it sleeps.
    fn tell(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        notify(&self.news);
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Notifies the owner of an eventfd.
pub(super) fn notify(event: impl AsFd) {
    // An error means that the counter is at its maximum, so the owner is notified already.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// The thread.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts the thread.
    pub(super) fn start(shared: Shared, socket: Socket) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let of_thread = Arc::clone(&shared);
        let thread = crate::thread::start("uwarp-vhost".into(), move || serve(&of_thread, &socket))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Forgets the thread, which does not exist in a forked child.
    pub(super) fn forget(&mut self) {
        self.thread = None;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.has_ended.store(true, Ordering::Release);
        notify(&self.shared.end);
        self.shared.shut_down();
        // The thread only panics if this crate or `vhost` has a defect. The port ends in any case.
        let _ = thread.join();
    }
}

/// Serves one frontend after another.
fn serve(shared: &Arc<Shared>, socket: &Socket) {
    while !shared.has_ended() {
        wait(&[shared.end.as_fd(), socket.listener.as_fd()]);
        if let Some(connection) = accept(socket) {
            serve_frontend(shared, socket, connection);
        }
    }
}

/// Accepts a connection, if one waits.
fn accept(socket: &Socket) -> Option<UnixStream> {
    match socket.listener.accept() {
        Ok((connection, _)) => Some(connection),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(_) => {
            // For example, too many files are open. The connection still waits, so the thread pauses.
            std::thread::sleep(PAUSE);
            None
        }
    }
}

/// Answers a frontend until it disconnects, breaks the rules, or the port ends.
fn serve_frontend(shared: &Arc<Shared>, socket: &Socket, connection: UnixStream) {
    // On some systems, an accepted socket inherits that the listener does not block.
    let Ok(clone) = connection.set_nonblocking(false).and_then(|()| connection.try_clone()) else { return };
    let Ok(watched) = clone.try_clone() else { return };
    *lock(&shared.connection) = Some(clone);
    let frontend = Arc::new(Frontend { shared: Arc::clone(shared), kick: Mutex::new(None) });
    let mut handler = BackendReqHandler::from_stream(connection, Arc::clone(&frontend));
    while !shared.has_ended() {
        let [_, other, message] = wait(&[shared.end.as_fd(), socket.listener.as_fd(), watched.as_fd()]);
        if message {
            // A frontend that has just left may have connected again. Then the end of its first connection is
            // read here before the second connection is looked at.
            let handled = match frontend.enable_early(&watched) {
                Some(handled) => handled,
                None => handler.handle_request(),
            };
            if handled.is_err() {
                break;
            }
        } else if other {
            // A second frontend would wait for its answers without end, so its connection is closed.
            drop(accept(socket));
        }
    }
    *lock(&shared.connection) = None;
    frontend.watch_kick(None);
    shared.change(Device::reset);
}

/// Waits until one of the descriptors is readable. Returns which of them are.
fn wait<const N: usize>(descriptors: &[BorrowedFd<'_>; N]) -> [bool; N] {
    let mut polled = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // After an error, such as an interruption, no descriptor counts as readable.
    let done = poll(&mut polled, None);
    polled.map(|fd| done.is_ok() && !fd.revents().is_empty())
}

/// The messages of one frontend.
struct Frontend {
    shared: Arc<Shared>,
    /// The eventfd by which the driver notifies the device.
    kick: Mutex<Option<OwnedFd>>,
}

impl Frontend {
    fn change(&self, change: impl FnOnce(&mut Device) -> std::result::Result<(), Refused>) -> Result<()> {
        self.shared.change(change).map_err(|Refused| Error::InvalidParam)
    }

    /// Handles the next message if it enables a ring before the features were set: QEMU sends such messages,
    /// and `vhost` refuses them. Returns `None`, and leaves the message in the socket, if the next message is
    /// another one.
    fn enable_early(&self, mut connection: &UnixStream) -> Option<Result<()>> {
        let mut message = [0; STATE_BYTES];
        let peeked = recv(connection, &mut message[..HEADER_BYTES], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        let field = |message: &[u8; STATE_BYTES], nr: usize| {
            u32::from_ne_bytes([0, 1, 2, 3].map(|at| message[4 * nr + at]))
        };
        let is_it = peeked.is_ok_and(|(count, _)| count == HEADER_BYTES)
            && field(&message, 0) == SET_VRING_ENABLE
            && field(&message, 1) & !NEED_REPLY == VERSION
            && field(&message, 2) as usize == STATE_BYTES - HEADER_BYTES;
        if !is_it || self.shared.change(|device| device.features()) & features::PROTOCOL_FEATURES != 0 {
            return None;
        }
        if connection.read_exact(&mut message).is_err() {
            return Some(Err(Error::PartialMessage));
        }
        let (nr, enable) = (field(&message, 3), field(&message, 4) == 1);
        let done = self.change(|device| device.enable(nr, enable));
        if done.is_ok() && field(&message, 1) & NEED_REPLY != 0 {
            let fields = [SET_VRING_ENABLE, VERSION | REPLY, 8, 0, 0];
            let sent = send(connection, fields.map(u32::to_ne_bytes).as_flattened(), SendFlags::NOSIGNAL);
            return Some(sent.map(drop).map_err(|errno| Error::SocketBroken(errno.into())));
        }
        Some(done)
    }

    /// Makes the port sleep on `kick`, instead of on the previous eventfd.
    fn watch_kick(&self, kick: Option<OwnedFd>) {
        let mut watched = lock(&self.kick);
        if let Some(old) = watched.take() {
            // The frontend also has the eventfd open, so the kernel does not remove it by itself.
            let _ = epoll::delete(&self.shared.epoll, old);
        }
        if let Some(new) = &kick {
            // An error means that the port does not wake up by itself, as without an eventfd.
            let _ = epoll::add(&self.shared.epoll, new, epoll::EventData::new_u64(1), EDGES);
        }
        *watched = kick;
    }
}

/// The number of the message `VHOST_USER_SET_VRING_ENABLE`.
const SET_VRING_ENABLE: u32 = 18;

/// The flags of a message: version 1, an answer, and that the sender asks for an answer.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// The number of bytes of a message with two numbers, and of its header.
const STATE_BYTES: usize = 20;
const HEADER_BYTES: usize = 12;

/// Checks that a descriptor is an eventfd, so that a write to it cannot have other effects, and makes it
/// non-blocking.
fn eventfd_of(file: Option<File>) -> Result<Option<OwnedFd>> {
    use std::os::fd::AsRawFd;
    let Some(file) = file else { return Ok(None) };
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let is_eventfd = std::fs::read_link(link).is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]");
    if !is_eventfd || rustix::io::ioctl_fionbio(&file, true).is_err() {
        return Err(Error::InvalidParam);
    }
    Ok(Some(file.into()))
}

const NOT_OFFERED: Error = Error::InvalidOperation("a feature that was not offered");

impl VhostUserBackendReqHandler for Frontend {
    fn set_owner(&self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&self) -> Result<()> {
        self.watch_kick(None);
        self.shared.change(Device::reset);
        Ok(())
    }

    fn get_features(&self) -> Result<u64> {
        Ok(self.shared.change(|device| device.offered()))
    }

    fn set_features(&self, features: u64) -> Result<()> {
        self.change(|device| device.set_features(features))
    }

    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let places = regions.iter().map(|region| RegionPlace {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            bytes: region.memory_size,
            offset: region.mmap_offset,
        });
        // The files are mapped, and the previous mappings removed, while the port may use the device.
        let needs_seals = self.shared.change(|device| device.needs_seals());
        let memory = GuestMemory::map(places.zip(files), needs_seals).map_err(|Unfit| Error::InvalidParam)?;
        let previous = self.shared.change(|device| device.set_memory(memory));
        previous.map(|_| None).map_err(|Refused| Error::InvalidParam)
    }

    fn set_vring_num(&self, index: u32, num: u32) -> Result<()> {
        self.change(|device| device.set_size(index, num))
    }

    fn set_vring_addr(
        &self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.change(|device| device.set_addresses(index, Addresses { descriptors, available, used }))
    }

    fn set_vring_base(&self, index: u32, base: u32) -> Result<()> {
        self.change(|device| device.set_base(index, base))
    }

    fn get_vring_base(&self, index: u32) -> Result<VhostUserVringState> {
        if index as usize == FROM_DRIVER {
            self.watch_kick(None);
        }
        let base = self.shared.change(|device| device.stop_queue(index));
        let base = base.map_err(|Refused| Error::InvalidParam)?;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = eventfd_of(fd)?;
        if usize::from(index) == FROM_DRIVER {
            self.watch_kick(kick);
        }
        self.change(|device| device.start_queue(index.into()))
    }

    fn set_vring_call(&self, index: u8, fd: Option<File>) -> Result<()> {
        let call = eventfd_of(fd)?;
        if let Some(call) = &call {
            // The driver may wait for a notification that went to the previous eventfd.
            notify(call);
        }
        self.change(|device| {
            device.queue(index.into())?.call = call;
            Ok(())
        })
    }

    fn set_vring_err(&self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&self) -> Result<VhostUserProtocolFeatures> {
        // The configuration space belongs to the frontend: QEMU warns of a network device that has its own.
        Ok(VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&self) -> Result<u64> {
        Ok(1)
    }

    fn set_vring_enable(&self, index: u32, enable: bool) -> Result<()> {
        self.change(|device| device.enable(index, enable))
    }

    fn get_config(&self, _offset: u32, _size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(NOT_OFFERED)
    }

    fn set_config(&self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn set_gpu_socket(&self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(NOT_OFFERED)
    }

    fn set_inflight_fd(&self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_max_mem_slots(&self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let place = RegionPlace {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            bytes: region.memory_size,
            offset: region.mmap_offset,
        };
        self.change(|device| device.add_memory(place, file))?;
        Ok(None)
    }

    fn remove_mem_region(&self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (guest, user, bytes) = (region.guest_phys_addr, region.user_addr, region.memory_size);
        self.change(|device| device.remove_memory(guest, user, bytes))
    }

    fn set_device_state_fd(
        &self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}
