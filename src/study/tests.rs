//! Small, deterministic studies.

use super::*;
use sim::scenario::Scenario;

fn setting(world: StudyWorld, sigma: f64, loss: f64, faults: usize) -> StudySetting {
    StudySetting { world, sigma, loss, faults }
}

/// One sweep, optionally with rendered and parsed outputs.
fn run_one_sweep(setting: &StudySetting, trial: u64, rendered: bool) -> sweep::StudySweep {
    let ground = StudyGround::new(setting.world);
    let key = trial_key(setting, 1, trial);
    let faulty = ground.draw_faulty_parts(setting, key);
    let scenario: Scenario = ground.build_scenario(setting, key, &faulty);
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let catalog = ProbeCatalog::built_in();
    let names = setting.world.probes().iter();
    let probes: Vec<&Probe> = names.filter_map(|name| catalog.get(name)).collect();
    let mut shapes = OutputShapes::new();
    let mut instrument = SimInstrument {
        scenario: &scenario,
        fabric: &fabric,
        shapes: &mut shapes,
        renders_outputs: rendered,
    };
    sweep::run_sweep(&build_request(&ground, &probes, key), &mut instrument)
}

#[test]
fn readings_without_tools_are_those_of_the_tools() {
    for (setting, trial) in [
        (setting(StudyWorld::Domain, 0.01, 0.25, 3), 1),
        (setting(StudyWorld::Domain, 0.03, 1.0 / 18.0, 1), 2),
        (setting(StudyWorld::Fleet, 0.02, 0.5, 5), 4),
    ] {
        let (fast, slow) =
            (run_one_sweep(&setting, trial, false), run_one_sweep(&setting, trial, true));
        assert!(153 <= fast.recordings.len(), "{}", fast.recordings.len());
        for (fast, slow) in fast.recordings.iter().zip(&slow.recordings) {
            assert_eq!(fast, slow);
        }
        assert_eq!(fast.recordings.len(), slow.recordings.len());
        assert_eq!(
            (fast.first_verdicts, fast.final_verdicts),
            (slow.first_verdicts, slow.final_verdicts)
        );
    }
}

#[test]
fn a_study_does_not_depend_on_its_threads() {
    let setting = setting(StudyWorld::Domain, 0.01, 0.25, 1);
    let one = run_study(setting, 3, 7, 1);
    assert_eq!(one, run_study(setting, 3, 7, 3));
    assert_ne!(one, run_study(setting, 3, 8, 1), "another seed is another study");
}

#[test]
fn half_a_gpu_is_found_and_no_other_part_blamed() {
    let point = run_study(setting(StudyWorld::Domain, 0.01, 0.5, 3), 4, 1, 2);
    assert_eq!((point.scheme.faults, point.scheme.found, point.scheme.false_blames), (12, 12, 0));
    assert_eq!(point.scheme.false_confirmed, 0);
    // At least 17 rounds, and all 153 pairs of nodes.
    assert!(
        17 * 4 <= point.scheme.rounds && 153 * 4 <= point.scheme.readings,
        "{:?}",
        point.scheme
    );
}

#[test]
fn a_half_of_a_nic_is_found_among_a_thousand_nodes() {
    let point = run_study(setting(StudyWorld::Fleet, 0.01, 0.5, 3), 1, 1, 1);
    assert_eq!((point.scheme.found, point.scheme.false_blames), (3, 0), "{:?}", point.scheme);
}

#[test]
fn without_a_fault_the_fences_blame_and_the_scheme_does_not() {
    let point = run_study(setting(StudyWorld::Domain, 0.01, 0.0, 0), 4, 1, 2);
    assert_eq!(
        (point.scheme.faults, point.scheme.false_blames, point.scheme.false_sweeps),
        (0, 0, 0)
    );
    let fences = point.baselines[2];
    assert!(0 < fences.false_blames, "{fences:?}");
}

#[test]
fn tables_and_documents_have_every_rule() {
    let points = [
        run_study(setting(StudyWorld::Domain, 0.01, 0.5, 1), 1, 1, 1),
        run_study(setting(StudyWorld::Domain, 0.01, 0.0, 0), 1, 1, 1),
    ];
    let (text, json) = (render_text(&points), build_document(&points, 1));
    let json = serde_json::to_string(&json).expect("JSON");
    for rival in BASELINES {
        assert!(text.contains(rival) && json.contains(rival), "{rival} is not in\n{text}");
    }
    assert!(text.contains("healthy") && text.contains("| 50 %"), "{text}");
}
