//! Small files that expand to much: aliases of aliases, entities, host lists, nested brackets.
//! Each is answered in bounded memory.

use super::place::Place;

/// Ten levels of nine aliases each: 3.5 billion words.
fn aliases() -> String {
    let mut text = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, before) in ('b'..='k').zip('a'..) {
        let nine = vec![format!("*{before}"); 9].join(",");
        text.push_str(&format!("{name}: &{name} [{nine}]\n"));
    }
    text
}

fn entities() -> String {
    let mut text = "<!DOCTYPE a [<!ENTITY a \"aaaaaaaaaa\">".to_owned();
    for (name, before) in ('b'..='m').zip('a'..) {
        text.push_str(&format!("<!ENTITY {name} \"{}\">", format!("&{before};").repeat(10)));
    }
    text + "]><system version=\"1\"><cpu numaid=\"&m;\"/></system>"
}

#[test]
fn no_small_file_of_claims_stands_for_more_than_fits() {
    let place = Place::new();
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let (aliases, entities) = (aliases(), entities());
    let node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n  labels:\n    a: *k\n";
    let topology = |blocks: &str| {
        format!(
            "- topology: t\n  cluster_default: true\n  block:\n    block_sizes: [2]\n    blocks: {blocks}\n"
        )
    };
    let bombs = [
        ("topology.yaml", format!("{aliases}topologies: *k\n")),
        ("blocks.yaml", topology("&b [*b, *b]")),
        (
            "laughs.yaml",
            topology("\n      - &a {block: a, nodes: 'a[1-100000]'}\n")
                + &"      - *a\n".repeat(50),
        ),
        ("deep.yaml", topology(&deep)),
        ("node.yaml", aliases + node),
        ("nodes.json", format!("{{\"nodes\":{deep}}}")),
        (
            "kubernetes.json",
            format!(
                "{{\"apiVersion\":\"v1\",\"kind\":\"NodeList\",\"items\":{}1{}}}",
                "{\"a\":".repeat(100_000),
                "}".repeat(100_000)
            ),
        ),
        ("claims.toml", format!("[[domain]]\nname = \"a\"\nnodes = \"{}\"\n", "[0-9]".repeat(9))),
        ("deep.toml", format!("a = {deep}\n")),
        ("entities.xml", entities),
        (
            "deep.xml",
            format!(
                "<system version=\"1\">{}{}</system>",
                "<pci>".repeat(100_000),
                "</pci>".repeat(100_000)
            ),
        ),
    ];
    for (name, text) in bombs {
        place.put(name, text);
        let ended = place.run(&["claims", name]);
        assert!([Some(2), Some(4), Some(5)].contains(&ended.code), "{name}: {ended:?}");
    }
}

#[test]
fn endless_brackets_are_neither_configuration_nor_output() {
    let place = Place::new();
    let deep = "[".repeat(100_000);
    place.put("fabricgate.toml", format!("claims = {deep}"));
    let ended = place.run(&["audit", "--config", "fabricgate.toml"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for (name, text) in [
        ("nvbandwidth.json", format!("{{\"nvbandwidth\":{deep}")),
        ("dcgm.json", format!("{{\"DCGM GPU Diagnostic\":{{\"test_categories\":{deep}")),
        ("iperf3.json", format!("{{\"start\":{}", "{\"a\":".repeat(100_000))),
    ] {
        place.put(name, text);
        assert_eq!(place.run(&["parse", "--json", name]).code, Some(4), "{name}");
    }
}
