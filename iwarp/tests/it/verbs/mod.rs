//! The verbs as an application uses them.

mod allocation;
mod causes;
mod closing;
mod connect;
mod cq;
mod cq_handler;
mod depths;
mod early;
mod early_sends;
mod errors;
mod fairness;
mod footprint;
mod late_memory_checks;
mod limits;
mod outcome;
mod receiver_not_ready;
mod regions;
mod remote_access;
mod send_sync;
mod srq;
mod states;
mod teardown;
mod threads;
mod transfer;
mod windows;
mod zero_copy;
