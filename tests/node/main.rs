//! A node: the worker, the native probes, and the facts of the machine.

mod node_facts;
mod own_probes;
mod worker;
