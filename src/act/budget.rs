//! How much may be taken out of service: per domain, per leaf, per hour,
//! outstanding in all, and at which price; and when to stop altogether.
//!
//! Pure: what was spent comes from the ledger, the time from the caller.
