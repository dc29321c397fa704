//! How long a close may take, and what it is reported as.

use std::time::Duration;

use crate::common::served::Served;
use crate::common::{Pair, Testbed, pattern};
use crate::common::{ALL, PORT};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{
    CmEventKind, ConnParam, ListenOptions, QpState, RemoteAddr, SendOp, SendRequest, StreamOptions,
    StreamRead, WcStatus,
};
use tcp_lite::Instant;
