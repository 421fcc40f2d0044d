//! Operators' reaction when audits find everything low by the same share: they inspect, and if it
//! lasts, they set the measured level as the site's level.
//!
//! The numbers are those of `thresholds measured`, from the last audit and a recertification of the
//! same nodes, and are applied like its file. It is assumed that the operators know the reason (a
//! new driver); their reaction to clocks or a wrong platform is not part of this study.

use super::{INSPECTION_DAYS, YearWorld};
use crate::sweep;
use crate::sweep::StudySweep;
use crate::year::rule::YearRule;
use crate::year::transients::{DAY_S, draw_one};
use engine::judge;
use engine::judge::{JudgeInput, site_levels};
use engine::thresholds::site_file::{SiteCollective, SiteExpectation};
use engine::thresholds::{overlay, site_file};
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::profile::Profile;
use model::tool_recording::ToolRecording;
use model::verdict::LocusKind;

/// The platform of the fleet, and the class of the finding.
const PLATFORM: &str = "gb200-nvl72";
/// Source of the new levels.
const SOURCE: &str = "the last audit";

/// Consecutive audits that found everything low by the same share.
#[derive(Debug)]
pub(super) struct UniformLowAudits {
    ready_s: f64,
    /// Number of such audits.
    audits: usize,
    last: (Claims, Vec<ToolRecording>, bool),
}

impl YearWorld<'_> {
    /// Operators read an audit's finding about the measurement itself.
    pub(super) fn note_uniform_low(&mut self, claims: &Claims, swept: &StudySweep, at_s: f64) {
        let mut findings = swept.final_verdicts.findings.iter();
        if !findings.any(|it| {
            it.class == FindingClass::AllLowAlike && it.locus.kind == LocusKind::Instrument
        }) {
            self.uniform_low = None;
            return;
        }
        let last = (claims.clone(), swept.recordings.clone(), swept.sampled);
        let before = self.uniform_low.take();
        let inspection_s =
            draw_one(self.moment_key("look at levels", at_s), &INSPECTION_DAYS) * DAY_S;
        self.uniform_low = Some(UniformLowAudits {
            ready_s: before.as_ref().map_or(at_s + inspection_s, |before| before.ready_s),
            audits: before.map_or(0, |before| before.audits) + 1,
            last,
        });
    }

    /// After the inspection, if another audit confirms the finding, they set the level.
    pub(super) fn state_levels(&mut self, at_s: f64) {
        let is_due = |alike: &UniformLowAudits| alike.ready_s <= at_s && 2 <= alike.audits;
        let states = matches!(self.rule, YearRule::Scheme(scheme) if scheme.restates_levels);
        if !states || !self.uniform_low.as_ref().is_some_and(is_due) {
            return;
        }
        let YearRule::Scheme(scheme) = self.rule else { return };
        let Some(UniformLowAudits { last: (claims, mut recordings, sampled), .. }) =
            self.uniform_low.take()
        else {
            return;
        };
        // A recertification measures more than an audit, and all of its levels are set.
        let (swept, _) = self.run_sweep(scheme, &claims, Profile::Recertify, at_s);
        recordings.extend(swept.recordings);
        let case = sweep::build_case(&claims, &recordings, &self.expected, sampled);
        let cells = judge::judge_without_history(&JudgeInput { cells: true, ..case }).cells;
        let Some(platform) = self.expected.platform(PLATFORM) else { return };
        let tests: Vec<SiteExpectation> = site_levels::test_levels(platform, &cells, |_| true)
            .into_iter()
            .filter_map(|(test, level)| {
                Some(level.ok()?.to_stated(&test, SOURCE.to_owned(), Vec::new()))
            })
            .collect();
        let recordings: Vec<&ToolRecording> = recordings.iter().collect();
        let collectives: Vec<SiteCollective<'_>> =
            site_levels::collective_levels(platform, &recordings)
                .into_iter()
                .filter_map(|level| Some(level.ok()?.to_stated(SOURCE.to_owned())))
                .collect();
        let sheet = site_file::render_site_file(PLATFORM, &[], &tests, &collectives);
        let laid = overlay::apply(&mut self.expected, &sheet, "site.toml");
        assert!(laid.is_ok(), "what is stated can be read: {laid:?}");
        self.score.level_updates += 1;
    }
}
