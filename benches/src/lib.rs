//! iwperf as a library.
