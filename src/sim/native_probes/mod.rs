//! Documents of fabricgate's native GPU probes on simulated nodes.
//!
//! One document per node, from the same physics and faults as the output of nvbandwidth and
//! nccl-tests, so that a sweep without external tools can be compared with one that uses them. No
//! child processes and no exchanges: each node's process knows the whole fabric and reports its own
//! part.

pub mod collective;
pub mod copy;

use std::collections::BTreeMap;

use super::fabric::{GpuIndex, SimFabric};
use super::invocation::ToolInvocation;
use super::mpirun::{MpiEnvironment, MpiHost, MpiJob};
use super::render;
use super::scenario::Scenario;
use model::probe_report::{
    DriverTelemetry, GpuTelemetry, GpuTelemetrySample, ProbedGpu, ProbedRank,
};

#[cfg(test)]
mod tests;

/// Location and peers of a probe.
#[derive(Debug)]
pub struct NativeProbeSite<'a> {
    /// The simulated scenario.
    pub scenario: &'a Scenario,
    /// The fabric of the scenario.
    pub fabric: &'a SimFabric,
    /// The node of the probe's process.
    pub node: &'a str,
    /// All participating nodes, in order; empty for a single-node probe.
    pub nodes: &'a [String],
    /// Indices of the GPUs on each node; empty for all.
    pub gpus: &'a [u32],
    /// NCCL and CUDA variables of the process.
    pub environment: MpiEnvironment,
    /// The noise of a reading.
    pub noise: fn(u32) -> u32,
    /// Number of earlier runs of the same step.
    pub prior_runs: u32,
}

impl NativeProbeSite<'_> {
    /// Creates the invocation of one reading: on this node alone, or with all others.
    fn with_invocation<T>(&self, reading: u32, act: impl FnOnce(&ToolInvocation<'_>) -> T) -> T {
        let hosts = self
            .nodes
            .iter()
            .map(|name| MpiHost { name: name.clone(), ranks: self.fabric.gpus_of([name]).len() });
        let job = MpiJob { hosts: hosts.collect(), environment: self.environment.clone() };
        act(&ToolInvocation {
            scenario: self.scenario,
            fabric: self.fabric,
            scope: self.scope(),
            spans_domain: !self.nodes.is_empty(),
            seed: self.scenario.seed,
            reading: (self.noise)(reading),
            prior_readings: self.prior_runs + reading,
            job: Some(&job),
        })
    }

    /// The scope of faults for this run: its claimed domain, as under mpirun, else the node.
    fn scope(&self) -> &str {
        let claim = self.fabric.claim_of(self.nodes.iter().map(String::as_str));
        claim.map_or(self.node, |claim| claim.name.as_str())
    }

    /// The participating GPUs of all nodes.
    fn all_gpus(&self) -> Vec<GpuIndex> {
        let own = [self.node.to_owned()];
        let nodes = if self.nodes.is_empty() { &own[..] } else { self.nodes };
        let all = self.fabric.gpus_of(nodes);
        let is_asked = |gpu: &GpuIndex| {
            self.gpus.is_empty() || self.gpus.contains(&self.fabric.cuda_index(*gpu))
        };
        all.into_iter().filter(is_asked).collect()
    }

    fn is_here(&self, gpu: GpuIndex) -> bool {
        self.fabric.node_of(gpu).name == self.node
    }

    /// The GPUs of this node as the probe lists them.
    fn probed_gpus(&self) -> Vec<ProbedGpu> {
        let own = self.all_gpus().into_iter().filter(|gpu| self.is_here(*gpu));
        own.map(|gpu| ProbedGpu {
            index: self.fabric.cuda_index(gpu),
            name: Some(self.fabric.node_of(gpu).hardware.product.to_owned()),
            uuid: Some(render::gpu_uuid(self.fabric, gpu)),
            bus_id: Some(self.bus_id(gpu)),
            unreachable_numa_node: None,
            numa_node: None,
            memory_bytes: None,
        })
        .collect()
    }

    fn probed_ranks(&self) -> Vec<ProbedRank> {
        let all = self.all_gpus().into_iter();
        (0..)
            .zip(all)
            .map(|(rank, gpu)| ProbedRank {
                rank,
                node: self.fabric.node_of(gpu).name.clone(),
                gpu: self.fabric.cuda_index(gpu),
                bus_id: Some(self.bus_id(gpu)),
                name: Some(self.fabric.node_of(gpu).hardware.product.to_owned()),
            })
            .collect()
    }

    /// The PCI address in the kernel's form: a domain of four digits, and a function.
    fn bus_id(&self, gpu: GpuIndex) -> String {
        let printed = self.fabric.node_of(gpu).hardware.bus_id(self.fabric.gpus[gpu].slot);
        format!("{}.0", printed.strip_prefix("0000").unwrap_or(printed))
    }

    fn cuda_version(&self) -> Option<String> {
        let node = self.fabric.node(self.node).ok()?;
        let cuda = self.fabric.nodes[node].hardware.cuda;
        Some(format!("{}.{}", cuda / 1000, cuda % 1000 / 10))
    }

    /// Readings of the driver during the probe: a host link that lost a generation shows it under
    /// load.
    fn driver_telemetry(&self) -> DriverTelemetry {
        let own = self.all_gpus().into_iter().filter(|gpu| self.is_here(*gpu));
        let state = |gpu: GpuIndex, busy: bool| {
            let [to, from] = self.fabric.gpus[gpu].host;
            // Half the rate is one generation less, a quarter is two.
            let lost = if to.min(from) < 0.3 { 2 } else { u32::from(to.min(from) < 0.6) };
            GpuTelemetrySample {
                sm_mhz: Some(if busy { 1_980 } else { 345 }),
                temperature_c: Some(if busy { 48 } else { 31 }),
                pcie_generation: Some(if busy { 5 - lost } else { 1 }),
                pcie_width: Some(16),
                ..GpuTelemetrySample::default()
            }
        };
        let gpus = own.map(|gpu| GpuTelemetry {
            index: self.fabric.cuda_index(gpu),
            uuid: Some(render::gpu_uuid(self.fabric, gpu)),
            before: Some(state(gpu, false)),
            under_load: Some(state(gpu, true)),
            after: Some(state(gpu, false)),
            link_errors: BTreeMap::new(),
            pcie_replays: Some(0),
            others: Vec::new(),
        });
        DriverTelemetry { samples: 20, gpus: gpus.collect(), missing: Vec::new() }
    }
}
