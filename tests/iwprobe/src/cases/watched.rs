//! A case for each group of rules of `watch`, at the end of the run.

use crate::case::{Case, Check, any, deviates, not_applicable};
use crate::probe::Probe;
use crate::watch::Topic;

fn nothing_amiss(p: &Probe, topic: Topic) -> Check {
    let amiss = p.watch().amiss(topic);
    match p.watch().segments() {
        _ if !amiss.is_empty() => deviates(amiss.join("; ")),
        0 => not_applicable("no segment came in this run"),
        _ => Ok(()),
    }
}

pub(super) const CASES: &[Case] = &[
    any("all-fpdus", "MPA-039 MPA-042 MPA-050 MPA-053 MPA-060 MPA-088 MPA-089 MPA-154")
        .about("every FPDU that came had a good CRC, zeros for pad, and its markers where they belong")
        .run(|p| nothing_amiss(p, Topic::Fpdu)),
    any("all-ddp-headers", "DDP-055 DDP-057 DDP-059 DDP-076 DDP-096")
        .about("every segment that came had a whole DDP header, version 1, reserved bits zero")
        .run(|p| nothing_amiss(p, Topic::Ddp)),
    any(
        "all-rdmap-headers",
        "RDMAP-084 RDMAP-085 RDMAP-089 RDMAP-091 RDMAP-092 RDMAP-094 RDMAP-098 RDMAP-298",
    )
    .about("every segment that came had RDMAP version 1, reserved bits zero, T and queue of its opcode")
    .run(|p| nothing_amiss(p, Topic::Rdmap)),
    any("all-sequence-numbers", "DDP-089 DDP-090 DDP-092 DDP-093 DDP-095 DDP-111")
        .about(
            "MSN from 1 upwards on every queue, MO from 0 upwards in every message, tagged segments \
             in order",
        )
        .run(|p| nothing_amiss(p, Topic::Sequence)),
];
