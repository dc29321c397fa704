//! The layout of the crates' sources: their modules keep to floors ([`floors`]), use each other in one
//! direction ([`circles`]), and a type name stands for one type ([`names`]). [`table`] has what each crate
//! keeps to. And the fields of configurations say their defaults ([`defaults`]).

mod circles;
mod defaults;
mod floors;
mod names;
mod source;
mod table;
mod uses;
mod words;
