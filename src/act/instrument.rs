//! Whether the sweep itself is in doubt: control nodes that fail, suspects that
//! share what no fault shares, a plan that did not come back.
//!
//! Pure. What is found here freezes every drain and blames nobody.
