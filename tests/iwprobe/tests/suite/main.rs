//! Tests of the program as users run it, and of its verdicts on a small endpoint with selectable flaws.

mod program;
mod small;
mod verdicts;
