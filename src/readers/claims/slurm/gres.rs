//! GPUs in a node's generic resources: `gpu:4`,
//! `gpu:nvidia_h100_80gb_hbm3:8(S:0-1)`, or `gres/gpu=4` in TRES.

/// The GPUs of a node in Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GresGpus {
    /// Their number; `None` where slices of GPUs (MIG) are counted instead.
    pub(super) count: Option<u32>,
    /// Their type, if all have the same one.
    pub(super) product: Option<String>,
}

/// Parses a `Gres=` value. `None` if it has no GPUs.
pub(super) fn from_gres(gres: &str) -> Option<GresGpus> {
    let mut found = false;
    let mut count = Some(0u32);
    let mut types: Vec<&str> = Vec::new();
    for item in split_items(gres) {
        let item = item.split('(').next().unwrap_or(item).trim();
        let mut parts = item.split(':').filter(|part| *part != "no_consume");
        if !parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gpu")) {
            continue;
        }
        found = true;
        let parts: Vec<&str> = parts.collect();
        let (kind, number) = match parts.as_slice() {
            [] => (None, Some(1)),
            [one] => match one.parse() {
                Ok(number) => (None, Some(number)),
                Err(_) => (Some(*one), Some(1)),
            },
            [kind, .., number] => (Some(*kind), number.parse::<u32>().ok()),
        };
        types.extend(kind);
        if kind.is_some_and(is_mig_slice) {
            count = None;
        }
        count = count.zip(number).and_then(|(sum, number)| sum.checked_add(number));
    }
    types.sort_unstable();
    types.dedup();
    let product = match types.as_slice() {
        [one] if !is_mig_slice(one) => Some((*one).to_owned()),
        _ => None,
    };
    found.then_some(GresGpus { count, product })
}

/// Parses a `CfgTRES=` value.
pub(super) fn from_tres(tres: &str) -> Option<GresGpus> {
    let mut gpus = None;
    let mut types = Vec::new();
    for (name, value) in tres.split(',').filter_map(|item| item.trim().split_once('=')) {
        if name == "gres/gpu" {
            gpus = Some(GresGpus { count: value.parse().ok(), product: None });
        } else if let Some(kind) = name.strip_prefix("gres/gpu:") {
            types.push((kind, value));
        }
    }
    if let [(kind, value)] = types.as_slice() {
        let gpus = gpus.get_or_insert(GresGpus { count: value.parse().ok(), product: None });
        if is_mig_slice(kind) {
            gpus.count = None;
        } else {
            gpus.product = Some((*kind).to_owned());
        }
    }
    gpus
}

/// The items of a list; commas inside parentheses do not separate: `gpu:4(S:0,1),mps:400`.
fn split_items(gres: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (at, c) in gres.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(&gres[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&gres[start..]);
    items
}

/// `1g.10gb`, `a100_3g.20gb`: a MIG profile; one GPU holds several instances.
fn is_mig_slice(kind: &str) -> bool {
    kind.match_indices("g.").any(|(at, _)| {
        let memory = kind[at + 2..].trim_start_matches(|c: char| c.is_ascii_digit());
        kind[..at].ends_with(|c: char| c.is_ascii_digit())
            && memory.len() < kind[at + 2..].len()
            && memory.starts_with("gb")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: u32, product: Option<&str>) -> Option<GresGpus> {
        Some(GresGpus { count: Some(count), product: product.map(str::to_owned) })
    }

    #[test]
    fn gpus_are_counted_and_named() {
        assert_eq!(from_gres("gpu:4"), gpus(4, None));
        assert_eq!(
            from_gres("gpu:nvidia_h100_80gb_hbm3:1(S:0)"),
            gpus(1, Some("nvidia_h100_80gb_hbm3"))
        );
        assert_eq!(from_gres("mps:400,gpu:gb200:4(S:0,1),shard:8"), gpus(4, Some("gb200")));
        assert_eq!(from_gres("gpu:a100:2,gpu:v100:1"), gpus(3, None));
        assert_eq!(from_gres("gpu:a100:no_consume:2"), gpus(2, Some("a100")));
        assert_eq!(from_gres("gpu"), gpus(1, None));
        assert_eq!(from_gres("gpu:0"), gpus(0, None));
        for nothing in ["", "(null)", "mps:400", "gpux:4"] {
            assert_eq!(from_gres(nothing), None, "{nothing:?}");
        }
        assert_eq!(
            from_gres("gpu:a:99999999999"),
            Some(GresGpus { count: None, product: Some("a".to_owned()) })
        );
    }

    #[test]
    fn mig_slices_are_not_gpus() {
        assert_eq!(from_gres("gpu:1g.10gb:7"), Some(GresGpus::default()));
        assert_eq!(from_gres("gpu:a100_3g.20gb:2,gpu:a100:1").and_then(|g| g.count), None);
        assert!(
            !is_mig_slice("nvidia_h100_80gb_hbm3") && !is_mig_slice("g.") && !is_mig_slice("1g.gb")
        );
    }

    #[test]
    fn tres_name_gpus_too() {
        assert_eq!(from_tres("cpu=4,mem=1000M,billing=4,gres/gpu=4"), gpus(4, None));
        assert_eq!(from_tres("gres/gpu=8,gres/gpu:h100=8"), gpus(8, Some("h100")));
        assert_eq!(from_tres("gres/gpu:h100=8"), gpus(8, Some("h100")));
        assert_eq!(from_tres("cpu=4"), None);
    }
}
