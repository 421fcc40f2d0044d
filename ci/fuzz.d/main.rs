//! One fuzz target of `tests/fuzz` behind libFuzzer: the one named in FABRICGATE_FUZZ_DOOR. With
//! FABRICGATE_FUZZ_SEEDS it writes the seed inputs into that folder instead, and ends.

#![no_main]

#[allow(dead_code, unused_imports, reason = "the tests of the files are not compiled here")]
#[path = "../../tests/fuzz/main.rs"]
mod fuzz;

use std::sync::OnceLock;

use fuzz::doors::{ALL, Door};

fn door() -> &'static Door {
    static DOOR: OnceLock<&'static Door> = OnceLock::new();
    DOOR.get_or_init(|| {
        let name = std::env::var("FABRICGATE_FUZZ_DOOR").unwrap_or_default();
        let Some(door) = ALL.iter().find(|door| door.name == name) else {
            let known: Vec<&str> = ALL.iter().map(|door| door.name).collect();
            eprintln!("FABRICGATE_FUZZ_DOOR={name}: expected one of {}", known.join(" "));
            std::process::exit(2);
        };
        if let Some(folder) = std::env::var_os("FABRICGATE_FUZZ_SEEDS") {
            for (number, seed) in (door.seeds)().into_iter().enumerate() {
                let path = std::path::Path::new(&folder).join(format!("seed-{number}"));
                std::fs::write(path, seed).expect("a seed is written");
            }
            std::process::exit(0);
        }
        door
    })
}

libfuzzer_sys::fuzz_target!(init: { door(); }, |bytes: &[u8]| (door().check)(bytes));
