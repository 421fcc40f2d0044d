//! A node: the worker, the probes that are part of the program, and the facts of the machine.

mod node_facts;
mod own_probes;
mod worker;
