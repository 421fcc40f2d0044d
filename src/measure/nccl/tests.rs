//! Whole outputs in the tool's grammar, with numbers and hosts of our own.
