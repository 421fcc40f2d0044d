//! History across runs: an index (SQLite) of what run folders hold, which can be
//! made anew from them at any time.
//!
//! Run folders are the truth, this only finds things in it. Nothing here judges;
//! what is usual and where a step is, `judge::drift` says.
