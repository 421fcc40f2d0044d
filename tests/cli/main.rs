//! The commands from outside: their inputs, answers, documents and exports, and hostile input.

mod adversary;
mod answers;
mod bad_input;
mod bundle;
mod capacity;
mod certificate;
mod claims;
mod export;
mod export_kubernetes;
mod monitoring;
mod patience;
