//! What somebody hostile hands to fabricgate, given to the program itself: a node
//! that prints what it likes, a label, a run folder of a stranger, a server that is
//! not who it says. One module per door.
//!
//! Each test attacks and then looks at everything that came out: standard output,
//! standard error, files, arguments and environments of what was started.

mod bombs;
mod counts;
mod floods;
mod folders;
mod names;
mod permissions;
mod place;
mod secrets;
mod tls;
mod words;
