//! The headers of the connection that was served last. The headers are used again if the same connection is
//! served next, which is usual.

use crate::ConnId;
use crate::facade::{EthernetAddress, IpAddress};
use crate::four_tuple::FourTuple;
use crate::frame::{Framing, PlainTemplate};

/// Headers with timestamps, like those of most frames of a connection over IPv4.
#[derive(Debug)]
pub(super) struct LatestHeaders {
    conn: ConnId,
    dst_mac: EthernetAddress,
    template: PlainTemplate,
}

impl LatestHeaders {
    /// The headers of a connection with this 4-tuple through this neighbour. Uses the headers in `latest` if
    /// they match, or else creates new headers and stores them in `latest`. Returns `None` over IPv6.
    #[inline]
    pub(super) fn of<'a>(
        latest: &'a mut Option<Self>,
        framing: &Framing,
        (conn, tuple): (ConnId, &FourTuple),
        dst_mac: EthernetAddress,
    ) -> Option<&'a PlainTemplate> {
        if !latest.as_ref().is_some_and(|known| known.conn == conn && known.dst_mac == dst_mac) {
            *latest = Some(Self { conn, dst_mac, template: template(framing, tuple, dst_mac)? });
        }
        latest.as_ref().map(|known| &known.template)
    }
}

fn template(framing: &Framing, tuple: &FourTuple, dst_mac: EthernetAddress) -> Option<PlainTemplate> {
    let (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)) = (tuple.local, tuple.remote) else { return None };
    Some(PlainTemplate::new(framing, dst_mac, [src, dst], [tuple.local_port, tuple.remote_port], true))
}
