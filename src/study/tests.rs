//! Small studies that always give the same.

use super::*;
use sim::scenario::Scenario;

fn setting(world: World, sigma: f64, loss: f64, faults: usize) -> Setting {
    Setting { world, sigma, loss, faults }
}

/// One sweep, with outputs rendered and parsed or not.
fn swept(setting: &Setting, trial: u64, rendered: bool) -> sweep::Swept {
    let ground = Ground::of(setting.world);
    let key = key(setting, 1, trial);
    let guilty = ground.guilty(setting, key);
    let scenario: Scenario = ground.scenario(setting, key, &guilty);
    let fabric = Fabric::build(&scenario).expect("a fabric");
    let catalog = Catalog::built_in();
    let names = setting.world.probes().iter();
    let probes: Vec<&Probe> = names.filter_map(|name| catalog.get(name)).collect();
    let mut shapes = Shapes::new();
    let mut instrument =
        Instrument { scenario: &scenario, fabric: &fabric, shapes: &mut shapes, rendered };
    sweep::sweep(&request(&ground, &probes, key), &mut instrument)
}

#[test]
fn readings_without_tools_are_those_of_the_tools() {
    for (setting, trial) in [
        (setting(World::Domain, 0.01, 0.25, 3), 1),
        (setting(World::Domain, 0.03, 1.0 / 18.0, 1), 2),
        (setting(World::Fleet, 0.02, 0.5, 5), 4),
    ] {
        let (fast, slow) = (swept(&setting, trial, false), swept(&setting, trial, true));
        assert!(153 <= fast.recordings.len(), "{}", fast.recordings.len());
        for (fast, slow) in fast.recordings.iter().zip(&slow.recordings) {
            assert_eq!(fast, slow);
        }
        assert_eq!(fast.recordings.len(), slow.recordings.len());
        assert_eq!((fast.first, fast.last), (slow.first, slow.last));
    }
}

#[test]
fn a_study_does_not_depend_on_its_threads() {
    let setting = setting(World::Domain, 0.01, 0.25, 1);
    let one = study(setting, 3, 7, 1);
    assert_eq!(one, study(setting, 3, 7, 3));
    assert_ne!(one, study(setting, 3, 8, 1), "another seed is another study");
}

#[test]
fn a_half_of_a_gpu_is_found_and_nobody_else_blamed() {
    let point = study(setting(World::Domain, 0.01, 0.5, 3), 4, 1, 2);
    assert_eq!((point.ours.faults, point.ours.found, point.ours.false_blames), (12, 12, 0));
    assert_eq!(point.ours.false_confirmed, 0);
    // 17 rounds at least, and all 153 pairs of nodes.
    assert!(17 * 4 <= point.ours.rounds && 153 * 4 <= point.ours.readings, "{:?}", point.ours);
}

#[test]
fn a_half_of_a_nic_is_found_among_a_thousand_nodes() {
    let point = study(setting(World::Fleet, 0.01, 0.5, 3), 1, 1, 1);
    assert_eq!((point.ours.found, point.ours.false_blames), (3, 0), "{:?}", point.ours);
}

#[test]
fn without_a_fault_the_fences_blame_and_the_scheme_does_not() {
    let point = study(setting(World::Domain, 0.01, 0.0, 0), 4, 1, 2);
    assert_eq!((point.ours.faults, point.ours.false_blames, point.ours.false_sweeps), (0, 0, 0));
    let fences = point.rivals[2];
    assert!(0 < fences.false_blames, "{fences:?}");
}

#[test]
fn tables_and_documents_have_every_rule() {
    let points = [
        study(setting(World::Domain, 0.01, 0.5, 1), 1, 1, 1),
        study(setting(World::Domain, 0.01, 0.0, 0), 1, 1, 1),
    ];
    let (text, json) = (text(&points), json(&points, 1));
    let json = serde_json::to_string(&json).expect("JSON");
    for rival in RIVALS {
        assert!(text.contains(rival) && json.contains(rival), "{rival} is not in\n{text}");
    }
    assert!(text.contains("healthy") && text.contains("| 50 %"), "{text}");
}
