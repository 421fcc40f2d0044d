//! The gate from outside, as an operator runs and installs it.

mod deploy;
mod gate;
mod watch;
