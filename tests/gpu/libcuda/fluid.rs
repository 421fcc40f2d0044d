//! Sharing of resources between concurrent transfers: all get the same rate until a resource is
//! full; its users then get no more, and the others share the rest (max-min fairness).

use std::collections::BTreeMap;

/// A resource that can be full, and its capacity.
pub type Way<R> = Vec<(R, f64)>;

/// The rate of each transfer, by the resources on its way.
pub fn rates<R: Ord + Clone>(ways: &[&Way<R>]) -> Vec<f64> {
    let mut left: BTreeMap<R, f64> = BTreeMap::new();
    for (resource, capacity) in ways.iter().flat_map(|way| way.iter()) {
        left.insert(resource.clone(), *capacity);
    }
    let mut rates: Vec<Option<f64>> = vec![None; ways.len()];
    while rates.iter().any(Option::is_none) {
        let open = |rates: &[Option<f64>], resource: &R| {
            let on = |way: &Way<R>| way.iter().any(|(it, _)| it == resource);
            (0..ways.len()).filter(|i| rates[*i].is_none() && on(ways[*i])).count()
        };
        let shares = left.iter().filter_map(|(resource, left)| {
            let users = open(&rates, resource);
            (0 < users).then(|| (resource.clone(), left / users as f64))
        });
        // Ties go to the first by name: the outcome is the same.
        let Some((full, share)) = shares.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            break;
        };
        for (i, way) in ways.iter().enumerate() {
            if rates[i].is_none() && way.iter().any(|(it, _)| *it == full) {
                rates[i] = Some(share);
                for (resource, _) in way.iter() {
                    if let Some(left) = left.get_mut(resource) {
                        *left -= share;
                    }
                }
            }
        }
    }
    rates.into_iter().map(|rate| rate.unwrap_or(f64::INFINITY)).collect()
}
