//! Addresses of identifiers: binding, and resolving the address of the peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use libc::c_int;

use super::id::{Id, State};
use crate::ffi::abi::{self, EINVAL, Errno, Outcome};
use crate::ffi::{sockaddr, sys};
use crate::net::{Claim, Lookup, NameError, NameLease, Net, PortSpace};

/// The family of InfiniBand's addresses, which iWARP does not support.
const AF_IB: c_int = 27;

const EADDRNOTAVAIL: Errno = Errno(libc::EADDRNOTAVAIL);
const ENODEV: Errno = Errno(libc::ENODEV);

/// The range of ports that this library chooses: Linux's default range of ephemeral ports.
const CHOSEN: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Reads an address of the program.
///
/// # Safety
/// `address` is NULL or points to a socket address with the length that its family has.
unsafe fn read(address: *const sys::sockaddr) -> Outcome<SocketAddr> {
    if address.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: `address` is not NULL, so it points to a socket address, as the caller promises.
    if unsafe { sockaddr::family(address.cast()) } == AF_IB {
        return Err(ENODEV);
    }
    // SAFETY: the caller promises that `address` points to a socket address with the length of its family.
    unsafe { sockaddr::read(address.cast()) }.ok_or(EINVAL)
}

/// Implements `rdma_bind_addr(3)`.
///
/// # Safety
/// `id` is valid, and `address` is a socket address.
#[unsafe(export_name = "uw_rdma_bind_addr")]
pub(crate) unsafe extern "C" fn rdma_bind_addr(
    id: *mut sys::rdma_cm_id,
    address: *mut sys::sockaddr,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller passes a socket address.
        bind(this, unsafe { read(address) }?)?;
        Ok(0)
    })
}

/// Binds an identifier. On a wire with names, also reserves the name of the address.
pub(super) fn bind(id: &Id, address: SocketAddr) -> Outcome<()> {
    let mut state = id.state();
    if state.source.is_some() {
        return Err(EINVAL);
    }
    if !address.ip().is_unspecified() && !id.process.net.is_ours(address.ip())? {
        return Err(EADDRNOTAVAIL);
    }
    let address = take_name(id, &mut state, address, Net::take_name)?;
    id.set_source(&mut state, address);
    drop(state);
    if id.process.net.is_of_device(address.ip()) {
        id.set_device()?;
    }
    Ok(())
}

/// A method of `Net` that reserves a name.
type Take = fn(&Net, PortSpace, SocketAddr, &Claim) -> Result<Option<NameLease>, NameError>;

/// Reserves the port of an address (a free port if the address has port 0) and the name of the address on the
/// wire. Peers find no listener at the name until the identifier listens.
fn take_name(id: &Id, state: &mut State, address: SocketAddr, take: Take) -> Outcome<SocketAddr> {
    let claim = Claim::new(address.ip(), state.family_only, state.reuses_address);
    let take = |address: SocketAddr| take_port(id, address, claim, take);
    let (address, name) = match address.port() {
        0 => choose_port(address, take)?,
        _ => (address, take(address)?),
    };
    state.name = name;
    Ok(address)
}

/// Reserves a port in the table of this process, and then the name of the address on the wire.
fn take_port(id: &Id, address: SocketAddr, claim: Claim, take: Take) -> Result<Option<NameLease>, NameError> {
    let (ports, number) = (id.ports(), id.as_c() as usize);
    ports.bind(number, address.port(), claim)?;
    let taken = take(&id.process.net, id.space(), address, &claim);
    taken.inspect_err(|_| ports.release(number, address.port()))
}

/// Chooses a free port, and reserves the port by `take`. Fails at once if the system reports an error, for
/// example because no interface has the address: another port would not help.
fn choose_port<T>(
    address: SocketAddr,
    take: impl Fn(SocketAddr) -> Result<T, NameError>,
) -> Outcome<(SocketAddr, T)> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = CHOSEN.end() - CHOSEN.start() + 1;
    // Processes begin at different ports, so they seldom collide.
    let start = (std::process::id() as u16).wrapping_mul(131);
    // The scope of a link-local address is kept: only the port changes.
    let mut address = address;
    for _ in 0..count {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        address.set_port(CHOSEN.start() + start.wrapping_add(step) % count);
        match take(address) {
            Ok(taken) => return Ok((address, taken)),
            Err(NameError::InUse | NameError::Overlaps) => {}
            Err(error @ NameError::System(_)) => return Err(error.into()),
        }
    }
    Err(EADDRNOTAVAIL)
}

/// Implements `rdma_resolve_addr(3)`.
///
/// # Safety
/// `id` is valid, `source` is NULL or a socket address, and `destination` is a socket address.
#[unsafe(export_name = "uw_rdma_resolve_addr")]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut sys::rdma_cm_id,
    source: *mut sys::sockaddr,
    destination: *mut sys::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        // SAFETY: the caller passes a socket address.
        let mut destination = unsafe { read(destination) }?;
        // `EINVAL` means that the identifier already listens or has a peer.
        if this.state().is_in_use() {
            return Err(EINVAL);
        }
        if !source.is_null() {
            // SAFETY: the caller passes a socket address.
            let source = unsafe { read(source) }?;
            if this.state().source.is_none() {
                bind(this, source)?;
            }
        }
        let net = &this.process.net;
        // As in the kernel, the unspecified address means this host.
        if destination.ip().is_unspecified() {
            let itself = match destination.ip() {
                _ if !net.is_private() => net.address(),
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            destination.set_ip(itself);
        }
        if !net.is_reachable(destination.ip())? {
            this.announce(sys::RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV);
        } else {
            let mut state = this.state();
            let bound = state.source;
            if bound.is_none_or(|address| address.ip().is_unspecified()) {
                let own = SocketAddr::new(net.source_for(destination.ip())?, bound.map_or(0, |a| a.port()));
                let own =
                    if own.port() == 0 { take_name(this, &mut state, own, Net::take_source)? } else { own };
                this.ports().update(this.as_c() as usize, own.port(), |claim| claim.address = own.ip());
                this.set_source(&mut state, own);
            }
            this.set_destination(&mut state, destination);
            drop(state);
            this.set_device()?;
            this.announce(sys::RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        }
        this.complete()?;
        Ok(0)
    })
}

