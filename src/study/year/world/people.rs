//! What people do by day in a year: reset what tripped, state new levels, keep nodes
//! for themselves, repair and test what is out.

use super::BETWEEN_S;
use super::REPAIR;
use super::World;
use crate::year::fleet::Spot;
use crate::year::rule::Rule;
use crate::year::weather::DAY_S;
use crate::year::weather::one_of;

/// Share of repairs that repair nothing, and of those that put another GPU in.
const IN_VAIN: f64 = 0.15;
const SWAPPED: f64 = 0.3;

/// Days from being told of a part that a rack shares to its repair.
const SHARED_REPAIR: f64 = 3.0;

/// Drains that people make for reasons of their own, of each node a day.
const BY_HAND: f64 = 1.0 / 900.0;

impl World<'_> {
    /// What people do by day: reset what tripped, keep nodes for themselves, repair
    /// and test what is out.
    pub(super) fn people(&mut self, at_s: f64) {
        self.gate.reset(at_s);
        self.state_levels(at_s);
        self.hold(at_s);
        self.repair_shared(at_s);
        let ready: Vec<Spot> =
            self.out.iter().filter(|(_, out)| out.ready_s <= at_s).map(|(spot, _)| *spot).collect();
        for spot in ready {
            self.repair(spot, at_s);
            self.come_true(at_s);
            match self.rule.clone() {
                Rule::Ours(ours) => {
                    for turn in 0..ours.policy.clean_sweeps {
                        self.recertify(&ours, spot, at_s + f64::from(turn) * BETWEEN_S);
                    }
                }
                simple => self.retest(&simple, spot, at_s),
            }
            if let Some(mut out) = self.out.get(&spot).copied() {
                out.turns += 1;
                out.ready_s = at_s + self.takes(spot, at_s, self.is_guilty(spot, at_s));
                self.out.insert(spot, out);
            }
        }
    }

    /// Drains that are none of the rule's business.
    fn hold(&mut self, at_s: f64) {
        let over: Vec<Spot> = self
            .by_hand
            .iter()
            .filter(|(_, until)| **until <= at_s)
            .map(|(spot, _)| *spot)
            .collect();
        for spot in over {
            self.by_hand.remove(&spot);
            self.gate.resume_by_hand(&spot.name().into());
        }
        let key = self.of_moment("by hand", at_s);
        for spot in self.fleet.spots() {
            let key = key.with(spot.number());
            if key.fraction() < BY_HAND && !self.out.contains_key(&spot) {
                self.gate.drain_by_hand(&spot.name().into());
                self.by_hand.insert(spot, at_s + one_of(key.named("for"), &REPAIR) * DAY_S);
            }
        }
    }

    /// Parts that a rack shares are repaired some days after somebody told of them;
    /// where three nodes of a rack are out, people see it too.
    fn repair_shared(&mut self, at_s: f64) {
        for open in &mut self.troubles {
            if !open.is_there(at_s) || !open.trouble.is_shared() {
                continue;
            }
            let rack = open.trouble.spot.rack;
            if 3 <= self.out.keys().filter(|spot| spot.rack == rack).count() {
                open.told_s.get_or_insert(at_s);
                open.acted_s.get_or_insert(at_s);
            }
            if open.told_s.is_some_and(|told| told + SHARED_REPAIR * DAY_S <= at_s) {
                open.repaired_s = Some(at_s);
            }
        }
    }

    /// Repairs a node, or means to.
    fn repair(&mut self, spot: Spot, at_s: f64) {
        let key = self.of_moment("repair", at_s).with(spot.number());
        self.gate.boot(&spot.name().into(), at_s - 600.0);
        if key.named("in vain").fraction() < IN_VAIN {
            return;
        }
        for open in &mut self.troubles {
            let own = open.trouble.spot == spot && !open.trouble.is_shared();
            if own && open.is_there(at_s) {
                open.repaired_s = Some(at_s);
                if key.named("swapped").fraction() < SWAPPED {
                    *self.parts.generation.entry((spot, open.trouble.gpu)).or_default() += 1;
                }
            }
        }
    }
}
