//! Asks the dashboard of a Ray cluster.

use std::time::Duration;

use crate::model::said::Said;

/// Where the dashboard is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ray {
    /// `http://head:8265`.
    pub address: String,
    /// How long one question may take.
    pub limit: Duration,
}

/// Asks for the nodes and their resources.
pub async fn ask(ray: &Ray) -> Vec<Said> {
    let _ = ray;
    Vec::new()
}
