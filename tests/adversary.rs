//! What somebody hostile hands to fabricgate, given to the program itself: a node
//! that prints what it likes, a label, a run folder of a stranger, a server that is
//! not who it says. One module per door.
//!
//! Each test attacks and then looks at everything that came out: standard output,
//! standard error, files, arguments and environments of what was started.

#[path = "adversary/bombs.rs"]
mod bombs;
#[path = "adversary/counts.rs"]
mod counts;
#[path = "adversary/floods.rs"]
mod floods;
#[path = "adversary/folders.rs"]
mod folders;
#[path = "adversary/names.rs"]
mod names;
#[path = "adversary/patience.rs"]
mod patience;
#[path = "adversary/permissions.rs"]
mod permissions;
#[path = "adversary/place.rs"]
mod place;
#[path = "adversary/secrets.rs"]
mod secrets;
#[path = "adversary/tls.rs"]
mod tls;
#[path = "adversary/words.rs"]
mod words;