/// Implements `rdma_resolve_route(3)`.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_resolve_route")]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut sys::rdma_cm_id, _timeout_ms: c_int) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes an identifier that is valid during the call.
        let this = unsafe { Id::of(id) }?;
        if this.state().destination.is_none() {
            return Err(EINVAL);
        }
        if this.is_datagram() {
            this.state().datagram.route()?;
        }
        // TCP finds the route when it connects.
        this.announce(sys::RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        this.complete()?;
        Ok(0)
    })
}

/// Maximum time that a connecting program waits for a listener to appear, before the connection is refused.
const APPEARS_WITHIN: Duration = Duration::from_millis(200);
/// Maximum time that a connecting program waits for a listener that is likely to appear.
const COMES_WITHIN: Duration = Duration::from_secs(5);

/// Finds the listener at `destination`. If there is no listener, waits a short time.
///
/// Some servers send their port to a client before they listen, or listen again for each connection. A
/// hardware network is slow enough to hide the gap, but a `local` wire is not. So this call waits a short
/// time for a listener. The call waits longer if the address is bound, or if the process that listened there
/// before still exists, since that process may be waiting for a processor. If that process has ended, the
/// call does not wait.
pub(super) fn find(id: &Id, destination: SocketAddr) -> Outcome<Lookup> {
    let net = &id.process.net;
    let begun = Instant::now();
    let mut asked_before = false;
    loop {
        let peer = net.find(id.space(), destination)?;
        if matches!(peer, Lookup::At(_) | Lookup::NoAnswer) {
            return Ok(peer);
        }
        let soon = begun.elapsed() < APPEARS_WITHIN;
        // `lives` asks each process on the wire, so it is called once at first and then rarely.
        let may_come = match peer {
            Lookup::NotFound if asked_before && soon => true,
            Lookup::NotFound => net.lives(id.space(), destination)?.unwrap_or(soon),
            _ => true,
        };
        asked_before = true;
        if !may_come || begun.elapsed() >= COMES_WITHIN {
            return Ok(peer);
        }
        std::thread::sleep(if soon { Duration::from_micros(500) } else { Duration::from_millis(20) });
    }
}

/// Implements `rdma_get_src_port(3)`: returns the port in network byte order.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_get_src_port")]
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut sys::rdma_cm_id) -> u16 {
    // SAFETY: the caller passes an identifier that is valid during the call.
    let source = unsafe { Id::of(id) }.ok().and_then(|id| id.state().source);
    source.map_or(0, |address| address.port()).to_be()
}

/// Implements `rdma_get_dst_port(3)`: returns the port in network byte order.
///
/// # Safety
/// `id` is valid.
#[unsafe(export_name = "uw_rdma_get_dst_port")]
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut sys::rdma_cm_id) -> u16 {
    // SAFETY: the caller passes an identifier that is valid during the call.
    let destination = unsafe { Id::of(id) }.ok().and_then(|id| id.state().destination);
    destination.map_or(0, |address| address.port()).to_be()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Chooses a port for `address`. Each attempt calls `take`, which returns the result of the attempt.
    /// Returns the final result, and the number of attempts.
    fn chosen(address: &str, take: impl Fn() -> Result<(), NameError>) -> (Outcome<SocketAddr>, usize) {
        let asked = Cell::new(0);
        let address = address.parse().unwrap();
        let chosen = choose_port(address, |_| {
            asked.set(asked.get() + 1);
            take()
        });
        (chosen.map(|(address, ())| address), asked.get())
    }

    #[test]
    fn a_port_is_chosen_among_those_that_nobody_has() {
        let left = Cell::new(3);
        let third = || match left.replace(left.get() - 1) {
            1 => Ok(()),
            2 => Err(NameError::Overlaps),
            _ => Err(NameError::InUse),
        };
        let (address, asked) = chosen("[fe80::1%3]:0", third);
        let SocketAddr::V6(address) = address.unwrap() else { panic!("an address of IPv6") };
        assert!(CHOSEN.contains(&address.port()) && asked == 3);
        assert_eq!((address.ip().to_string(), address.scope_id()), ("fe80::1".into(), 3));
    }

    #[test]
    fn the_search_ends_where_no_port_can_be_had() {
        let (none, asked) = chosen("127.0.0.1:0", || Err(NameError::InUse));
        assert_eq!((none, asked), (Err(EADDRNOTAVAIL), CHOSEN.count()));
        // The kernel refuses an address that no interface has, whatever the port.
        for number in [libc::EACCES, libc::EADDRNOTAVAIL] {
            let refused = || Err(std::io::Error::from_raw_os_error(number).into());
            assert_eq!(chosen("127.0.0.1:0", refused), (Err(Errno(number)), 1));
        }
    }
}
