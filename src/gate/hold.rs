//! Holding nodes for measuring: jobs and reservations that the scheduler knows
//! about, made before a sweep and gone after it, also after a crash.
