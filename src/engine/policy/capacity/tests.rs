//! Capacity compared with its published table, at the ends of its range, and against invariants.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A block of an NVL72 rack.
const NODES: u32 = 18;

/// Expected usable nodes of 18, by segment and unavailability in per cent.
const UNAVAILABLE: [f64; 10] = [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
const USABLE: [(u32, [&str; 10]); 7] = [
    (1, ["18.00", "17.91", "17.82", "17.64", "17.46", "17.28", "17.10", "16.92", "16.56", "16.20"]),
    (2, ["18.00", "17.83", "17.67", "17.38", "17.12", "16.89", "16.68", "16.47", "16.08", "15.71"]),
    (4, ["16.00", "16.00", "16.00", "15.98", "15.94", "15.87", "15.77", "15.64", "15.32", "14.93"]),
    (8, ["16.00", "16.00", "15.99", "15.96", "15.87", "15.73", "15.53", "15.28", "14.64", "13.87"]),
    (9, ["18.00", "17.22", "16.51", "15.26", "14.20", "13.32", "12.57", "11.95", "11.01", "10.35"]),
    (
        16,
        ["16.00", "16.00", "15.99", "15.92", "15.75", "15.47", "15.07", "14.56", "13.28", "11.74"],
    ),
    (18, ["18.00", "16.45", "15.02", "12.51", "10.40", "8.63", "7.15", "5.91", "4.01", "2.70"]),
];

/// The price of one more drain, by segment and number of drained nodes: at 1 %, and at 3 % where
/// the earlier calculation had it.
const PRICES: [(u32, [(&str, &str); 4]); 7] = [
    (1, [("0.99", "0.97"), ("0.99", ""), ("0.99", ""), ("0.99", "")]),
    (2, [("1.69", "1.31"), ("0.27", "0.61"), ("1.72", "1.35"), ("0.24", "0.56")]),
    (4, [("0.05", "0.30"), ("0.54", "1.18"), ("3.41", "2.46"), ("0.00", "0.03")]),
    (8, [("0.09", "0.60"), ("1.09", "2.36"), ("6.81", "4.91"), ("0", "")]),
    (9, [("7.51", "5.20"), ("0", ""), ("0", ""), ("0", "")]),
    (16, [("0.19", "1.20"), ("2.18", "4.72"), ("13.62", "9.83"), ("0", "")]),
    (18, [("15.02", "10.40"), ("0", ""), ("0", ""), ("0", "")]),
];

fn alone(segment: u32) -> SegmentMix {
    SegmentMix(BTreeMap::from([(segment, 1.0)]))
}

/// The value with as many decimals as the table.
fn printed(value: f64, like: &str) -> String {
    let places = like.split_once('.').map_or(0, |(_, places)| places.len());
    format!("{value:.places$}")
}

#[test]
fn usable_nodes_are_those_of_the_table() {
    for (segment, row) in USABLE {
        for (percent, expected) in UNAVAILABLE.iter().zip(row) {
            let value = usable_nodes(NODES, 0, segment, percent / 100.0);
            assert_eq!(printed(value, expected), expected, "{segment} at {percent} %");
        }
    }
}

#[test]
fn prices_are_those_of_the_table() {
    for (segment, row) in PRICES {
        for (out, (one, three)) in (0..).zip(row) {
            for (expected, unavailable) in [(one, 0.01), (three, 0.03)] {
                let value = drain_price(NODES, out, &alone(segment), unavailable);
                if !expected.is_empty() {
                    let value = printed(value, expected);
                    assert_eq!(value, expected, "{segment}, {out} out, {unavailable}");
                }
            }
        }
    }
}

#[test]
fn segments_change_places_as_in_the_table() {
    let percents = |a, b| {
        let places = find_crossings(NODES, 0, a, b);
        places.iter().map(|at| format!("{:.2}", at * 100.0)).collect::<Vec<_>>()
    };
    assert_eq!(percents(18, 16), ["0.65"]);
    // The second value is beyond that table: sixteen nodes are seldom up, so nine are.
    assert_eq!(percents(9, 16), ["1.41", "12.30"]);
    assert_eq!(percents(16, 9), ["1.41", "12.30"]);
    // Single nodes leave more than pairs, except if no node is out.
    assert!(find_crossings(NODES, 0, 1, 2).is_empty());
    assert!(find_crossings(NODES, 0, 16, 16).is_empty());
    assert!(find_crossings(0, 0, 16, 9).is_empty());
    assert!(find_crossings(NODES, 0, 0, 9).is_empty());
}

#[test]
fn the_chance_of_sixteen_and_of_all_is_that_of_the_table() {
    let up = |nodes, unavailable| {
        let outages = Outages::from_unavailability(NODES, unavailable).expect("a probability");
        outages.at_least_up(nodes)
    };
    let sixteen = [(0.01, "0.9993"), (0.02, "0.9948"), (0.03, "0.9843"), (0.05, "0.9419")];
    for (unavailable, expected) in sixteen {
        assert_eq!(printed(up(16, unavailable), expected), expected, "{unavailable}");
    }
    let all = [(0.01, "0.835"), (0.02, "0.695"), (0.03, "0.578"), (0.05, "0.397")];
    for (unavailable, expected) in all {
        assert_eq!(printed(up(18, unavailable), expected), expected, "{unavailable}");
    }
    assert_eq!(up(19, 0.01), 0.0);
    assert!((up(0, 0.01) - 1.0).abs() < 1e-12);
}

/// The nodes that a gang of this many nodes loses because one of its nodes has lost this share of
/// its rate, if this share of a step waits for the fabric. All nodes wait for the slowest.
fn loss(gang: f64, degradation: f64, exposed: f64) -> f64 {
    gang * exposed * degradation / (1.0 - degradation)
}

#[test]
fn losses_and_break_even_sizes_are_those_of_the_table() {
    let rows = [
        (1.0 / 18.0, 0.1, ["0.09", "1.5", "6.0"], [32.0, 371.0, 2315.0]),
        (1.0 / 18.0, 0.3, ["0.28", "4.5", "18"], [11.0, 124.0, 772.0]),
        (2.0 / 18.0, 0.3, ["0.60", "9.6", "38"], [5.0, 58.0, 363.0]),
        (0.5, 0.3, ["4.8", "77", "307"], [1.0, 7.0, 45.0]),
    ];
    for (degradation, exposed, losses, sizes) in rows {
        for (gang, expected) in [16.0, 256.0, 1024.0].iter().zip(losses) {
            let value = loss(*gang, degradation, exposed);
            assert_eq!(printed(value, expected), expected, "{degradation} {exposed} {gang}");
        }
        for (out, expected) in (0..).zip(sizes) {
            // From the prices in the table above: 0.19, 2.18, 13.62.
            let price = (drain_price(NODES, out, &alone(16), 0.01) * 100.0).round() / 100.0;
            let size = break_even(price, degradation, exposed);
            assert_eq!(size.round(), expected, "{degradation} {exposed} {out}");
            // At that size both costs are equal.
            assert!((loss(size, degradation, exposed) - price).abs() < 1e-9);
        }
    }
}

#[test]
fn without_chance_a_third_drain_takes_sixteen_and_a_fourth_nothing() {
    let prices: Vec<f64> = (0..5).map(|out| drain_price(NODES, out, &alone(16), 0.0)).collect();
    assert_eq!(prices, [0.0, 0.0, 16.0, 0.0, 0.0]);
}

#[test]
fn questions_without_an_answer_have_none() {
    for unavailable in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
        assert!(usable_nodes(NODES, 0, 16, unavailable).is_nan());
        assert!(drain_price(NODES, 0, &alone(16), unavailable).is_nan());
    }
    assert!(usable_nodes(NODES, 0, 0, 0.01).is_nan());
    assert!(drain_price(NODES, 0, &alone(0), 0.01).is_nan());
    assert!(drain_price(NODES, 0, &SegmentMix::default(), 0.01).is_nan());
    for share in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        assert!(drain_price(NODES, 0, &SegmentMix(BTreeMap::from([(16, share)])), 0.01).is_nan());
    }
}

