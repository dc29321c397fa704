//! The program as its users have it, and its verdicts, tried on a small endpoint with flaws to order.

mod program;
mod small;
mod verdicts;
