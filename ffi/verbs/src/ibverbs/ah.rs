//! Address handles, which name the destinations of datagrams.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use iwarp::roce::{self, GRH_BYTES};
use iwarp::verbs::AddressVector;
use libc::c_int;

use crate::ffi::abi::{self, EINVAL, ENOMEM, EOPNOTSUPP, Outcome};
use crate::ffi::sys;
use crate::ibverbs::device::OpenDevice;
use crate::ibverbs::oob_connect;
use crate::ibverbs::pd::Pd;
use crate::net::{Net, mapped};
use crate::process::{Process, limits};

/// The hop limit of datagrams if the program asks for 0, with which no datagram could be sent.
const HOP_LIMIT: u8 = 64;

/// The bits of a flow label.
const FLOW_LABEL: u32 = 0xF_FFFF;

/// The number of address handles of the process.
static HANDLES: AtomicUsize = AtomicUsize::new(0);

/// An address handle (`ibv_ah`).
#[repr(C)]
pub(crate) struct Ah {
    c: sys::ibv_ah,
    process: &'static Process,
    /// The attributes, which were checked.
    attr: sys::ibv_ah_attr,
}

impl Ah {
    /// # Safety
    /// `ah` was returned by this library, and is not destroyed while the reference is used.
    pub(crate) unsafe fn of<'a>(ah: *mut sys::ibv_ah) -> &'a Self {
        // SAFETY: the C struct is the first field of an `Ah`, which is freed only when it is destroyed.
        unsafe { &*ah.cast::<Self>() }
    }

    /// The destination of a datagram to queue pair `number`.
    pub(crate) fn to(&self, number: u32) -> Outcome<AddressVector> {
        vector_of(self.process, &self.attr, number)
    }
}

/// Returns the destination for the attributes of a program and the number of the remote queue pair.
fn vector_of(process: &Process, attr: &sys::ibv_ah_attr, number: u32) -> Outcome<AddressVector> {
    if attr.port_num != 1 {
        return Err(EINVAL);
    }
    Ok(AddressVector {
        addr: match group_of(attr) {
            Some(group) => process.net.group_on_wire(group).ok_or(EOPNOTSUPP)?,
            None => oob_connect::remote_of(process, attr, number)?,
        },
        traffic_class: attr.grh.traffic_class,
        hop_limit: if attr.grh.hop_limit == 0 { HOP_LIMIT } else { attr.grh.hop_limit },
        flow_label: attr.grh.flow_label & FLOW_LABEL,
    })
}

/// Returns the multicast group that the attributes name, if they name one.
fn group_of(attr: &sys::ibv_ah_attr) -> Option<IpAddr> {
    // SAFETY: `raw` is an array of bytes, which has no invalid values.
    let gid = unsafe { attr.grh.dgid.raw };
    if attr.is_global != 0 { roce::group_of_gid(&gid) } else { None }
}

/// Implements `ibv_create_ah(3)`.
///
/// # Safety
/// `pd` is valid, and `attr` is readable.
#[unsafe(export_name = "uw_ibv_create_ah")]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut sys::ibv_pd,
    attr: *mut sys::ibv_ah_attr,
) -> *mut sys::ibv_ah {
    abi::pointer(|| {
        if pd.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a pointer to a readable struct.
        create(pd, unsafe { &*attr })
    })
}

fn create(pd: *mut sys::ibv_pd, attr: &sys::ibv_ah_attr) -> Outcome<*mut sys::ibv_ah> {
    // SAFETY: the caller passes a domain that is valid during the call.
    let domain = unsafe { Pd::of(pd) };
    domain.check()?;
    let context = domain.context();
    // SAFETY: a context is not freed while it has objects.
    let process = unsafe { OpenDevice::of(context) }.process;
    vector_of(process, attr, 0)?;
    if HANDLES.fetch_add(1, Ordering::Relaxed) >= limits::MAX_AH {
        HANDLES.fetch_sub(1, Ordering::Relaxed);
        return Err(ENOMEM);
    }
    domain.add();
    let ah = Box::new(Ah { c: sys::ibv_ah { context, pd, handle: 0 }, process, attr: *attr });
    Ok(Box::into_raw(ah).cast())
}

