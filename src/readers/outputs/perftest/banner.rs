//! The banner and the option block above a table: which test it is.

/// The verbs as the banner writes them, longest first, and the beginning of
/// the binary's name.
const VERBS: [(&str, &str, &str); 6] = [
    ("RDMA_Write_imm", "ib_write", "_imm"),
    ("RDMA_Write", "ib_write", ""),
    ("RDMA_Read", "ib_read", ""),
    ("Send_imm", "ib_send", "_imm"),
    ("Send", "ib_send", ""),
    ("Atomic", "ib_atomic", ""),
];

/// The words that can appear between the verb and `Test`, and their suffixes in the name.
const WORDS: [(&str, &str); 6] = [
    ("CMP_AND_SWAP", "_cmp_and_swap"),
    ("FETCH_AND_ADD", "_fetch_and_add"),
    ("Bidirectional", "_bidirectional"),
    ("Post List", ""),
    ("forwarding", "_forwarding"),
    ("Multicast", "_multicast"),
];

/// Options worth keeping, as keys of `facts.parameters`.
const OPTIONS: [&str; 29] = [
    "dual_port",
    "device",
    "number_of_qps",
    "transport_type",
    "connection_type",
    "using_srq",
    "pcie_relax_order",
    "lock_free",
    "ibv_wr_api",
    "using_enhanced_reorder",
    "tx_depth",
    "rx_depth",
    "post_list",
    "recv_post_list",
    "cq_moderation",
    "cqe_poll_batch",
    "mtu",
    "link_type",
    "buffer_size",
    "gid_index",
    "gid_index2",
    "max_inline_data",
    "outstand_reads",
    "rdma_cm_qps",
    "use_rocm_memory",
    "use_musa_memory",
    "data_ex_method",
    "tos",
    "numa_node",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PerftestQuantity {
    Bandwidth,
    Latency,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PerftestBanner {
    verb: &'static str,
    /// Absent for latency under load, whose banner names neither.
    quantity: Option<PerftestQuantity>,
    suffix: String,
    raw_ethernet: bool,
}

impl PerftestBanner {
    /// `RDMA_Write Bidirectional BW Test`, and with underscores in JSON.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_suffix("Test")?;
        let (name, verb, imm) = VERBS.into_iter().find(|(name, ..)| text.starts_with(name))?;
        let mut rest = rest.get(name.len()..)?.replace('_', " ");
        if !rest.starts_with(' ') || !rest.ends_with(' ') {
            return None;
        }
        let mut suffix = imm.to_owned();
        let mut quantity = None;
        for (word, add) in WORDS {
            let spaced = format!(" {} ", word.replace('_', " "));
            if let Some(at) = rest.find(&spaced) {
                rest.replace_range(at..at + spaced.len() - 1, "");
                suffix.push_str(add);
            }
        }
        for word in rest.split_whitespace() {
            quantity = match (word, quantity) {
                ("BW", None) => Some(PerftestQuantity::Bandwidth),
                ("Latency", None) => Some(PerftestQuantity::Latency),
                _ => return None,
            };
        }
        Some(Self { verb, quantity, suffix, raw_ethernet: false })
    }

    /// The same banner over a raw Ethernet connection, whose binary has another name.
    pub(super) fn with_raw_ethernet(self, raw_ethernet: bool) -> Self {
        Self { raw_ethernet, ..self }
    }

    /// The name of the test. `seen` comes from the table's header.
    pub(super) fn testcase(&self, seen: Option<PerftestQuantity>) -> String {
        let verb = if self.raw_ethernet { "raw_ethernet" } else { self.verb };
        let quantity = match self.quantity.or(seen) {
            Some(PerftestQuantity::Bandwidth) => "_bw",
            Some(PerftestQuantity::Latency) => "_lat",
            None => "",
        };
        format!("{verb}{quantity}{}", self.suffix)
    }

    /// The measured quantity, if the banner names it.
    pub(super) fn quantity(&self) -> Option<PerftestQuantity> {
        self.quantity
    }
}

/// The parameter for an option's printed name.
pub(super) fn option_key(printed: &str) -> Option<&'static str> {
    let mut key = String::with_capacity(printed.len());
    for c in printed.chars() {
        if c.is_ascii_alphanumeric() {
            key.push(c.to_ascii_lowercase());
        } else if !key.is_empty() && !key.ends_with('_') {
            key.push('_');
        }
    }
    let key = key.trim_end_matches('_');
    OPTIONS.into_iter().find(|known| *known == key)
}
