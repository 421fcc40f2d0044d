//! What is said there, as tests.
