//! `vs_smoltcp`: our TCP below MPA, compared with unmodified smoltcp sockets below equal MPA code, with both
//! sides on one core. The load is 1 MiB Writes at MTU 1500. No frame is larger than the MTU, and both sides
//! compute checksums in software.

use std::time::Duration;

use benches::errors::Error;
use dp::link::LinkConfig;

use crate::pair::alternate::{Comparison, alternate};
use crate::pair::one_core::{LOAD, MESSAGE_BYTES};
use crate::pair::smoltcp_sockets::Smoltcp;
use crate::pair::traffic::Traffic;

/// Returns a wire without offloads.
fn plain_wire() -> LinkConfig {
    LinkConfig { mtu: 1500, bulk_mbufs: 512, checksum_offload: false, ..LinkConfig::default() }
}

/// # Errors
/// Returns an error of one of the stacks, or [`Error::Validation`] if a byte is wrong.
pub(crate) fn measure(time: Duration) -> Result<Comparison, Error> {
    let mut ours = Traffic::new(plain_wire(), 1, LOAD)?;
    let mut theirs = Smoltcp::connect(&plain_wire(), MESSAGE_BYTES)?;
    let [rate, stock_rate] = alternate(time, [&mut |slice| ours.run(slice), &mut |slice| theirs.run(slice)])?;
    ours.validate(2)?;
    theirs.validate()?;
    Ok(Comparison { ours: rate.gigabytes_per_s(), theirs: stock_rate.gigabytes_per_s(), unit: "GB/s" })
}
