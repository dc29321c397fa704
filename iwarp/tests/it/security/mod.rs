//! The effects of hostile and careless peers (RFC 5042).

mod denial;
mod exposure;
mod hostile;
mod isolation;
mod rnic_rules;
mod server_lending;
mod trust_models;
