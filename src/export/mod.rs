//! The verified map for other systems: what was measured, in the words that
//! schedulers, operators and frameworks read.
//!
//! Pure: a run in, bytes out, one file per system. Every export names the run it
//! came from, is the same for the same run, and says of what was not measured that
//! it is not known. Nothing here changes a cluster or opens a file.
