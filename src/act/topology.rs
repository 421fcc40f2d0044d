//! A better topology file, as a proposal that a person reads: which node should
//! be in which block, what the file would be, and what is wrong with it.
//!
//! Pure: texts in, texts out. Writing it is `gate::topology`'s, and only where
//! somebody asked for exactly that.
