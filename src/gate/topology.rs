//! Puts a topology file in place that a person asked for: a copy of the old one
//! first, the new one by renaming, `scontrol reconfigure`, and back again where
//! the controller does not take it.
