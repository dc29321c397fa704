//! Tests of the program as users run it, and of its verdicts on a small endpoint whose flaws the test
//! selects.

mod program;
mod small;
mod verdicts;
