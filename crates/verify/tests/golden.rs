//! Golden images: arrays that an earlier build made are opened by this one, by the engine and by the verifier, whole and
//! with as many devices missing as may be.
//!
//! Invariants: the images are read, and never made, here.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::{Array, Import};
use ashlar_rt::Rt;
use ashlar_verify::{Severity, Source, verify};

#[allow(dead_code, reason = "the test makes no images")]
#[path = "../golden/recipe.rs"]
mod recipe;

use recipe::{End, IMAGES, Image, VOLUME, VOLUMES};

/// Imports these devices of an image and compares every volume.
fn reads(image: Image, devices: &[usize]) {
    let kept = recipe::kept(image);
    let disks = recipe::empty(image.devices);
    for (disk, bytes) in disks.iter().zip(&kept) {
        disk.poke(0, bytes);
    }
    let here: Vec<_> = devices.iter().map(|index| disks[*index].clone()).collect();
    let rt = Rt::simulated(9);
    let (handle, refs) = (rt.clone(), recipe::refs(&here));
    let which = format!("{image:?} {devices:?}");
    rt.block_on(async move {
        let imported = Array::import(&handle, refs, Import::default()).await;
        let array = imported.unwrap_or_else(|error| panic!("{which}: {error}"));
        for (name, _, _) in VOLUMES {
            let volume = array.volume(name).unwrap();
            let found = volume.read(0, VOLUME).await.unwrap();
            assert!(found[..] == recipe::expected()[..], "{which} {name}");
        }
        array.export().await.unwrap();
    });
    rt.shutdown();
}

#[test]
fn every_image_is_read_by_the_engine() {
    for image in IMAGES {
        let all: Vec<usize> = (0..image.devices).collect();
        reads(image, &all);
        // Of the rebuilt one device 1 is out of use already.
        let (most, first) = match image.end {
            End::Rebuilt => (2, 5),
            _ => (usize::from(image.layout.ends_with('2')) + 1, 0),
        };
        let left: Vec<usize> = all
            .into_iter()
            .filter(|i| !(first..first + most).contains(i))
            .collect();
        reads(image, &left);
    }
}

/// What all devices hold that are away, the verifier calls lost, and nothing else wrong.
#[test]
fn segments_whose_devices_are_all_away_are_known() {
    let image = IMAGES.into_iter().find(|i| i.name == "pairs").unwrap();
    let kept = recipe::kept(image);
    let sources: Vec<&dyn Source> = kept.iter().skip(2).map(|b| b as &dyn Source).collect();
    let report = verify(&sources);
    let worse = report.totals.keys().map(|kind| kind.severity());
    assert_eq!(worse.max(), Some(Severity::Lost), "{report}");
    let structure = report
        .totals
        .keys()
        .find(|k| k.severity() == Severity::Structure);
    assert_eq!(structure, None, "{report}");
}

#[test]
fn every_image_is_well_to_the_verifier() {
    for image in IMAGES {
        let kept = recipe::kept(image);
        let here = kept.iter().enumerate();
        let here = here.filter(|(index, _)| image.end != End::Rebuilt || *index != 1);
        let sources: Vec<&dyn Source> = here.map(|(_, bytes)| bytes as &dyn Source).collect();
        let report = verify(&sources);
        let wrong = report
            .totals
            .keys()
            .find(|kind| kind.severity() > Severity::Note);
        assert_eq!(wrong, None, "{image:?}\n{report}");
        assert_eq!(report.clean, image.end == End::Exported);
    }
}