#[test]
fn the_ends_of_the_range_are_exact() {
    for (nodes, out, segment, unavailable, expected) in [
        (0, 0, 1, 0.01, 0.0),
        (NODES, NODES, 1, 0.01, 0.0),
        (NODES, NODES + 5, 1, 0.01, 0.0),
        (NODES, 0, NODES + 1, 0.01, 0.0),
        (NODES, 0, u32::MAX, 0.0, 0.0),
        (NODES, 0, 16, 1.0, 0.0),
        (NODES, 0, 1, 0.0, 18.0),
        (NODES, 2, 8, 0.0, 16.0),
    ] {
        assert_eq!(
            usable_nodes(nodes, out, segment, unavailable),
            expected,
            "{nodes} {out} {segment}"
        );
    }
    assert_eq!(drain_price(NODES, NODES, &alone(1), 0.01), 0.0);
    assert_eq!(drain_price(0, 0, &alone(1), 0.5), 0.0);
    assert_eq!(drain_price(NODES, 0, &alone(1), 1.0), 0.0);
}

#[test]
fn a_mix_is_read_and_weighed() {
    let mix = SegmentMix::parse(" 16=60, 8=30 ,1=10").expect("a mix");
    assert_eq!(mix.0, BTreeMap::from([(1, 10.0), (8, 30.0), (16, 60.0)]));
    let expected = 0.6 * 13.62 + 0.3 * 6.81 + 0.1 * 0.99;
    assert!((drain_price(NODES, 2, &mix, 0.01) - expected).abs() < 0.01);
    let error_of = |text: &str| SegmentMix::parse(text).expect_err("no mix").to_string();
    assert_eq!(error_of(" "), "no segment is named, expected SEGMENT=SHARE, such as 16=0.6,1=0.4");
    assert_eq!(error_of("16=1,"), r#""": expected SEGMENT=SHARE, such as 16=0.6"#);
    assert_eq!(error_of("16"), r#""16": expected SEGMENT=SHARE, such as 16=0.6"#);
    assert_eq!(error_of("0=1"), r#"segment "0": expected a number of nodes, 1 or more"#);
    assert_eq!(error_of("x=1"), r#"segment "x": expected a number of nodes, 1 or more"#);
    assert_eq!(error_of("16=x"), "segment 16: share x, expected a number above 0");
    assert_eq!(error_of("16=0"), "segment 16: share 0, expected a number above 0");
    assert_eq!(error_of("16=-1"), "segment 16: share -1, expected a number above 0");
    assert_eq!(error_of("16=nan"), "segment 16: share NaN, expected a number above 0");
    assert_eq!(error_of("16=1,16=2"), "duplicate segment 16");
    assert_eq!(error_of("16=1e308,8=1e308"), "the shares are too large to be added");
}

#[test]
fn a_mix_stands_in_toml_and_json() {
    #[derive(serde::Deserialize)]
    struct CapacityTestSection {
        mix: SegmentMix,
    }
    let read = |text: &str| toml::from_str::<CapacityTestSection>(text).map(|section| section.mix);
    let mix = read("mix = { 16 = 0.6, 8 = 1 }").expect("a mix");
    assert_eq!(mix, SegmentMix::parse("16=0.6,8=1").expect("a mix"));
    let json = serde_json::to_string(&mix).expect("json");
    assert_eq!(json, r#"{"8":1.0,"16":0.6}"#);
    assert_eq!(serde_json::from_str::<SegmentMix>(&json).expect("a mix"), mix);
    assert_eq!(read("mix = {}").expect("an unknown mix"), SegmentMix::default());
    for (text, message) in [
        ("mix = { 0 = 1.0 }", "segment \"0\": expected a number of nodes"),
        ("mix = { a = 1.0 }", "segment \"a\": expected a number of nodes"),
        ("mix = { 16 = -1.0 }", "segment 16: share -1, expected a number above 0"),
        ("mix = { 16 = nan }", "segment 16: share NaN"),
        ("mix = { 16 = 1.0, 016 = 1.0 }", "duplicate segment 16"),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[test]
fn the_segment_that_leaves_the_most_comes_first() {
    let ranked = |percent: f64, at_least| {
        let outages = Outages::from_unavailability(NODES, percent / 100.0).expect("a probability");
        let ranking = rank_segments(&outages, &[16, 1, 2, 4, 8, 9, 9, 18, 36], at_least);
        ranking.order.iter().map(|(segment, _)| *segment).collect::<Vec<_>>()
    };
    assert_eq!(ranked(1.0, 9), [9, 16, 18]);
    assert_eq!(ranked(2.0, 9), [16, 9, 18]);
    assert_eq!(ranked(0.0, 9), [18, 9, 16]);
    assert_eq!(ranked(1.0, 0), [1, 2, 9, 4, 8, 16, 18]);
    assert!(ranked(1.0, 19).is_empty());
}

#[test]
fn a_site_s_observation_replaces_the_assumption() {
    // One tray in a hundred hours, and once a cooling loop with six trays.
    let shares = BTreeMap::from([(0, 0.93), (1, 0.06), (6, 0.01)]);
    let seen = Outages::from_observation(NODES, &shares).expect("an observation");
    assert!((seen.unavailable() - 0.12 / 18.0).abs() < 1e-12);
    assert!((seen.usable(16) - 0.99 * 16.0).abs() < 1e-12);
    // The mean number of failed nodes is equal, and sixteen are less often up.
    let chance = Outages::from_unavailability(NODES, seen.unavailable()).expect("a probability");
    assert!(seen.at_least_up(16) < chance.at_least_up(16));
    let error_of = |shares: &[(u32, f64)]| {
        let shares = shares.iter().copied().collect();
        Outages::from_observation(NODES, &shares).expect_err("no observation").to_string()
    };
    assert_eq!(
        error_of(&[(0, 0.9), (19, 0.1)]),
        "19 nodes out at the same time, in a domain of 18"
    );
    assert_eq!(error_of(&[(0, 1.5)]), "0 nodes out: share 1.5, expected 0 to 1");
    assert_eq!(error_of(&[(0, f64::NAN)]), "0 nodes out: share NaN, expected 0 to 1");
    assert!(error_of(&[(0, 0.9)]).starts_with("the shares sum to 0.9, expected 1"));
    assert!(error_of(&[]).starts_with("the shares sum to 0, expected 1"));
    // Rounded shares are accepted, and so are more failed nodes than exist if their share is zero.
    assert!(Outages::from_observation(NODES, &BTreeMap::from([(0, 0.99), (20, 0.0)])).is_ok());
}

proptest! {
    #[test]
    fn more_out_or_less_reliable_never_leaves_more(
        nodes in 0u32..80, out in 0u32..90, segment in 1u32..90, at in 0.0..=1.0f64, more in 0.0..=1.0f64,
    ) {
        let here = usable_nodes(nodes, out, segment, at);
        prop_assert!(usable_nodes(nodes, out + 1, segment, at) <= here + 1e-9);
        prop_assert!(usable_nodes(nodes, out, segment, at.max(more)) <= usable_nodes(nodes, out, segment, at.min(more)) + 1e-9);
        prop_assert!((0.0..=f64::from(nodes) + 1e-9).contains(&here));
    }

    #[test]
    fn a_price_is_what_a_drain_takes(nodes in 0u32..80, out in 0u32..90, segment in 1u32..90, at in 0.0..=1.0f64) {
        let price = drain_price(nodes, out, &alone(segment), at);
        let taken = usable_nodes(nodes, out, segment, at) - usable_nodes(nodes, out + 1, segment, at);
        prop_assert!(0.0 <= price && (price - taken).abs() < 1e-9, "{price} {taken}");
    }

    #[test]
    fn a_mix_costs_the_mean_of_its_parts(
        shares in prop::collection::btree_map(1u32..40, 0.01..100.0f64, 1..6), out in 0u32..20, at in 0.0..=1.0f64, scale in 0.1..10.0f64,
    ) {
        let mix = SegmentMix(shares.clone());
        let total: f64 = shares.values().sum();
        let parts: f64 = shares.iter().map(|(s, w)| w / total * drain_price(NODES, out, &alone(*s), at)).sum();
        prop_assert!((drain_price(NODES, out, &mix, at) - parts).abs() < 1e-9);
        let scaled = SegmentMix(shares.iter().map(|(s, w)| (*s, w * scale)).collect());
        prop_assert!((drain_price(NODES, out, &scaled, at) - parts).abs() < 1e-9);
    }

    #[test]
    fn independent_nodes_stay_independent_when_some_go(nodes in 0u32..40, gone in 0u32..45, at in 0.0..=1.0f64) {
        let fewer = Outages::from_unavailability(nodes, at).expect("a probability").without(gone);
        let made = Outages::from_unavailability(nodes.saturating_sub(gone), at).expect("a probability");
        prop_assert_eq!(fewer.nodes(), made.nodes());
        for up in 0..=made.nodes() {
            prop_assert!((fewer.at_least_up(up) - made.at_least_up(up)).abs() < 1e-9);
        }
    }
}
