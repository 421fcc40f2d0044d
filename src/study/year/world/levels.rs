//! What people do where audits find everything low alike: they look, and where it
//! stays so they state what is measured as the level of the site.
//!
//! The numbers are those of `thresholds measured`, of the last audit and of a
//! re-certification of the same nodes, put in force as its file is. That
//! they know why (a new driver) is assumed; what they would do about clocks or a wrong
//! platform is not part of this study.

use super::LOOK;
use super::World;
use crate::sweep;
use crate::sweep::Swept;
use crate::year::rule::Rule;
use crate::year::weather::DAY_S;
use crate::year::weather::one_of;
use engine::judge;
use engine::judge::Case;
use engine::judge::typical;
use engine::thresholds::overlay;
use engine::thresholds::stated;
use engine::thresholds::stated::Stated;
use engine::thresholds::stated::StatedCollective;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::profile::Profile;
use model::recording::Recording;
use model::verdict::LocusKind;

/// The platform of the fleet, and the class of what is told.
const PLATFORM: &str = "gb200-nvl72";
/// Where stated levels come from.
const SOURCE: &str = "the last audit";

/// Audits in a row that found everything low alike.
#[derive(Debug)]
pub(super) struct Alike {
    /// When people have looked.
    ready_s: f64,
    /// How many audits said so.
    audits: usize,
    /// What the last of them showed.
    last: (Claims, Vec<Recording>, bool),
}

impl World<'_> {
    /// People hear what an audit says of the measurement itself.
    pub(super) fn hear(&mut self, claims: &Claims, swept: &Swept, at_s: f64) {
        let mut told = swept.last.findings.iter();
        if !told.any(|it| {
            it.class == FindingClass::AllLowAlike && it.locus.kind == LocusKind::Instrument
        }) {
            self.alike = None;
            return;
        }
        let last = (claims.clone(), swept.recordings.clone(), swept.sampled);
        let before = self.alike.take();
        let looked = one_of(self.of_moment("look at levels", at_s), &LOOK) * DAY_S;
        self.alike = Some(Alike {
            ready_s: before.as_ref().map_or(at_s + looked, |before| before.ready_s),
            audits: before.map_or(0, |before| before.audits) + 1,
            last,
        });
    }

    /// Where they have looked, and another audit said the same, they state it.
    pub(super) fn state_levels(&mut self, at_s: f64) {
        let is_due = |alike: &Alike| alike.ready_s <= at_s && 2 <= alike.audits;
        let states = matches!(self.rule, Rule::Ours(ours) if ours.states);
        if !states || !self.alike.as_ref().is_some_and(is_due) {
            return;
        }
        let Rule::Ours(ours) = self.rule else { return };
        let Some(Alike { last: (claims, mut recordings, sampled), .. }) = self.alike.take() else {
            return;
        };
        // A re-certification asks more than an audit: all that it measures is stated.
        let (swept, _) = self.swept(ours, &claims, Profile::Recertify, at_s);
        recordings.extend(swept.recordings);
        let case = sweep::case(&claims, &recordings, &self.expected, sampled);
        let cells = judge::judge(&Case { cells: true, ..case }).cells;
        let Some(platform) = self.expected.platform(PLATFORM) else { return };
        let tests: Vec<Stated> = typical::typical(platform, &cells, |_| true)
            .into_iter()
            .filter_map(|(test, level)| {
                Some(level.ok()?.stated(&test, SOURCE.to_owned(), Vec::new()))
            })
            .collect();
        let recordings: Vec<&Recording> = recordings.iter().collect();
        let collectives: Vec<StatedCollective<'_>> = typical::collectives(platform, &recordings)
            .into_iter()
            .filter_map(|level| Some(level.ok()?.stated(SOURCE.to_owned())))
            .collect();
        let sheet = stated::sheet(PLATFORM, &[], &tests, &collectives);
        let laid = overlay::apply(&mut self.expected, &sheet, "site.toml");
        assert!(laid.is_ok(), "what is stated can be read: {laid:?}");
        self.score.stated += 1;
    }
}
