//! Our own GPU probes against libraries of our own, which answer as a driver
//! does on a machine that a test describes. Nothing here needs a GPU, and
//! nothing here shows that a real one is measured well.

#[path = "gpu/across.rs"]
mod across;

#[path = "gpu/driver.rs"]
mod driver;

#[path = "gpu/stub.rs"]
mod stub;

#[path = "gpu/symbols.rs"]
mod symbols;

#[path = "gpu/talking.rs"]
mod talking;
