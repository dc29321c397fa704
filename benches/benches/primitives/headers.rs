//! Times writing and parsing headers: Ethernet, IP and TCP; DDP and RDMAP; and the Read Request of RDMAP.

use std::hint::black_box;

use criterion::Criterion;
use dp::Offloads;
use iwarp::ddp::Header;
use iwarp::memory::Stag;
use iwarp::rdmap::{Extensions, Opcode, ReadRequest};
use tcp_lite::bench::{SegmentHeaders, parse_headers};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{Limits, StackConfig, TcpConfig};

const REQUEST: ReadRequest =
    ReadRequest { sink_stag: Stag(0x100), sink_to: 1, size: 2, source_stag: Stag(0x200), source_to: 3 };

fn config(offloads: Offloads) -> StackConfig {
    StackConfig {
        mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
        vlan: None,
        addresses: Default::default(),
        gateways: Default::default(),
        address_probing: Default::default(),
        derived_neighbors: None,
        loopback: false,
        mtu: 1500,
        offloads,
        limits: Limits::default(),
        tcp: TcpConfig::default(),
        seed: [1; 32],
    }
}

/// A header of a Write segment, and a header of a Send segment.
fn ddp() -> [(&'static str, Header); 2] {
    [
        ("ddp+rdmap tagged", Opcode::Write.tagged_header(Stag(0x100), 0x1_0000, true).into()),
        ("ddp+rdmap untagged", Opcode::Send.untagged_header(Stag(0), 1, 0, true).into()),
    ]
}

/// Returns the Ethernet, IP and TCP headers of a segment without payload, in three variants with their names.
fn segments() -> [(&'static str, SegmentHeaders); 3] {
    let (none, all) =
        (config(Offloads::empty()), config(Offloads::TX_TCP_CHECKSUM | Offloads::TX_IPV4_CHECKSUM));
    [
        ("ethernet+ipv4+tcp", SegmentHeaders::new(&none, false)),
        ("ethernet+ipv4+tcp, the port sums", SegmentHeaders::new(&all, false)),
        ("ethernet+ipv6+tcp", SegmentHeaders::new(&none, true)),
    ]
}

pub(crate) fn emit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("headers emit");
    let mut out = [0; 128];
    for (name, headers) in segments() {
        let bytes = headers.emit(&mut out);
        assert_eq!(parse_headers(&out[..bytes]).is_some(), !name.contains("the port"));
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(&headers).emit(black_box(&mut out)));
        });
    }
    for (name, header) in ddp() {
        assert_eq!(header.emit(&mut out), header.wire_len());
        assert_eq!(Header::parse(&out), Ok(header));
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(&header).emit(black_box(&mut out)));
        });
    }
    group.bench_function("rdmap read request", |bencher| bencher.iter(|| black_box(&REQUEST).to_bytes()));
    group.finish();
}

pub(crate) fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("headers parse");
    let mut out = [0; 128];
    for (name, headers) in segments() {
        let bytes = headers.emit(&mut out);
        let frame = &out[..bytes];
        if parse_headers(frame).is_none() {
            // If the port computes the checksum, the IPv4 header is not valid yet and cannot be parsed.
            continue;
        }
        assert_eq!(parse_headers(frame), Some((49_152, bytes)));
        group.bench_function(name, |bencher| bencher.iter(|| parse_headers(black_box(frame))));
    }
    for (name, header) in ddp() {
        let bytes = header.to_bytes();
        let read = |bytes: &[u8]| {
            let header = Header::parse(bytes).ok()?;
            Some((header, Opcode::check(&header, Extensions::all()).ok()?))
        };
        assert!(read(&bytes).is_some_and(|(read, _)| read == header));
        group.bench_function(name, |bencher| bencher.iter(|| read(black_box(&bytes))));
    }
    let bytes = REQUEST.to_bytes();
    assert_eq!(ReadRequest::parse(&bytes), Ok(REQUEST));
    group.bench_function("rdmap read request", |bencher| {
        bencher.iter(|| ReadRequest::parse(black_box(&bytes)));
    });
    group.finish();
}
