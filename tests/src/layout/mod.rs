//! Checks the layout of the crates' sources. The modules of a crate form layers ([`floors`]) and use each
//! other in one direction ([`circles`]); [`table`] has the rules of each crate. The fields of configurations
//! state their defaults (`defaults`), and the chapters of the guide contain the texts that tests look for
//! (`chapters`).

#[cfg(test)]
mod chapters;
pub mod circles;
#[cfg(test)]
mod defaults;
pub mod floors;
pub mod source;
pub mod table;
pub mod uses;
pub mod words;
