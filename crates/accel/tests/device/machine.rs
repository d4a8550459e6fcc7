//! What the machine itself has: the same comparisons on a real GPU, or the processor alone.
//!
//! On a machine with a GPU `compute-sanitizer` can be put around this group; see `docs/gpu.md`.

use std::time::Duration;

use ashlar_accel::{Accelerator, Choice, Fault, Options, Ran};

use crate::standin::{Random, is_here, small};
use crate::{arrays, digests, pipeline, products};

pub const ALL: &[crate::Scenario] = &[
    (
        "machine::auto_works_with_what_there_is",
        auto_works_with_what_there_is,
    ),
    (
        "machine::every_kernel_if_there_is_a_gpu",
        every_kernel_if_there_is_a_gpu,
    ),
];

fn auto_works_with_what_there_is() {
    assert!(!is_here());
    let accelerator = Accelerator::new(Choice::Auto, Options::default());
    let recipe = pipeline::everything(&mut Random::new(1), 4, 2, 4096, 3);
    recipe.check(&accelerator.submit(recipe.job()).wait());
    if accelerator.wait_until_open(Duration::from_secs(120)) {
        println!("GPU: {}", accelerator.status());
    } else {
        let status = accelerator.status();
        println!("no GPU: {status}");
        let fault = status.fault.unwrap();
        assert!(
            matches!(
                fault,
                Fault::NoDriver | Fault::NoDevice { .. } | Fault::Call { call: "cuInit", .. }
            ),
            "{fault}"
        );
        assert!(status.to_string().contains("processor only"));
        assert!(!accelerator.region(100).is_pinned());
    }
    recipe.check(&accelerator.submit(recipe.job()).wait());
}

fn every_kernel_if_there_is_a_gpu() {
    let accelerator = Accelerator::new(Choice::Cuda(0), small(64 << 10));
    if accelerator.wait_until_open(Duration::from_secs(120)) {
        for (name, scenario) in products::ALL
            .iter()
            .chain(digests::ALL)
            .chain(pipeline::ON_ANY)
            .chain(arrays::ON_ANY)
        {
            scenario();
            println!("on the GPU: {name}");
        }
        return;
    }
    // Without one, what was asked for is done by the processor, and said.
    let recipe = pipeline::everything(&mut Random::new(2), 4, 2, 512, 2);
    let done = accelerator.submit(recipe.job()).wait();
    assert_eq!((done.ran, done.fault), (Ran::Cpu, None));
    assert!(
        accelerator
            .status()
            .to_string()
            .starts_with("accelerator cuda:0: processor only: ")
    );
}
