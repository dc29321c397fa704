//! The bindings that bindgen generated from `wrapper.h`.
#![allow(missing_docs, unreachable_pub, unused_qualifications, non_camel_case_types, non_upper_case_globals)]
#![allow(non_snake_case, unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks)]
#![allow(clippy::multiple_unsafe_ops_per_block, clippy::missing_safety_doc, unnecessary_transmutes)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
