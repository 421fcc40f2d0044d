//! Daily work of operators in a year: they reset a tripped breaker, set new levels, use nodes for
//! themselves, and repair and test drained nodes.

use super::{REPAIR_DAYS, RETEST_GAP_S, YearWorld};
use crate::year::fleet::FleetPosition;
use crate::year::rule::YearRule;
use crate::year::transients::{DAY_S, draw_one};

/// Share of repairs without effect, and share of repairs that replace a GPU.
const FAILED_REPAIR_SHARE: f64 = 0.15;
const SWAP_SHARE: f64 = 0.3;

/// Days from the report of a shared faulty part to its repair.
const SHARED_REPAIR_DAYS: f64 = 3.0;

/// Drains by operators for unrelated reasons, per node and day.
const MANUAL_DRAIN_RATE: f64 = 1.0 / 900.0;

impl YearWorld<'_> {
    /// Runs a day's work of the operators.
    pub(super) fn run_operators(&mut self, at_s: f64) {
        self.gate.reset_breaker(at_s);
        self.state_levels(at_s);
        self.drain_manually(at_s);
        self.repair_shared(at_s);
        let ready: Vec<FleetPosition> = self
            .drained
            .iter()
            .filter(|(_, out)| out.ready_s <= at_s)
            .map(|(spot, _)| *spot)
            .collect();
        for spot in ready {
            self.repair_node(spot, at_s);
            self.apply_faults(at_s);
            match self.rule.clone() {
                YearRule::Scheme(scheme) => {
                    for turn in 0..scheme.policy.clean_sweeps {
                        self.recertify(&scheme, spot, at_s + f64::from(turn) * RETEST_GAP_S);
                    }
                }
                simple => self.retest(&simple, spot, at_s),
            }
            if let Some(mut out) = self.drained.get(&spot).copied() {
                out.repair_count += 1;
                out.ready_s = at_s + self.repair_seconds(spot, at_s, self.is_faulty(spot, at_s));
                self.drained.insert(spot, out);
            }
        }
    }

    /// Operators' drains, which are unrelated to the rule.
    fn drain_manually(&mut self, at_s: f64) {
        let over: Vec<FleetPosition> = self
            .manual_holds
            .iter()
            .filter(|(_, until)| **until <= at_s)
            .map(|(spot, _)| *spot)
            .collect();
        for spot in over {
            self.manual_holds.remove(&spot);
            self.gate.resume_manually(&spot.name().into());
        }
        let key = self.moment_key("by hand", at_s);
        for spot in self.fleet.positions() {
            let key = key.with_part(spot.number());
            if key.fraction() < MANUAL_DRAIN_RATE && !self.drained.contains_key(&spot) {
                self.gate.drain_manually(&spot.name().into());
                self.manual_holds
                    .insert(spot, at_s + draw_one(key.with_name("for"), &REPAIR_DAYS) * DAY_S);
            }
        }
    }

    /// Repairs shared parts some days after a report; if three nodes of a rack are drained,
    /// operators notice the cause too.
    fn repair_shared(&mut self, at_s: f64) {
        for open in &mut self.faults {
            if !open.is_present(at_s) || !open.fault.is_shared() {
                continue;
            }
            let rack = open.fault.position.rack;
            if 3 <= self.drained.keys().filter(|spot| spot.rack == rack).count() {
                open.reported_s.get_or_insert(at_s);
                open.acted_s.get_or_insert(at_s);
            }
            if open
                .reported_s
                .is_some_and(|reported_at| reported_at + SHARED_REPAIR_DAYS * DAY_S <= at_s)
            {
                open.repaired_s = Some(at_s);
            }
        }
    }

    /// Repairs a node, or fails to.
    fn repair_node(&mut self, spot: FleetPosition, at_s: f64) {
        let key = self.moment_key("repair", at_s).with_part(spot.number());
        self.gate.boot_node(&spot.name().into(), at_s - 600.0);
        if key.with_name("in vain").fraction() < FAILED_REPAIR_SHARE {
            return;
        }
        for open in &mut self.faults {
            let own = open.fault.position == spot && !open.fault.is_shared();
            if own && open.is_present(at_s) {
                open.repaired_s = Some(at_s);
                if key.with_name("swapped").fraction() < SWAP_SHARE {
                    *self.parts.replacements.entry((spot, open.fault.gpu)).or_default() += 1;
                }
            }
        }
    }
}
