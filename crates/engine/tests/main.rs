//! The engine's tests through its interface, on devices in memory.
//!
//! All are one program: each would compile the whole engine for itself, since async functions are compiled where they
//! are polled. `cargo test -p ashlar-engine --test engine heal::` runs those of one file.

mod common;

mod accelerator;
mod addition;
mod basics;
mod beat;
mod cleaning;
mod declustered;
mod domains;
mod full_backing;
mod generations;
mod groups;
mod growth;
mod heal;
mod histories;
mod hot_spare;
mod import;
mod in_flight;
mod journal;
mod metadata;
mod pace;
mod paused;
mod promised;
mod read_only;
mod redundancy;
mod relabel;
mod removal;
mod replacement;
mod requests;
mod returning;
mod scrub;
mod slots;
mod slow;
mod spare;
mod status;
mod thin;
mod trim;
mod volumes;

#[test]
fn every_file_of_tests_is_in_this_program() {
    let here = include_str!("main.rs");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    for file in std::fs::read_dir(folder).expect("the folder of tests") {
        let name = file.expect("an entry").file_name();
        let name = name.to_str().expect("a name in UTF-8");
        if let Some(name) = name.strip_suffix(".rs").filter(|n| *n != "main") {
            assert!(
                here.contains(&format!("\nmod {name};\n")),
                "main.rs lacks {name}"
            );
        }
    }
}
