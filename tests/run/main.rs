//! Whole runs from outside, over a simulated fabric and over fake nodes: sweeps, audits, burn-ins,
//! re-certifications, their scenarios, histories and failures.

mod audit;
mod burn_in;
mod chaos;
mod history;
mod history_index;
mod pipeline;
#[path = "../support/place.rs"]
mod place;
mod recertify;
mod scenarios;
mod sim;
mod sweep;
