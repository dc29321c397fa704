//! The layout of the crates' sources: their modules keep to floors (`floors`) and use each other in one
//! direction ([`circles`]). [`table`] has what each crate keeps to. The fields of configurations say their
//! defaults (`defaults`).

pub mod circles;
#[cfg(test)]
mod defaults;
#[cfg(test)]
mod floors;
pub mod source;
pub mod table;
pub mod uses;
pub mod words;
