//! Checks the layout of the crates' sources. The modules of a crate form layers ([`floors`]) and use each
//! other in one direction ([`circles`]); [`table`] has the rules of each crate. The fields of configurations
//! state their defaults (`defaults`), the chapters of the guide contain the texts that tests look for
//! (`chapters`), and the links of the documents lead somewhere (`links`).

#[cfg(test)]
mod chapters;
pub mod circles;
#[cfg(test)]
mod defaults;
pub mod floors;
#[cfg(test)]
mod links;
pub mod source;
pub mod table;
pub mod uses;
pub mod words;
