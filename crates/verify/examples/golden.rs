//! Golden images: makes those that are not there (`make`), puts the devices of one into a folder as files (`unpack NAME FOLDER`), writes what
//! each volume holds to the standard output (`expected`).
//!
//! Invariants: `make` leaves those alone that are there; every later build opens what it made.
#![allow(clippy::unwrap_used, reason = "a development tool")]

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

#[path = "../golden/recipe.rs"]
mod recipe;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["make"] => {
            for image in recipe::IMAGES.into_iter().filter(|i| !recipe::is_kept(*i)) {
                recipe::keep(image, &recipe::make(image));
            }
        }
        ["unpack", name, folder] => {
            let Some(image) = recipe::IMAGES.into_iter().find(|i| i.name == name) else {
                eprintln!("no image {name}");
                return ExitCode::from(2);
            };
            for (index, bytes) in recipe::kept(image).iter().enumerate() {
                std::fs::write(Path::new(folder).join(format!("{index}.img")), bytes).unwrap();
            }
        }
        ["expected"] => std::io::stdout().write_all(&recipe::expected()).unwrap(),
        _ => {
            eprintln!("usage: golden make | unpack NAME FOLDER | expected");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
