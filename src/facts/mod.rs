//! What this machine says of itself: GPUs, fabric, NICs, IMEX, system.
//!
//! Reads hardware through NVML and sysfs, and judges nothing.
