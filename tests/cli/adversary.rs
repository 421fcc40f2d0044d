//! Hostile input, given to the program itself: a node that prints arbitrary output, a label, a
//! run folder from an untrusted source, a server with a wrong certificate. One module per entry
//! point.
//!
//! Each test attacks and then inspects all output: standard output, standard error, files, and
//! the arguments and environments of the programs that were started.

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
