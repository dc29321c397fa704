//! The border to C, and to the process that the library is loaded into.

pub(crate) mod abi;
pub(crate) mod acked;
pub(crate) mod beside;
pub(crate) mod event_fd;
pub(crate) mod fork;
pub(crate) mod lack;
pub(crate) mod living;
pub(crate) mod room;
pub(crate) mod settings;
pub(crate) mod signals;
pub(crate) mod sockaddr;
pub(crate) mod sys;
pub(crate) mod text;
pub(crate) mod users;
