//! Events of `tracing` that only TCP can emit. Crates that use this crate emit further events, for example
//! `iwarp/src/engine/trace.rs`.

use super::connections::Conn;
use crate::TcpConfig;
use crate::four_tuple::FourTuple;

dp::events! {
    /// Reports that a listener has created a connection for a SYN.
    fn syn_received(tuple: &FourTuple) {
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        tracing::debug!(%local, %remote, "SYN received");
    }

    /// Reports that a SYN cookie established a connection.
    fn syn_cookie_received(tuple: &FourTuple) {
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        tracing::debug!(%local, %remote, "SYN cookie received");
    }

    /// Reports that the retransmission timer of a connection expired.
    fn retransmission_timeout(conn: &Conn, config: &TcpConfig) {
        let info = conn.tcb.info(config, conn.tuple.local_addr(), conn.tuple.remote_addr());
        let crate::ConnInfo { local, remote, state, srtt_us, rto_us, cwnd, ssthresh, unacknowledged, .. } = info;
        tracing::debug!(
            %local, %remote, ?state, srtt_us, rto_us, cwnd, ssthresh, unacknowledged, "retransmission timeout"
        );
    }
}