/// Implements `ibv_destroy_ah(3)`. Requests that were posted with the handle keep its destination.
///
/// # Safety
/// `ah` is valid, and is not used after the call.
#[unsafe(export_name = "uw_ibv_destroy_ah")]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut sys::ibv_ah) -> c_int {
    abi::status(|| {
        // SAFETY: the caller passes a valid handle.
        abi::check_handle(unsafe { (*ah).handle }, 0)?;
        // SAFETY: this is the address of a leaked `Box`, and the caller does not use the address again.
        let ah = unsafe { Box::from_raw(ah.cast::<Ah>()) };
        // SAFETY: a domain is not deallocated while it has address handles.
        unsafe { Pd::of(ah.c.pd) }.remove();
        HANDLES.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    })
}

/// Implements `ibv_init_ah_from_wc(3)`: returns the attributes of a handle for the sender of a datagram.
///
/// # Safety
/// `context` is open, `wc` and `grh` are readable, and `attr` is writable.
#[unsafe(export_name = "uw_ibv_init_ah_from_wc")]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut sys::ibv_context,
    port: u8,
    wc: *mut sys::ibv_wc,
    grh: *mut sys::ibv_grh,
    attr: *mut sys::ibv_ah_attr,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes a pointer to a readable struct.
        let wc = unsafe { &*wc };
        // SAFETY: the caller passes an open context, and a readable GRH if the completion has one.
        let found = unsafe { attr_of(context, port, wc, grh) }?;
        // SAFETY: the caller passes a pointer to a writable struct.
        unsafe { attr.write(found) };
        Ok(0)
    })
}

/// Returns the attributes of a handle for the sender of a datagram.
///
/// # Safety
/// `context` is open. If the completion has a GRH, `grh` is readable.
unsafe fn attr_of(
    context: *mut sys::ibv_context,
    port: u8,
    wc: &sys::ibv_wc,
    grh: *const sys::ibv_grh,
) -> Outcome<sys::ibv_ah_attr> {
    let mut attr = sys::ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    if wc.wc_flags & sys::IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    // SAFETY: the caller passes a pointer to a readable GRH, which has no alignment that a byte array lacks.
    let bytes = unsafe { grh.cast::<[u8; GRH_BYTES]>().read_unaligned() };
    let source = roce::source_of(&bytes).ok_or(EINVAL)?;
    // SAFETY: the caller passes an open context.
    let net = &unsafe { OpenDevice::of(context) }.process.net;
    attr.is_global = 1;
    attr.grh.dgid = sys::ibv_gid { raw: mapped(source.source).octets() };
    attr.grh.sgid_index = index_of(net, source.destination);
    attr.grh.hop_limit = source.hop_limit;
    attr.grh.traffic_class = source.traffic_class;
    attr.grh.flow_label = source.flow_label;
    Ok(attr)
}

/// Returns the last index of our GID that is this address, or 0 if there is none.
fn index_of(net: &Net, address: IpAddr) -> u8 {
    net.gid_index_of(address).unwrap_or(0) as u8
}

/// Returns the attributes of a handle for an address on the wire.
pub(crate) fn attr_of_address(process: &Process, address: IpAddr) -> sys::ibv_ah_attr {
    attr_of_gid(process, mapped(address).octets())
}

/// Returns the attributes of a handle for a GID.
pub(crate) fn attr_of_gid(process: &Process, gid: [u8; 16]) -> sys::ibv_ah_attr {
    let mut attr = sys::ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    attr.grh.dgid = sys::ibv_gid { raw: gid };
    attr.grh.sgid_index = index_of(&process.net, process.net.address());
    attr.grh.hop_limit = HOP_LIMIT;
    attr
}

/// Implements `ibv_create_ah_from_wc(3)`.
///
/// # Safety
/// `pd` is valid, and `wc` and `grh` are readable.
#[unsafe(export_name = "uw_ibv_create_ah_from_wc")]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut sys::ibv_pd,
    wc: *mut sys::ibv_wc,
    grh: *mut sys::ibv_grh,
    port: u8,
) -> *mut sys::ibv_ah {
    abi::pointer(|| {
        // SAFETY: the caller passes a domain that is valid during the call.
        let context = unsafe { Pd::of(pd) }.context();
        // SAFETY: the caller passes a pointer to a readable struct.
        let wc = unsafe { &*wc };
        // SAFETY: the context of a domain is open, and the caller passes a readable GRH if the completion has
        // one.
        let attr = unsafe { attr_of(context, port, wc, grh) }?;
        create(pd, &attr)
    })
}
